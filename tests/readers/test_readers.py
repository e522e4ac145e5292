"""Files give the rows that were written to them, in batches of any size, or one line that says why not."""

import bz2
import datetime
import decimal
import gc
import gzip
import io
import json
import os
import subprocess
import sys
import time
import tracemalloc
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_same_results, edge_of_rounding, row_results, sparse_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedpca import PrivatePCA, StreamingPCA, fit_files
from fedpca.errors import FileFormatError
from fedpca.privacy.clipping import clipped
from fedpca.readers import Batch, open_rows

pa = pytest.importorskip("pyarrow", reason="the files extra")
h5py = pytest.importorskip("h5py", reason="the files extra")
zarr = pytest.importorskip("zarr", reason="the files extra")
bed_reader = pytest.importorskip("bed_reader", reason="it writes the files that ours are compared with")

import pyarrow.csv  # noqa: E402
import pyarrow.feather  # noqa: E402
import pyarrow.parquet  # noqa: E402, F401

NAMES = ("height", "weight", "age")


def numbers(n_rows=100, n_features=3, dtype="float64", seed=0):
    rows = np.random.default_rng(seed).normal(size=(n_rows, n_features)).astype(dtype)
    rows[1::7, 1] = np.nan
    return rows


def arrow(rows, names=NAMES):
    """Columns with nulls for NaN."""
    columns = [pa.array(column, from_pandas=True) for column in np.asfortranarray(rows).T]
    return pa.table(dict(zip(names, columns, strict=True)))


def write_csv(path, rows, delimiter=","):
    options = pa.csv.WriteOptions(delimiter=delimiter)
    pa.csv.write_csv(arrow(rows, names_for(rows)), path, options)


def write_jsonl(path, rows):
    names = names_for(rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in arrow(rows, names).to_pylist()))


def write_xlsx(path, rows):
    import openpyxl

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(list(names_for(rows)))
    for row in rows.tolist():  # as text, for openpyxl writes 16 digits of a number
        sheet.append([None if cell != cell else repr(cell) for cell in row])
    book.save(path)


def write_arrow_stream(path, rows):
    table = arrow(rows, names_for(rows))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)


def write_zarr(path, rows):
    zarr.create_array(str(path), shape=rows.shape, chunks=(8, 2), dtype=rows.dtype)[:] = rows


def write_anndata(group, rows, names):
    """As AnnData's description of its files says."""
    group.attrs["encoding-type"] = "anndata"
    if sparse.issparse(rows):
        x = group.create_group("X")
        for name in ("data", "indices", "indptr"):
            put(x, name, getattr(rows, name))
        x.attrs["encoding-type"] = f"{rows.format}_matrix"
        x.attrs["shape"] = list(rows.shape)
    else:
        put(group, "X", rows)
    n_rows = rows.shape[0]
    var, obs = group.create_group("var"), group.create_group("obs")
    var.attrs["_index"] = obs.attrs["_index"] = "_index"
    put(var, "_index", np.array(names, "S"))
    put(obs, "_index", np.array([f"cell{i}" for i in range(n_rows)], "S"))
    put(obs, "depth", np.arange(n_rows))
    kind, rest = obs.create_group("kind"), obs.create_group("rest")
    put(kind, "codes", np.arange(n_rows, dtype=np.int8) % 3 - 1)
    put(kind, "categories", np.array(["b", "t"], "S"))
    put(rest, "values", np.arange(n_rows))
    put(rest, "mask", np.arange(n_rows) % 2 == 1)


def put(group, name, values):
    if isinstance(group, h5py.Group):
        group.create_dataset(name, data=values, chunks=True if values.size else None)
    else:
        group.create_array(name, shape=values.shape, dtype=values.dtype)[:] = values


def write_h5ad(path, rows):
    with h5py.File(path, "w") as file:
        write_anndata(file, rows, names_for(rows))


def write_zarr_anndata(path, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fixed-length text is not yet in Zarr's own description
        write_anndata(zarr.open_group(str(path), mode="w"), rows, names_for(rows))


def shared_file(name):
    path = Path(os.environ.get("FEDPCA_DATA", "")) / name
    if not path.is_file():
        pytest.skip("a file of the folder FEDPCA_DATA")
    return path


def names_for(rows):
    return NAMES if rows.shape[1] == 3 else [f"feature {i}" for i in range(rows.shape[1])]


DENSE = {
    "csv": (".csv", write_csv),
    "tsv": (".tsv", lambda path, rows: write_csv(path, rows, "\t")),
    "jsonl": (".jsonl", write_jsonl),
    "parquet": (
        ".parquet",
        lambda path, rows: pa.parquet.write_table(arrow(rows, names_for(rows)), path, row_group_size=11),
    ),
    "arrow": (
        ".arrow",
        lambda path, rows: pa.feather.write_feather(
            arrow(rows, names_for(rows)), str(path), compression="uncompressed", chunksize=13
        ),
    ),
    "feather": (
        ".feather",
        lambda path, rows: pa.feather.write_feather(arrow(rows, names_for(rows)), str(path), chunksize=13),
    ),
    "arrow stream": (".arrow", write_arrow_stream),
    "npy": (".npy", np.save),
    "npy by columns": (".npy", lambda path, rows: np.save(path, np.asfortranarray(rows))),
    "npy of a big-endian machine": (
        ".npy",
        lambda path, rows: np.save(path, rows.astype(rows.dtype.newbyteorder())),
    ),
    "npz": (".npz", lambda path, rows: np.savez(path, rows)),
    "npz, compressed": (".npz", lambda path, rows: np.savez_compressed(path, rows)),
    "npz by columns": (".npz", lambda path, rows: np.savez_compressed(path, np.asfortranarray(rows))),
    "h5ad": (".h5ad", write_h5ad),
    "zarr": (".zarr", write_zarr),
    "zarr of AnnData": (".zarr", write_zarr_anndata),
}
if find_spec("python_calamine") and find_spec("openpyxl"):  # the excel extra
    DENSE["xlsx"] = (".xlsx", write_xlsx)
SPARSE = {
    "npz": (".npz", lambda path, rows: sparse.save_npz(path, rows)),
    "h5ad": (".h5ad", write_h5ad),
    "zarr of AnnData": (".zarr", write_zarr_anndata),
}


def written(folder, kinds, kind, rows, name="rows"):
    ending, write = kinds[kind]
    path = folder / f"{name}{ending}"
    write(path, rows)
    return path


def all_of(rows):
    parts = [part.toarray() if sparse.issparse(part) else part for part in rows]
    return np.concatenate(parts) if parts else np.empty((0, rows.n_features))


@pytest.mark.parametrize("kind", DENSE)
class TestEveryDenseFormat:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_gives_what_was_written(self, tmp_path, kind, dtype):
        rows = numbers(dtype=dtype)
        opened = open_rows(written(tmp_path, DENSE, kind, rows))
        expected = "float64" if kind in ("csv", "tsv", "jsonl", "xlsx") else dtype
        assert (opened.n_features, opened.sparse, opened.dtype) == (3, False, expected)
        assert opened.n_rows in (100, None)
        assert opened.feature_names == (None if "np" in kind or kind == "zarr" else NAMES)
        for _ in range(2):  # each pass starts anew
            np.testing.assert_array_equal(all_of(opened).astype(dtype), rows)
        assert {batch.dtype for batch in opened} == {np.dtype(expected)}

    @pytest.mark.slow
    def test_any_batch_size_and_any_start(self, tmp_path_factory, kind):
        rows = numbers(60)
        path = written(tmp_path_factory.mktemp("rows"), DENSE, kind, rows)

        @settings(max_examples=20)
        @given(size=st.integers(1, 70), skip=st.integers(0, 60))
        def check(size, skip):
            opened = open_rows(path, batch_rows=size)
            batches = list(opened.batches(skip))
            assert all(1 <= len(batch.rows) <= size for batch in batches)
            parts = [batch.rows for batch in batches]
            np.testing.assert_array_equal(np.concatenate([np.empty((0, 3)), *parts]), rows[skip:])
            # A pass that goes on where a batch ended goes on as the first would have.
            sizes = [len(batch) for batch in opened]
            start = sum(sizes[: skip % len(sizes)])
            assert [len(batch.rows) for batch in opened.batches(start)] == sizes[skip % len(sizes) :]

        check()

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_results_of_a_row_do_not_depend_on_the_format_or_the_batches(self, tmp_path, kind, dtype):
        rows = 5 * numbers(60, 6, dtype=dtype, seed=1) * np.logspace(0, -3, 6).astype(dtype) + 1
        rows[:, 0] = rows[:, 0].round(1)
        pca = StreamingPCA(3).fit(numbers(200, 6, dtype=dtype, seed=2))
        path = written(tmp_path, DENSE, kind, rows)
        alone = [row_results(pca, row[None]) for row in rows]
        points = np.concatenate([clipped(np.nan_to_num(row[None]), 0.5) for row in rows])
        for batch_rows in (1, 7, None):
            batches = [batch.rows for batch in open_rows(path, batch_rows=batch_rows).batches()]
            assert_same_results(pca, rows, [row_results(pca, batch) for batch in batches], alone)
            read = np.concatenate([clipped(np.nan_to_num(batch), 0.5) for batch in batches])
            np.testing.assert_array_equal(read, points)

    def test_rows_on_the_edge_of_rounding_are_the_same_lattice_points(self, tmp_path, kind):
        rows = edge_of_rounding(40, 64)
        alone = np.concatenate([clipped(row[None], 1e-3) for row in rows])
        path = written(tmp_path, DENSE, kind, rows)
        for batch_rows in (1, 7, None):
            batches = open_rows(path, batch_rows=batch_rows).batches()
            read = np.concatenate([clipped(batch.rows, 1e-3) for batch in batches])
            np.testing.assert_array_equal(read, alone)

    def test_whole_numbers_become_float64(self, tmp_path, kind):
        rows = np.arange(30).reshape(10, 3)
        opened = open_rows(written(tmp_path, DENSE, kind, rows))
        assert opened.dtype == np.float64
        np.testing.assert_array_equal(all_of(opened), rows)

    def test_several_files_are_one_table(self, tmp_path, kind):
        rows = numbers()
        paths = [
            written(tmp_path, DENSE, kind, part, f"part {i}")
            for i, part in enumerate(np.split(rows, [40, 41, 90]))
        ]
        for files in (tmp_path, f"{tmp_path}/part*", paths, map(str, paths)):
            opened = open_rows(files, batch_rows=16)
            np.testing.assert_array_equal(all_of(opened), rows)
            np.testing.assert_array_equal(np.concatenate([b.rows for b in opened.batches(43)]), rows[43:])

    def test_files_cut_short_or_damaged(self, tmp_path, kind):
        path = written(tmp_path, DENSE, kind, numbers())
        if kind in ("csv", "tsv", "jsonl") or path.is_dir():
            pytest.skip("text and folders are whole wherever they end")
        whole = path.read_bytes()
        for contents in (whole[: len(whole) // 2], whole[:20], b"secret" * 100):
            path.write_bytes(contents)
            with pytest.raises(
                FileFormatError, match=r"rows\.\w+ is not a valid .* \(truncated or corrupt\); write or copy"
            ) as caught:
                list(open_rows(path))
            assert "secret" not in str(caught.value)

    def test_no_rows(self, tmp_path, kind):
        path = written(tmp_path, DENSE, kind, np.empty((0, 3)))
        with pytest.raises(FileFormatError, match="contains no rows"):
            list(open_rows(path))


@pytest.mark.parametrize("kind", SPARSE)
class TestEverySparseFormat:
    def rows(self, n_rows=50):
        return sparse.random_array((n_rows, 3), density=0.4, format="csr", dtype="float32", rng=3)

    def test_stays_sparse(self, tmp_path, kind):
        rows = self.rows()
        opened = open_rows(written(tmp_path, SPARSE, kind, rows), batch_rows=7)
        assert (opened.sparse, opened.dtype, opened.n_rows) == (True, np.float32, 50)
        batches = list(opened)
        assert all(sparse.issparse(batch) and batch.format == "csr" for batch in batches)
        assert [batch.shape[0] for batch in batches] == [7] * 7 + [1]
        np.testing.assert_array_equal(sparse.vstack(batches).toarray(), rows.toarray())
        parts = [batch.rows for batch in opened.batches(33)]
        np.testing.assert_array_equal(sparse.vstack(parts).toarray(), rows.toarray()[33:])

    def test_results_of_a_row_do_not_depend_on_the_format_or_the_batches(self, tmp_path, kind):
        rows = sparse_rows(np.random.default_rng(0), 60, 6, density=0.4)
        pca = StreamingPCA(3).fit(sparse_rows(np.random.default_rng(1), 200, 6, density=0.4))
        path = written(tmp_path, SPARSE, kind, rows)
        alone = [row_results(pca, rows[[i]].toarray()) for i in range(60)]
        for batch_rows in (1, 7, None):
            batches = open_rows(path, batch_rows=batch_rows).batches()
            found = [row_results(pca, batch.rows) for batch in batches]
            assert_same_results(pca, rows.toarray(), found, alone)

    def test_full_rows_come_in_small_batches(self, tmp_path, kind, monkeypatch):
        monkeypatch.setattr("fedpca.readers.arrays._SPARSE_ENTRIES", 10)
        rows = self.rows()
        batches = list(open_rows(written(tmp_path, SPARSE, kind, rows)))
        assert all(batch.nnz <= 10 for batch in batches)
        np.testing.assert_array_equal(sparse.vstack(batches).toarray(), rows.toarray())

    def test_other_layouts_are_refused(self, tmp_path, kind):
        path = written(tmp_path, SPARSE, kind, self.rows().tocsc())
        with pytest.raises(FileFormatError, match=r"got csc.*tocsr"):
            open_rows(path)

    def test_an_index_outside_the_row_is_refused(self, tmp_path, kind):
        rows = self.rows()
        rows.indices[5] = 1000
        with pytest.raises(FileFormatError, match="corrupt"):
            list(open_rows(written(tmp_path, SPARSE, kind, rows)))


class TestColumns:
    def people(self, tmp_path, name="people.parquet", **more):
        columns = {
            "name": ["Ada", "Bob", None],
            "height": pa.array([1.7, None, 1.8], pa.float32()),
            "children": pa.array([2, None, 2**60], pa.int64()),
            "price": [decimal.Decimal("1.25"), None, decimal.Decimal("3")],
            "member": [True, None, False],
            "rating": pa.array([3, None, 5]).dictionary_encode(),
            **more,
        }
        pa.parquet.write_table(pa.table(columns), tmp_path / name)
        return tmp_path / name

    def test_every_kind_of_number(self, tmp_path):
        opened = open_rows(self.people(tmp_path), drop=["name"])
        (rows,) = opened
        expected = [[np.float32(1.7), 2, 1.25, 1, 3], [np.nan] * 5, [np.float32(1.8), 2.0**60, 3, 0, 5]]
        np.testing.assert_array_equal(rows, expected)
        assert rows.dtype == np.float64

    def test_those_named_in_the_order_named(self, tmp_path):
        opened = open_rows(self.people(tmp_path), columns=["member", "height"])
        assert opened.feature_names == ("member", "height")
        np.testing.assert_array_equal(next(iter(opened))[0], [1, np.float32(1.7)])
        assert open_rows(self.people(tmp_path), columns=["height"]).dtype == np.float32

    def test_text_is_refused_by_name(self, tmp_path):
        path = self.people(tmp_path, born=[datetime.date(2000, 1, 1)] * 3, places=[["a"], ["b"], []])
        with pytest.raises(FileFormatError) as caught:
            open_rows(path)
        assert str(caught.value) == (
            f"{path}: columns must be numeric, but name contains text, born contains dates or times, places "
            "contains values of type list<element: string>; encode them as numbers, or leave them out with "
            "drop=['name', 'born', 'places'] (--drop name,born,places)."
        )

    def test_many_columns_of_text(self, tmp_path):
        path = tmp_path / "text.csv"
        path.write_text(",".join(f"c{i}" for i in range(31)) + "\n" + ",".join("x" * 30 + "1") + "\n")
        with pytest.raises(
            FileFormatError,
            match=r"c7 and 22 more contain text from line 2; encode .* with columns=\[\.\.\.\]",
        ):
            open_rows(path)
        assert open_rows(path, columns=["c30"]).n_features == 1

    def test_numeric_only(self, tmp_path):
        path = self.people(tmp_path, born=[datetime.date(2000, 1, 1)] * 3)
        with pytest.warns(UserWarning, match=r"^left out because not numeric: name \(text\), born \(dates "):
            opened = open_rows(path, numeric_only=True)
        assert opened.feature_names == ("height", "children", "price", "member", "rating")
        with pytest.warns(UserWarning, match=r"numeric: born \(dates or times\)\.$"):
            opened = open_rows(path, numeric_only=True, private=True, passthrough=["name"])
        assert next(opened.batches()).passthrough["name"][0] == "Ada"
        open_rows(path, numeric_only=True, drop=["name", "born"])  # nothing is left out
        text = tmp_path / "rows.csv"
        text.write_text("x,y,z\n1,?,a\n2,3,b\n4,4,c\n")
        with pytest.warns(UserWarning, match=r"numeric: y \(numbers and, in line 2, text\), z \(text from"):
            assert open_rows(text, numeric_only=True).feature_names == ("x",)
        with (
            pytest.warns(UserWarning, match="left out"),
            pytest.raises(ValueError, match="at least one column must be left"),
        ):
            open_rows(text, numeric_only=True, columns=["z"])
        with pytest.raises(
            FileFormatError, match=r"private rows would decide them; leave columns out with drop=\[\.\.\.\]"
        ):
            open_rows(text, numeric_only=True, private=True)

    def test_numeric_only_leaves_out_what_is_text_in_any_file(self, tmp_path):
        (tmp_path / "a.csv").write_text("x,y\n1,2\n")
        (tmp_path / "b.csv").write_text("x,y\n1,a\n")
        with pytest.warns(UserWarning, match="y \\(text"):
            assert all_of(open_rows(tmp_path, numeric_only=True)).tolist() == [[1], [1]]

    @pytest.mark.parametrize("ending", [".csv", ".parquet"])
    @pytest.mark.parametrize(
        ("name", "values", "is_one"),
        [
            ("id", [1.5] * 200, True),
            ("patient_ID", [1.5] * 200, True),
            ("userId", [1.5] * 200, True),
            ("citric acid", [1.5] * 200, False),
            ("GRID", [1.5] * 200, False),
            ("row", list(range(1, 201)), True),
            ("row", list(range(1, 12)), True),
            ("code", [(7919 * i) % 100_003 for i in range(200)], True),
            ("count", [(7919 * i) % 100_003 for i in range(90)], False),
            ("count", [i // 2 for i in range(200)], False),
            ("size", [i + 0.5 for i in range(200)], False),
            ("gaps", [*range(199), None], False),
        ],
    )
    def test_ids_are_noticed(self, tmp_path, ending, name, values, is_one):
        table = pa.table({name: values, "x": [0.5] * len(values)})
        path = tmp_path / f"rows{ending}"
        pa.csv.write_csv(table, path) if ending == ".csv" else pa.parquet.write_table(table, path)
        if is_one:
            with pytest.warns(UserWarning, match=f"^{name} may be an id.*drop it unless measured"):
                open_rows(path)
        else:
            open_rows(path)
        open_rows(path, drop=[name])
        open_rows(path, columns=[name])  # chosen
        open_rows(path, private=True)

    def lists(self, vectors, layout):
        values = pa.array(vectors.ravel(), from_pandas=True)
        size = vectors.shape[1]
        if layout == "fixed-size list":
            return pa.FixedSizeListArray.from_arrays(values, size)
        ends = np.arange(0, vectors.size + 1, size)
        kind = pa.LargeListArray if layout == "large list" else pa.ListArray
        return kind.from_arrays(pa.array(ends, pa.int64() if layout == "large list" else pa.int32()), values)

    def write_lists(self, path, **columns):
        table = pa.table(columns)
        if path.suffix == ".parquet":
            pa.parquet.write_table(table, path, row_group_size=17)
        else:
            pa.feather.write_feather(table, str(path), chunksize=17)
        return path

    @pytest.mark.parametrize("layout", ["list", "large list", "fixed-size list"])
    @pytest.mark.parametrize("ending", [".parquet", ".arrow"])
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16"])
    def test_lists_are_features(self, tmp_path, layout, ending, dtype):
        vectors = np.random.default_rng(0).integers(-9, 9, (60, 4)).astype(dtype)
        path = self.write_lists(
            tmp_path / f"texts{ending}",
            id=np.arange(60),
            embedding=self.lists(vectors, layout),
            length=np.arange(60, dtype=np.float32),
        )
        opened = open_rows(path, passthrough=["id"], batch_rows=7)
        assert opened.feature_names == (*(f"embedding_{i}" for i in range(4)), "length")
        assert opened.dtype == (np.float32 if dtype in ("float16", "float32") else np.float64)
        expected = np.column_stack([vectors, np.arange(60)])
        np.testing.assert_array_equal(all_of(opened), expected)
        for skip in (3, 17, 30):
            parts = list(opened.batches(skip))
            np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), expected[skip:])
            assert parts[0].passthrough["id"][0] == skip
        for columns in (["embedding"], [f"embedding_{i}" for i in range(4)]):
            np.testing.assert_array_equal(all_of(open_rows(path, columns=columns)), vectors)
        some = open_rows(path, columns=["embedding_2", "length", "embedding_0"])
        np.testing.assert_array_equal(all_of(some), expected[:, [2, 4, 0]])
        assert open_rows(path, drop=["embedding", "id"]).feature_names == ("length",)
        assert open_rows(path, drop=["embedding_1"], columns=["embedding"]).n_features == 3
        beside = next(open_rows(path, passthrough=["embedding"], columns=["length"]).batches())
        np.testing.assert_array_equal(np.stack(beside.passthrough["embedding"]), vectors[: len(beside)])
        assert fit_files(StreamingPCA(2), open_rows(path, columns=["embedding"])) == 60

    @pytest.mark.parametrize("layout", ["list", "fixed-size list"])
    @pytest.mark.parametrize("ending", [".parquet", ".arrow"])
    def test_missing_lists_and_elements(self, tmp_path, layout, ending):
        kind = pa.list_(pa.float32(), 3) if layout == "fixed-size list" else pa.list_(pa.float32())
        rows = [None, [1, None, 3], [4, 5, 6], None, [7, 8, 9]] * 10
        path = self.write_lists(tmp_path / f"texts{ending}", embedding=pa.array(rows, kind))
        expected = np.array([row or [None] * 3 for row in rows], float)
        np.testing.assert_array_equal(all_of(open_rows(path)), expected)
        parts = [batch.rows for batch in open_rows(path, batch_rows=3).batches(skip=19)]
        np.testing.assert_array_equal(np.concatenate(parts), expected[19:])

    @pytest.mark.parametrize("ending", [".parquet", ".arrow"])
    def test_lists_of_different_lengths(self, tmp_path, ending):
        rows = [None] + [[1.0, 2.0]] * 40 + [[1.0]] + [[1.0, 2.0]] * 20
        path = self.write_lists(tmp_path / f"texts{ending}", x=np.arange(62.0), v=pa.array(rows))
        for skip in (0, 30):
            with pytest.raises(FileFormatError) as caught:
                list(open_rows(path, batch_rows=4).batches(skip))
            assert str(caught.value) == (
                f"{path}, row 42: lists of v must all have 2 elements, as the first one, got 1; correct or "
                "empty the row, or leave the column out with drop=['v'] (--drop v)."
            )
        assert all_of(open_rows(path, drop=["v"])).shape == (62, 1)

    def test_lists_that_cannot_be_features(self, tmp_path):
        empty = self.write_lists(tmp_path / "a.parquet", v=pa.array([[], [1.0]]), x=[1.0, 2.0])
        with pytest.raises(FileFormatError, match=r"v contains lists without elements; .*drop=\['v'\]"):
            open_rows(empty)
        twice = self.write_lists(tmp_path / "b.parquet", v=pa.array([[1.0], [1.0]]), v_0=[1.0, 2.0])
        with pytest.raises(FileFormatError, match="v_0 appears twice"):
            open_rows(twice)
        single = self.write_lists(tmp_path / "b.parquet", v=pa.array([[1.0], [1.0]]), x=[1.0, 2.0])
        other = self.write_lists(tmp_path / "c.parquet", v=pa.array([[1.0, 2.0]]), x=[1.0])
        with pytest.raises(FileFormatError, match=r"v_1 is in .*c\.parquet and not in .*b\.parquet"):
            open_rows([other, single], drop=["x"])

    def test_private_lists_have_a_fixed_size(self, tmp_path):
        vectors = numbers(20, 4)
        path = self.write_lists(tmp_path / "a.parquet", v=self.lists(vectors, "list"))
        with pytest.raises(
            FileFormatError, match=r"v contains lists without a fixed size.*; write v as lists"
        ):
            open_rows(path, private=True)
        path = self.write_lists(tmp_path / "b.parquet", v=self.lists(vectors, "fixed-size list"))
        np.testing.assert_array_equal(all_of(open_rows(path, private=True)), vectors)

    def test_passthrough(self, tmp_path):
        opened = open_rows(self.people(tmp_path), passthrough=["name", "children"], columns=["height"])
        (batch,) = opened.batches()
        assert batch.rows.shape == (3, 1)
        assert batch.passthrough["name"].tolist() == ["Ada", "Bob", None]
        assert batch.passthrough["children"].tolist() == [2, None, 2**60]

    @pytest.mark.parametrize("kind", ["csv", "parquet", "xlsx", "jsonl"])
    def test_passthrough_is_not_in_the_rows(self, tmp_path, kind):
        path = written(tmp_path, DENSE, kind, numbers(5))
        opened = open_rows(path, passthrough=["age"])
        assert "age" not in opened.feature_names
        np.testing.assert_array_equal(all_of(opened), numbers(5)[:, :2])

    @pytest.mark.parametrize("kind", ["csv", "parquet", "xlsx", "jsonl", "h5ad"])
    def test_features_may_pass_through_if_they_are_named_as_columns(self, tmp_path, kind):
        rows = numbers(5)
        stored = sparse.csr_array(rows[:, [0, 0, 2]]) if kind == "h5ad" else rows
        path = written(tmp_path, SPARSE if kind == "h5ad" else DENSE, kind, stored)
        opened = open_rows(path, columns=["age", "height"], passthrough=["age"], batch_rows=2)
        assert opened.feature_names == ("age", "height")
        np.testing.assert_array_equal(all_of(opened), rows[:, [2, 0]])
        ages = np.concatenate([batch.passthrough["age"] for batch in opened.batches(skip=1)])
        np.testing.assert_array_equal(ages, rows[1:, 2])

    def test_passthrough_from_text_is_as_written(self, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("id,x,city\n007,1,Rome\n010,2,\n")
        opened = open_rows(path, passthrough=["id", "city"])
        assert opened.feature_names == ("x",)
        (batch,) = opened.batches(skip=1)
        assert batch.passthrough["id"].tolist() == ["010"]
        assert batch.passthrough["city"].tolist() == [""]

    @pytest.mark.parametrize("kind", ["h5ad", "zarr of AnnData"])
    def test_passthrough_from_obs(self, tmp_path, kind):
        path = written(tmp_path, DENSE, kind, numbers(5))
        opened = open_rows(
            path, passthrough=["obs_names", "depth", "kind", "rest"], columns=["age", "height"]
        )
        parts = list(opened.batches(skip=1))
        np.testing.assert_array_equal(parts[0].rows, numbers(5)[1:, [2, 0]])
        passthrough = {name: values.tolist() for name, values in parts[0].passthrough.items()}
        assert passthrough == {
            "obs_names": ["cell1", "cell2", "cell3", "cell4"],
            "depth": [1, 2, 3, 4],
            "kind": ["b", "t", None, "b"],
            "rest": [None, 2, None, 4],
        }

    def test_passthrough_from_npz(self, tmp_path):
        np.savez(tmp_path / "rows.npz", X=numbers(5), y=np.array(list("abcde")), other=np.zeros(9))
        (batch,) = open_rows(tmp_path / "rows.npz", passthrough=["y"]).batches()
        assert batch.passthrough["y"].tolist() == list("abcde")
        with pytest.raises(ValueError, match=r"unknown column 'other' in .*; it has y\."):
            open_rows(tmp_path / "rows.npz", passthrough=["other"])

    @pytest.mark.parametrize(
        ("wishes", "rule"),
        [
            (
                {"drop": ["weigth"]},
                r"unknown column 'weigth' in .*; did you mean 'weight'\? it has height, weight, age\.",
            ),
            ({"columns": ["x"]}, "unknown column 'x' in "),
            ({"drop": NAMES}, "at least one column must be left"),
        ],
    )
    def test_names_that_are_not_there(self, tmp_path, wishes, rule):
        with pytest.raises(ValueError, match=rule):
            open_rows(written(tmp_path, DENSE, "parquet", numbers()), **wishes)

    def test_no_names_to_choose_by(self, tmp_path):
        with pytest.raises(ValueError, match="has no column names; use a format"):
            open_rows(written(tmp_path, DENSE, "npy", numbers()), drop=["x"])

    def test_names_of_files_may_be_in_another_order(self, tmp_path):
        rows = numbers(10)
        pa.parquet.write_table(arrow(rows), tmp_path / "a.parquet")
        pa.parquet.write_table(arrow(rows[:, ::-1], NAMES[::-1]), tmp_path / "b.parquet")
        np.testing.assert_array_equal(all_of(open_rows(tmp_path)), np.vstack([rows, rows]))

    def test_files_with_other_columns(self, tmp_path):
        pa.parquet.write_table(arrow(numbers()), tmp_path / "a.parquet")
        pa.parquet.write_table(arrow(numbers(), ("height", "weight", "years")), tmp_path / "b.parquet")
        pa.parquet.write_table(arrow(numbers(), ("height", "size", "years")), tmp_path / "c.parquet")
        with pytest.raises(
            FileFormatError, match=r"age is in .*a\.parquet and not in .*b\.parquet; leave it"
        ):
            open_rows(tmp_path)
        with pytest.raises(FileFormatError, match=r"weight, age are in .*a\.parquet and not in"):
            open_rows([tmp_path / "a.parquet", tmp_path / "c.parquet"])
        (tmp_path / "c.parquet").unlink()
        assert open_rows(tmp_path, drop=["age", "years"]).feature_names == ("height", "weight")
        np.testing.assert_array_equal(
            all_of(open_rows(tmp_path, columns=["weight"])), np.tile(numbers()[:, [1]], (2, 1))
        )
        with pytest.raises(ValueError, match=r"unknown column 'age' in .*b\.parquet"):
            open_rows(tmp_path, columns=["age"])

    def test_files_of_other_widths(self, tmp_path):
        np.save(tmp_path / "a.npy", numbers())
        np.save(tmp_path / "b.npy", numbers()[:, :2])
        with pytest.raises(FileFormatError, match=r"3 unnamed in .*a\.npy and 2 unnamed in .*b\.npy"):
            open_rows(tmp_path)

    def test_one_precision_for_all_files(self, tmp_path):
        np.save(tmp_path / "a.npy", numbers(dtype="float32"))
        np.save(tmp_path / "b.npy", numbers(dtype="float64"))
        assert {batch.dtype for batch in open_rows(tmp_path)} == {np.dtype(np.float64)}

    @pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
    def test_a_column_without_values(self, tmp_path, kind):
        rows = numbers()
        rows[:, 1] = np.nan
        read = all_of(open_rows(written(tmp_path, DENSE, kind, rows)))
        assert np.isnan(read[:, 1]).all()
        assert len(read) == 100


class TestText:
    def write(self, tmp_path, text, name="rows.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    @pytest.mark.parametrize(
        ("text", "names", "rows"),
        [
            ("a,b\n1,2\n", ("a", "b"), [[1, 2]]),
            ("1,2\n3,4\n", None, [[1, 2], [3, 4]]),
            ("NA,2\n3,4\n", None, [[np.nan, 2], [3, 4]]),
            ("\ufeffa,b\n 1.5 ,true\n\n,false\n", ("a", "b"), [[1.5, 1], [np.nan, 0]]),
            ('"a, or b",c\n"1",2', ("a, or b", "c"), [[1, 2]]),
            ("\n\na,b\n1e3,-.5\r\nNaN,null\n", ("a", "b"), [[1000, -0.5], [np.nan, np.nan]]),
            ("a\n1\n2.5\n", ("a",), [[1], [2.5]]),
        ],
    )
    def test_names_or_numbers_in_the_first_line(self, tmp_path, text, names, rows):
        opened = open_rows(self.write(tmp_path, text))
        assert opened.feature_names == names
        np.testing.assert_array_equal(all_of(opened), rows)

    def test_names_that_are_numbers(self, tmp_path):
        path = self.write(tmp_path, "0,1,2\n5,6,7\n")
        with pytest.raises(FileFormatError, match=r"counts up.*header=True or header=False"):
            open_rows(path)
        assert open_rows(path, header=True).feature_names == ("0", "1", "2")
        assert all_of(open_rows(path, header=False)).shape == (2, 3)

    def test_the_index_that_pandas_writes(self, tmp_path):
        path = self.write(tmp_path, ",a,b\n0,5,6\n1,7,8\n")
        with pytest.raises(
            FileFormatError, match=r"column 1 has none; name it, or leave it out with drop=\[''\]"
        ):
            open_rows(path)
        np.testing.assert_array_equal(all_of(open_rows(path, drop=[""])), [[5, 6], [7, 8]])

    def test_as_pandas_reads_it(self, tmp_path):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(numbers(5000), columns=NAMES)
        frame["notes"] = 'two\nlines, and a "quote"'
        frame.to_csv(tmp_path / "rows.csv", index=False)
        opened = open_rows(tmp_path / "rows.csv", drop=["notes"])
        expected = pandas.read_csv(tmp_path / "rows.csv", float_precision="round_trip")
        np.testing.assert_array_equal(all_of(opened), expected[list(NAMES)])

    @pytest.mark.parametrize("name", ["rows.csv", "rows.txt", "rows.tsv", "rows.jsonl"])
    @pytest.mark.parametrize(
        ("ending", "compress"),
        [
            (".gz", gzip.compress),
            (".bz2", bz2.compress),
            (".zst", lambda text: pa.compress(text, "zstd", asbytes=True)),
        ],
    )
    def test_compressed(self, tmp_path, name, ending, compress):
        text = b"a\tb\n1\t2\n" if name != "rows.jsonl" else b'{"a": 1, "b": 2}\n'
        path = tmp_path / f"{name}{ending}"
        path.write_bytes(compress(text))
        np.testing.assert_array_equal(all_of(open_rows(path)), [[1, 2]])

    @pytest.mark.parametrize("path", ["-", ["-"]])
    def test_standard_input(self, monkeypatch, path):
        stdin = io.TextIOWrapper(io.BytesIO("größe;b\n1,5;2\n3;\n".encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        opened = open_rows(path)
        assert opened.feature_names == ("größe", "b")
        for _ in range(2):
            np.testing.assert_array_equal(all_of(opened), [[1.5, 2], [3, np.nan]])
        saved = opened._files[0].path
        assert saved.parent.stat().st_mode & 0o077 == 0
        del opened
        deadline = time.monotonic() + 10  # a thread that reads ahead may still end
        while saved.parent.exists() and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert not saved.parent.exists()

    def test_standard_input_is_alone_and_not_empty(self, monkeypatch, tmp_path):
        with pytest.raises(ValueError, match=r"standard input \(-\) must be the only path, got others"):
            open_rows(["-", written(tmp_path, DENSE, "csv", numbers())])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(FileFormatError, match="stdin contains no rows"):
            open_rows("-")

    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            (
                '{"x": 1}\n{"x": "secret"}\n',
                "row 2: values of x must all be of one type, got number and string",
            ),
            ('{"x": 1}\n{"x": secret}\n', "row 2: each line must contain one JSON object; correct the row"),
            ('[{"x": 1},\n{"x": 2}]\n', "row 1: each line must contain one JSON object"),
            (
                '{"x": 1}\n' * 300_000 + '{"x": "secret"}\n',
                "row 300001: values of x must all be of one type, got number and string",
            ),
            (
                '{"x": 1}\n{"x": 1}\n' + '{"x": "' + "secret" * 10**6 + '"}\n',
                r"lines must be shorter than \d+ bytes",
            ),
            ('{"x": 1, "y": {"z": 2}}\n', r"y contains values of type struct<z: int64>; encode it"),
        ],
    )
    def test_bad_lines_of_json(self, tmp_path, text, rule):
        path = self.write(tmp_path, text, "rows.jsonl")
        with pytest.raises(FileFormatError, match=rule) as caught:
            list(open_rows(path))
        assert "secret" not in str(caught.value)

    def test_json_lines(self, tmp_path):
        text = '{"name": "Ada", "x": 1, "v": [1, null]}\n{"x": 2.5, "new": 3}'
        path = self.write(tmp_path, text, "rows.jsonl")
        opened = open_rows(path, passthrough=["name"], drop=["new"])
        (batch,) = opened.batches()
        assert opened.feature_names == ("x", "v_0", "v_1")
        np.testing.assert_array_equal(batch.rows, [[1, 1, np.nan], [2.5, np.nan, np.nan]])
        assert batch.passthrough["name"].tolist() == ["Ada", None]
        with pytest.raises(FileFormatError, match=r"must not depend on its rows.*; convert it to Parquet"):
            open_rows(path, private=True)
        whole_then_not = '{"x": 1}\n' * 300_000 + '{"x": 2.5, "y": 1}\n'
        assert all_of(open_rows(self.write(tmp_path, whole_then_not, "rows.jsonl")))[-1] == 2.5

    def test_lines_longer_than_a_block(self, tmp_path, monkeypatch):
        monkeypatch.setattr("fedpca.readers.text.TEXT_BLOCK", 1000)
        rows = numbers(5, 300, seed=2)
        path = self.write(tmp_path, "\n".join(",".join(map(repr, row.tolist())) for row in rows))
        np.testing.assert_array_equal(all_of(open_rows(path)), rows)

    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            (
                "x,y\nsecret,4\nhidden,5\n",
                r"text from line 2; encode it as .*, or leave it out with drop=\['x'\] \(--drop x\)\.",
            ),
            ("x\nsecret\nhidden\n", "x contains text from line 2; encode it as numbers."),
            (
                "x,y\n1,2\n?,3\n5,4\n",
                r"x contains numbers and, in line 3, text; correct or empty the cells of x that are not "
                r"numbers, or list what stands for a missing value with na_values=\[\.\.\.\] .*, or leave it "
                r"out with drop=\['x'\] \(--drop x\)\.",
            ),
            (
                'x,y\n1,2\n"1,234.50",3\n',
                r"x contains numbers with thousands separators, from line 3; read x with thousands=','.*, or "
                r"leave it out with drop=\['x'\] \(--drop x\)\.",
            ),
            (
                "x,y,z\n1,hidden,2\n?,secret,3\n5,secret,4\n",
                r"correct or empty the cells of x that are not numbers, or list what stands for a missing "
                r"value with na_values=\[\.\.\.\] .*, and leave y out with drop=\['y'\] \(--drop y\)\.",
            ),
            (
                "secret,2\n3,4\n",
                "column 1 contains text from line 1; pass header=True .* if",
            ),
            ("1,2\n3\n", "line 2: expected 2 cells, got 1"),
            ("x,y\n" + "1,2\n" * 400_000 + "1,secret\n", "line 400002: y must be a number; correct"),
            ("x,y\n" + "1,2\n" * 400_000 + "1,2,secret\n", "line 400002: expected 2 cells, got 3"),
            ("x,y\n" + "true,2\n" * 400_000 + "secret,1\n", "line 400002: x must be a number"),
            ("x,x\n1,2\n", "x appears twice"),
            (
                "x;y\n1,500;2,555\n",
                "x, y contain numbers with thousands separators or decimal commas, from line 2; "
                "read x, y with thousands=',' .* or decimal=','",
            ),
            (
                "# secret\nx,y\n1,2\n",
                "line 2: expected 1 cell, got 2; correct the line, or pass comment='#' .* if lines",
            ),
        ],
    )
    def test_bad_lines_are_named_not_quoted(self, tmp_path, text, rule):
        path = self.write(tmp_path, text)
        with pytest.raises(FileFormatError, match=rule) as caught:
            list(open_rows(path))
        assert "secret" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None  # nor in a traceback

    def test_not_utf_8(self, tmp_path):
        (tmp_path / "rows.csv").write_bytes(b"gr\xf6\xdfe,b\n1,2\n")
        with pytest.raises(FileFormatError, match=r"is not a valid UTF-8 text file.* encoding='latin-1'"):
            open_rows(tmp_path / "rows.csv")
        assert open_rows(tmp_path / "rows.csv", encoding="latin-1").feature_names == ("größe", "b")
        with pytest.raises(FileFormatError, match="is not a valid UTF-8 text file"):
            open_rows(tmp_path / "rows.csv", encoding="ascii")

    @pytest.mark.slow
    def test_not_utf_8_far_down(self, tmp_path):
        (tmp_path / "rows.csv").write_bytes(b"name,b\n" + b"a,1\n" * 400_000 + b"\xf6,2\n")
        late = open_rows(tmp_path / "rows.csv", passthrough=["name"])
        with pytest.raises(FileFormatError, match=r"line 400002: name must be text in UTF-8; .*encoding="):
            list(late)
        with pytest.raises(FileFormatError, match=r"must be text in ascii; name its encoding, as in enc"):
            list(open_rows(tmp_path / "rows.csv", passthrough=["name"], encoding="ascii"))

    @pytest.mark.parametrize(
        ("name", "text", "given", "rows"),
        [
            ("a.csv", "x;y\n1.5;2\n;3\n", {}, [[1.5, 2], [np.nan, 3]]),
            ("a.csv", '"x, or z";y\n1,5;2\n1;-,25\n', {}, [[1.5, 2], [1, -0.25]]),
            ("a.csv", "1,5;2,5\n3;4e1\n", {}, [[1.5, 2.5], [3, 40]]),
            ("a.csv", "x\ty\n1\t2\n", {}, [[1, 2]]),
            ("a.csv", "x|y\n1|2\n", {}, [[1, 2]]),
            ("a.csv", "a,b;c,d;e\n1;2;3\n4;5;6\n", {}, [[1, 2, 3], [4, 5, 6]]),
            ("a.txt", "x y\n1 2\n", {}, [[1, 2]]),
            ("a.txt", "x\ty z\n1\t2\n", {}, [[1, 2]]),
            ("a.txt", "x\n1\n", {}, [[1]]),
            ("a.csv", "x:y\n1:2\n", {"delimiter": ":"}, [[1, 2]]),
            ("a.csv", "x;y\n1,500;2\n", {"decimal": ","}, [[1.5, 2]]),
            ("a.csv", "x;y\n1,500;2\n", {"thousands": ","}, [[1500, 2]]),
            ("a.csv", 'x,y\n"-1,234,567.5",2\n1,3\n', {"thousands": ","}, [[-1234567.5, 2], [1, 3]]),
            (
                "a.csv",
                "x;y\n1.234,5;-,5\n; NA\n",
                {"thousands": ".", "decimal": ","},
                [[1234.5, -0.5], [np.nan] * 2],
            ),
            ("a.csv", "x;y\n1 234;2\n", {"thousands": " "}, [[1234, 2]]),
            ("a.csv", "x,y\n?,-200\n-200.0,4\n", {"na_values": ["?", "-200"]}, [[np.nan] * 2, [np.nan, 4]]),
            ("a.csv", "x;y\n-9,5;3\n", {"na_values": ["-9,50"], "decimal": ","}, [[np.nan, 3]]),
            ("a.csv", "# a, b\n# c\nx,y\n1,2\n  # d,e\n3,4\n#", {"comment": "#"}, [[1, 2], [3, 4]]),
            ("a.csv", "x\n1\n//2\n3\n", {"comment": "//"}, [[1], [3]]),
        ],
    )
    def test_dialects(self, tmp_path, name, text, given, rows):
        np.testing.assert_array_equal(all_of(open_rows(self.write(tmp_path, text, name), **given)), rows)

    def test_wine_as_it_comes(self):
        path = shared_file("winequality-red.csv")
        opened = open_rows(path)
        assert opened.feature_names[:2] == ("fixed acidity", "volatile acidity")
        expected = np.loadtxt(path, delimiter=";", skiprows=1)
        np.testing.assert_array_equal(all_of(opened), expected)

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "cp1252"])
    def test_encodings(self, tmp_path, encoding):
        path = tmp_path / "rows.txt"
        path.write_bytes("größe\tb\n1\t2\n".encode(encoding))
        opened = open_rows(path, encoding=None if encoding == "utf-16" else encoding)
        assert opened.feature_names == ("größe", "b")
        np.testing.assert_array_equal(all_of(opened), [[1, 2]])

    @pytest.mark.slow
    def test_comments_in_a_long_file(self, tmp_path):
        lines = [f"{i},{-i}" if i % 1000 else f"#{i}" for i in range(200_000)]
        path = self.write(tmp_path, "\n".join(["x,y", *lines]))
        expected = [[i, -i] for i in range(200_000) if i % 1000]
        np.testing.assert_array_equal(all_of(open_rows(path, columns=["x", "y"], comment="#")), expected)

    @pytest.mark.parametrize(
        ("given", "rule"),
        [
            ({"delimiter": "::"}, "delimiter must be one character, such as ';', got '::'"),
            ({"delimiter": "\n"}, "delimiter must be one character"),
            ({"decimal": ""}, "decimal must be one character, such as ',', got ''"),
            ({"thousands": "0"}, "thousands must be one character"),
            ({"decimal": ",", "delimiter": ","}, "decimal and delimiter must differ, got ',' for both"),
            ({"decimal": ",", "thousands": ","}, "decimal and thousands must differ"),
            ({"comment": ""}, "comment must be the start of a line, such as '#', got ''"),
            (
                {"encoding": "utf-99"},
                "encoding must be one that Python knows, such as 'latin-1', got 'utf-99'",
            ),
        ],
    )
    def test_dialects_that_cannot_be(self, tmp_path, given, rule):
        with pytest.raises(ValueError, match=rule):
            open_rows(self.write(tmp_path, "x,y\n1,2\n"), **given)
        with pytest.raises(TypeError, match=r"na_values must be a list.* pass na_values=\['\?'\]"):
            open_rows(tmp_path / "rows.csv", na_values="?")

    def test_dialects_are_for_text(self, tmp_path):
        path = written(tmp_path, DENSE, "npy", numbers())
        with pytest.raises(ValueError, match=r"decimal is for text files, and .*rows\.npy is none"):
            open_rows(path, decimal=",")

    def test_a_checkpoint_depends_on_the_dialect(self, tmp_path):
        path = self.write(tmp_path, "x,y\n1,2\n")
        assert open_rows(path).fingerprint() != open_rows(path, na_values=["2"]).fingerprint()

    def test_a_late_cell_that_is_no_number_with_thousands_separators(self, tmp_path):
        path = self.write(tmp_path, "x,y\n" + '"1,000",2\n' * 200_000 + "secret,3\n")
        opened = open_rows(path, thousands=",")
        with pytest.raises(FileFormatError, match="line 200002: x must be a number; correct") as caught:
            list(opened)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        "cell",
        ["Rome"]
        + [
            pytest.param(cell, marks=pytest.mark.slow)
            for cell in ("7", "", "?", "1,5", "1e999", "2020-01-01", "\xff", 'a"b')
        ],
    )
    def test_no_private_row_decides_how_others_are_read(self, tmp_path, cell):
        for row in (1, 100_000, 200_000):
            lines = ["x;y", *["1.5;2"] * row, f"{cell};3", *["4;true"] * (200_001 - row)]
            (tmp_path / "rows.csv").write_bytes("\n".join([*lines, ""]).encode("latin-1"))
            rows = all_of(open_rows(tmp_path / "rows.csv", private=True))
            assert len(rows) == 200_002
            np.testing.assert_array_equal(rows[:row], np.tile([1.5, 2], (row, 1)))
            np.testing.assert_array_equal(rows[row], [{"7": 7, "1e999": np.inf}.get(cell, np.nan), 3])
            np.testing.assert_array_equal(rows[row + 1 :], np.tile([4, 1], (200_001 - row, 1)))

    @pytest.mark.parametrize(
        ("text", "given", "remedy"),
        [
            ("x:y\n1:2\n3:4\n", {}, ":"),
            ("1 2\n3 4\n", {}, " "),
            ("x;y\n1;2\n", {"delimiter": ","}, ";"),
            ("x;y\n1;2\n", {"delimiter": ",", "private": True}, ";"),
            ("x^y\n1^2\n", {"private": True}, "^"),
        ],
    )
    def test_an_unknown_delimiter_is_named_if_found(self, tmp_path, text, given, remedy):
        path = self.write(tmp_path, text)
        with pytest.raises(
            FileFormatError, match="delimiter must be in the first line, and ',' is not"
        ) as caught:
            open_rows(path, **given)
        assert f"; pass delimiter={remedy!r} (" in str(caught.value)
        assert open_rows(path, **given | {"delimiter": remedy}).n_features == 2

    def test_one_column_has_no_delimiter(self, tmp_path):
        assert all_of(open_rows(self.write(tmp_path, "body mass\n1\n2\n"))).tolist() == [[1], [2]]
        assert all_of(open_rows(self.write(tmp_path, "body mass\n1\n2\n"), private=True)).tolist() == [
            [1],
            [2],
        ]
        with pytest.raises(FileFormatError, match="note contains text"):
            open_rows(self.write(tmp_path, "note\nhello world\nyou\n"))

    def test_bytes_that_are_no_text(self, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_bytes(b"x,y\n1,2\n3,\xff\n")
        rule = r"text that is not UTF-8; encode it as .*, or leave it out with drop=\['y'\] \(--drop y\)\."
        with pytest.raises(FileFormatError, match=rule):
            open_rows(path)
        assert all_of(open_rows(path, drop=["y"])).tolist() == [[1], [3]]
        path.write_bytes(b"x,y\n" + b"1,2\n" * 300_000 + b'3,"4\n' + b"1,2\n" * 2_000_000)
        with pytest.raises(
            FileFormatError, match=r"after line \d{6}: cannot be parsed; look for an open quote"
        ):
            all_of(open_rows(path))

    def test_private_dialects_come_from_header_and_options(self, tmp_path):
        path = self.write(tmp_path, "x;y\n1,5;2\n-9;2\n")
        np.testing.assert_array_equal(all_of(open_rows(path, private=True)), [[np.nan, 2], [-9, 2]])
        rows = all_of(open_rows(path, private=True, decimal=",", na_values=["-9"]))
        np.testing.assert_array_equal(rows, [[1.5, 2], [np.nan, 2]])
        for first in ("1,2", "1.5;2,5", "Rome;3"):
            path = self.write(tmp_path, f"{first}\n3;4\n")
            with pytest.raises(
                FileFormatError, match=r"names only, because nothing is .* pass header=True .* if"
            ):
                open_rows(path, private=True)
        rows = all_of(open_rows(path, private=True, header=False, delimiter=";", width=2))
        np.testing.assert_array_equal(rows, [[np.nan, 3], [3, 4]])

    def test_a_stream_of_bytes_without_lines(self, tmp_path, monkeypatch):
        monkeypatch.setattr("fedpca.readers.text_stream.MAX_LINE", 1000)
        with pytest.raises(FileFormatError, match="lines must be shorter than 1000 bytes"):
            open_rows(self.write(tmp_path, "1" * 2000))


class TestNumpy:
    def test_other_arrays(self, tmp_path):
        path = tmp_path / "a.npy"
        for array, rule in [
            (np.zeros(3), r"must have rows and columns, got shape \(3,\)"),
            (np.zeros((3, 0)), "must have columns"),
            (np.zeros((3, 2), complex), "must contain real numbers, got complex128"),
            (np.array([["a", "b"]]), "must contain real numbers, got <U1"),
            (np.array([[{}, None]]), "must contain real numbers, got object"),
        ]:
            np.save(path, array)
            with pytest.raises(FileFormatError, match=rule):
                open_rows(path)

    def test_nothing_is_unpickled(self, tmp_path):
        np.savez(tmp_path / "a.npz", X=numbers(2), ids=np.array([{}, None]))
        with pytest.raises(FileFormatError, match="pickled objects are not loaded"):
            list(open_rows(tmp_path / "a.npz", passthrough=["ids"]).batches())

    def test_several_tables(self, tmp_path):
        np.savez(tmp_path / "a.npz", train=numbers(), test=numbers())
        with pytest.raises(FileFormatError, match="must contain one table, got train, test"):
            open_rows(tmp_path / "a.npz")


class TestPlink:
    def write(self, tmp_path, n_people=23, n_variants=17, **properties):
        genotypes = np.random.default_rng(5).integers(0, 3, (n_people, n_variants)).astype(np.float32)
        genotypes[::5, ::3] = np.nan
        path = tmp_path / "study.bed"
        bed_reader.to_bed(path, genotypes, properties=properties, num_threads=1)
        return path, genotypes

    @pytest.mark.slow
    @given(size=st.integers(1, 30), skip=st.integers(0, 23), held=st.integers(1, 90))
    def test_as_bed_reader_reads_it(self, tmp_path_factory, size, skip, held):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedpca.genetics.bed._PACKED_BYTES", held)
            patch.setattr("fedpca.genetics.bed._MAPPED_BYTES", held)
            path, genotypes = self.write(tmp_path_factory.mktemp("plink"))
            opened = open_rows(path, batch_rows=size)
            parts = [batch.rows for batch in opened.batches(skip)]
        assert opened.dtype == np.float32
        with bed_reader.open_bed(path, num_threads=1) as bed:
            np.testing.assert_array_equal(bed.read(), genotypes)
            assert opened.feature_names == tuple(f"{name}_A1" for name in bed.sid)
        np.testing.assert_array_equal(np.concatenate([np.empty((0, 17)), *parts]), genotypes[skip:])

    def test_people_passed_through_and_some_variants(self, tmp_path):
        _, genotypes = self.write(tmp_path, iid=[f"person{i}" for i in range(23)])
        (batch,) = open_rows(tmp_path, columns=["sid3_A1", "sid1_A1"], passthrough=["iid"]).batches()
        np.testing.assert_array_equal(batch.rows, genotypes[:, [2, 0]])
        assert batch.passthrough["iid"][7] == "person7"

    def test_variants_without_ids(self, tmp_path):
        path, _ = self.write(tmp_path, sid=["."] * 17, bp_position=list(range(17)))
        assert open_rows(path).feature_names[3] == "0:3:A2:A1"

    def test_files_that_count_different_alleles_have_different_names(self, tmp_path):
        path, _ = self.write(tmp_path, allele_1=["A"] * 16 + ["G"], allele_2=["G"] * 16 + ["A"])
        assert open_rows(path).feature_names[15:] == ("sid16_A", "sid17_G")

    def test_a_variant_with_several_alleles_keeps_its_id(self, tmp_path):
        path, _ = self.write(tmp_path, sid=["rs1"] * 17, allele_1=list("ACDEFGHIJKLMNPQRS"))
        assert open_rows(path).feature_names[1] == "rs1_C"

    def test_a_variant_that_comes_twice(self, tmp_path):
        path, _ = self.write(tmp_path, sid=["rs1"] * 17)
        with pytest.raises(FileFormatError, match=r"0:0:A2:A1 appears twice.*plink2 --rm-dup"):
            open_rows(path)

    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            (lambda path: path.write_bytes(path.read_bytes()[:-1]), "must have 105 bytes for 23 people"),
            (lambda path: path.write_bytes(b"chr1\t1\t2\n"), "must be a PLINK .bed file"),
            (lambda path: path.with_suffix(".fam").unlink(), r"study\.fam is missing beside the \.bed"),
            (
                lambda path: path.with_suffix(".bim").write_text("1 2\n"),
                r"study\.bim, line 1: expected 6 fields",
            ),
        ],
    )
    def test_bad_files(self, tmp_path, change, rule):
        path, _ = self.write(tmp_path)
        change(path)
        with pytest.raises(FileFormatError, match=rule):
            open_rows(path)


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "rule"),
        [
            ("none.csv", r"none\.csv: no such file"),
            ("none*.csv", r"no file matches .*none\*\.csv"),
            ("empty", "is an empty folder"),
            ("a.csv/rows.csv", "cannot read .*: Not a directory"),
            ("loop.csv", "cannot read .*: Too many levels"),
        ],
    )
    def test_nothing_to_read(self, tmp_path, path, rule):
        (tmp_path / "empty").mkdir()
        (tmp_path / "a.csv").write_text("1\n")
        (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
        with pytest.raises(OSError, match=rule):
            open_rows(tmp_path / path)

    def test_a_file_given_twice(self, tmp_path):
        path = written(tmp_path, DENSE, "csv", numbers())
        other = tmp_path / "link.csv"
        other.symlink_to(path)
        for paths in ([path, path], [path, tmp_path / "*.csv"], tmp_path, [other, path]):
            with pytest.raises(ValueError, match=r"files must be given once, .*rows\.csv"):
                open_rows(paths)
        other.unlink()
        assert len(all_of(open_rows([path]))) == len(numbers())

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="everything is readable to root")
    def test_no_permission(self, tmp_path):
        path = written(tmp_path, DENSE, "csv", numbers())
        path.chmod(0)
        with pytest.raises(PermissionError, match=r"cannot read .*rows\.csv: Permission denied"):
            open_rows(path)

    def test_one_format_a_time(self, tmp_path):
        written(tmp_path, DENSE, "csv", numbers())
        written(tmp_path, DENSE, "parquet", numbers())
        with pytest.raises(
            FileFormatError, match=r"one format, got .*rows\.csv, .*rows\.parquet; select one"
        ):
            open_rows(tmp_path)
        assert open_rows(f"{tmp_path}/*.csv").n_features == 3

    def test_other_files(self, tmp_path):
        written(tmp_path, DENSE, "parquet", numbers())
        (tmp_path / "_SUCCESS").touch()
        (tmp_path / ".rows.parquet.crc").touch()
        assert open_rows(tmp_path).n_rows == 100
        (tmp_path / "notes.md").touch()
        with pytest.raises(FileFormatError, match=r"notes\.md must end in one of \.csv, "):
            open_rows(tmp_path)

    def test_an_empty_file(self, tmp_path):
        (tmp_path / "rows.parquet").touch()
        with pytest.raises(FileFormatError, match=r"rows\.parquet contains no rows"):
            open_rows(tmp_path / "rows.parquet")

    @pytest.mark.parametrize("private", [False, True])
    @pytest.mark.parametrize("end", ["", "\n", "\r\n"])
    def test_a_header_alone(self, tmp_path, end, private):
        (tmp_path / "a.csv").write_bytes(f"x,y{end}".encode())
        with pytest.raises(FileFormatError, match=r"a\.csv contains no rows\.$"):
            list(open_rows(tmp_path / "a.csv", private=private).batches())
        (tmp_path / "b.csv").write_text("x,y\n1,2\n")
        both = open_rows([tmp_path / "a.csv", tmp_path / "b.csv"], private=private)
        np.testing.assert_array_equal(np.concatenate([batch.rows for batch in both.batches()]), [[1, 2]])

    def test_a_name_with_brackets(self, tmp_path):
        path = written(tmp_path, DENSE, "npy", numbers(), name="rows [1]")
        assert open_rows(path).n_rows == 100

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
    def test_a_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "rows.csv")
        with pytest.raises(FileFormatError, match="is a pipe or device; save it first"):
            open_rows(tmp_path / "rows.csv")

    @pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
    def test_a_file_that_grows(self, tmp_path, kind):
        path = written(tmp_path, DENSE, kind, numbers())
        batches = open_rows(path, batch_rows=10).batches()
        next(batches)
        with path.open("ab") as file:
            file.write(b"1,2,3\n")
        with pytest.raises(FileFormatError, match="changed while it was read"):
            list(batches)

    def test_a_file_that_is_replaced_between_passes(self, tmp_path):
        opened = open_rows(written(tmp_path, DENSE, "npy", numbers()))
        list(opened)
        written(tmp_path, DENSE, "npy", numbers(200))
        with pytest.raises(FileFormatError, match="changed while it was read"):
            list(opened)
        (tmp_path / "rows.npy").unlink()
        with pytest.raises(FileNotFoundError, match="was removed since it was opened"):
            list(opened)

    @pytest.mark.parametrize("skip", [101, -1, 1.5])
    def test_more_to_skip_than_there_is(self, tmp_path, skip):
        for kind in ("csv", "npy"):
            with pytest.raises((ValueError, TypeError), match=r"skip must be .* got skip="):
                list(open_rows(written(tmp_path, DENSE, kind, numbers())).batches(skip))


class TestFitFiles:
    ROWS = np.random.default_rng(8).normal(size=(5000, 3)) * [5, 2, 1]

    def reader(self, tmp_path, kind="parquet", rows=ROWS, batch_rows=100):
        return open_rows(written(tmp_path, DENSE, kind, rows), batch_rows=batch_rows)

    @pytest.mark.parametrize("kind", ["parquet", "csv", "npy"])
    def test_is_the_fit_of_the_rows_with_their_names(self, tmp_path, kind):
        reader, pca = self.reader(tmp_path, kind), StreamingPCA(2)
        assert fit_files(pca, reader) == 5000
        expected = StreamingPCA(2).fit(self.ROWS)
        np.testing.assert_allclose(pca.singular_values_, expected.singular_values_)
        assert pca.summary_.feature_names == pca.subspace_.feature_names == reader.feature_names
        scores = np.concatenate([pca.transform(batch) for batch in reader.batches()])
        np.testing.assert_allclose(np.abs(scores), np.abs(expected.transform(self.ROWS)), atol=1e-9)

    def test_a_private_release_has_the_names(self, tmp_path):
        pca = PrivatePCA(epsilon=1.0, delta=1e-6, bound=10.0, center=None, evaluate=False)
        fit_files(pca, self.reader(tmp_path))
        assert pca.release().feature_names == NAMES

    @pytest.mark.parametrize("kind", SPARSE)
    def test_sparse_rows(self, tmp_path, kind):
        rows = sparse.random_array((50, 3), density=0.4, format="csr", rng=3)
        reader, pca = open_rows(written(tmp_path, SPARSE, kind, rows), batch_rows=7), StreamingPCA(2)
        fit_files(pca, reader)
        np.testing.assert_allclose(pca.mean_, rows.mean(axis=0))
        assert sum(len(pca.transform(batch)) for batch in reader.batches()) == 50

    def test_names_and_widths_that_differ_are_refused(self, tmp_path):
        pca = StreamingPCA(2)
        fit_files(pca, self.reader(tmp_path))
        mean = pca.mean_
        swapped = open_rows(tmp_path, columns=NAMES[::-1])
        for use in (pca.partial_fit, pca.transform):
            with pytest.raises(ValueError, match="feature names of the fit, in the same order"):
                use(next(swapped.batches()))
        with pytest.raises(ValueError, match="must have 3 features, got 2"):
            pca.partial_fit(Batch(np.zeros((4, 2))))
        np.testing.assert_array_equal(pca.mean_, mean)
        pca.fit(self.ROWS[:, ::-1])  # names are forgotten with the rest
        assert pca.transform(next(swapped.batches())).shape[1] == 2

    def test_a_stopped_fit_resumes_from_its_checkpoint(self, tmp_path):
        reader, saved = self.reader(tmp_path), tmp_path / "so-far"
        stops = iter([False, False, True])
        assert fit_files(StreamingPCA(2), reader, checkpoint=saved, should_stop=lambda: next(stops)) == 33
        pca = StreamingPCA(2)
        assert fit_files(pca, reader, checkpoint=saved) == pca.n_samples_seen_ == 5000
        np.testing.assert_allclose(pca.mean_, self.ROWS.mean(axis=0))
        assert pca.subspace_.feature_names == NAMES
        for other in (StreamingPCA(1), StreamingPCA(2, whiten=True)):
            with pytest.raises(ValueError, match="same settings; delete it"):
                fit_files(other, reader, checkpoint=saved)

    def test_a_resumed_fit_counts_forgotten_and_skipped_rows(self, tmp_path):
        rows = np.random.default_rng(0).normal(size=(300, 4))
        rows[10:40] = np.nan
        np.save(tmp_path / "rows.npy", rows)
        reader, saved, stops = (
            open_rows(tmp_path / "rows.npy", batch_rows=50),
            tmp_path / "saved",
            iter([False, False, True]),
        )
        stopped = StreamingPCA(2, forget=0.5)
        fit_files(stopped, reader, checkpoint=saved, should_stop=lambda: next(stops))
        assert stopped.n_samples_seen_ == 150
        pca, whole = StreamingPCA(2, forget=0.5), StreamingPCA(2, forget=0.5)
        assert fit_files(pca, reader, checkpoint=saved) == pca.n_samples_seen_ == 300
        assert fit_files(whole, reader) == 300
        assert pca.noise_variance_ == pytest.approx(whole.noise_variance_)

    def test_a_checkpoint_of_files_that_changed_is_refused(self, tmp_path):
        saved = tmp_path / "so-far"
        fit_files(StreamingPCA(2), self.reader(tmp_path), checkpoint=saved, should_stop=lambda: True)
        fingerprint = open_rows(tmp_path / "rows.parquet").fingerprint()
        reader = self.reader(tmp_path, rows=self.ROWS + 1)
        assert reader.fingerprint() != fingerprint
        with pytest.raises(ValueError, match="same files, unchanged"):
            fit_files(StreamingPCA(2), reader, checkpoint=saved)

    def test_private_sums_are_not_written_to_a_checkpoint(self, tmp_path):
        pca, saved = (
            PrivatePCA(epsilon=1.0, delta=1e-6, bound=10.0, center=None, evaluate=False),
            tmp_path / "so-far",
        )
        with pytest.raises(ValueError, match="cannot be combined with privacy"):
            fit_files(pca, self.reader(tmp_path), checkpoint=saved)
        assert not saved.exists()

    def test_a_column_without_values_is_named_at_the_end(self, tmp_path):
        rows = self.ROWS.copy()
        rows[1:, 0], rows[:, 1] = np.nan, np.nan
        pca = StreamingPCA(2)
        with pytest.warns(UserWarning, match="^weight has no observed value: .* leave it out"):
            fit_files(pca, self.reader(tmp_path, rows=rows))
        assert pca.summary_.observed[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["csv", "parquet", "feather", "npy", "npz, compressed", "npy by columns", "h5ad"]
)
def test_memory_is_that_of_a_batch(tmp_path, kind):
    n_features = 20 if kind == "csv" else 5  # pyarrow reads up to 20 MB of text ahead, whatever there is
    rows = np.random.default_rng(0).integers(0, 9, (400_000, n_features)).astype("float64")  # 64 or 16 MB
    ending, write = DENSE[kind]
    if kind == "parquet":
        pa.parquet.write_table(arrow(rows, names_for(rows)), tmp_path / "rows.parquet")  # one row group
    elif kind == "feather":
        pa.feather.write_feather(arrow(rows, names_for(rows)), str(tmp_path / "rows.feather"))
    else:
        write(tmp_path / f"rows{ending}", rows)
    opened = open_rows(tmp_path / f"rows{ending}", batch_rows=10_000)  # a fortieth
    total = np.zeros(n_features)
    held = 0
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        for batch in opened:
            total += batch.sum(axis=0)
            held = max(held, pa.total_allocated_bytes() - before)
        traced = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(total, rows.sum(axis=0))
    assert traced + held < rows.nbytes / 2  # 65,536 rows of Feather are decompressed at a time


def test_libraries_are_loaded_when_they_are_needed():
    code = (
        "import sys, fedpca\n"
        "before = set(sys.modules)\n"  # scikit-learn may load pandas, and that pyarrow
        "import fedpca.readers\n"
        "assert not {'pyarrow', 'h5py', 'zarr'} & (set(sys.modules) - before), 'loaded too early'\n"
        "assert not {'h5py', 'zarr'} & before, 'loaded too early'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("kind", "package"), [("csv", "pyarrow"), ("h5ad", "h5py"), ("zarr", "zarr")])
def test_a_library_that_is_not_there(tmp_path, monkeypatch, kind, package):
    path = written(tmp_path, DENSE, kind, numbers())
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"reading .* needs {package}: pip install 'fedpca\[files\]'"):
        open_rows(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix])
def test_what_anndata_itself_writes(tmp_path, ending, layout):
    anndata = pytest.importorskip("anndata", reason="its files are also written by hand, above")
    pandas = pytest.importorskip("pandas")
    obs = pandas.DataFrame(
        {"kind": pandas.Categorical(["b", None, "t"]), "age": [1, 2, 3], "note": ["x", "y", "z"]},
        index=["one", "two", "three"],
    )
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    table = anndata.AnnData(layout(rows), obs=obs, var=pandas.DataFrame(index=list("ABCD")))
    path = tmp_path / f"cells{ending}"
    table.write_h5ad(path) if ending == ".h5ad" else table.write_zarr(path)
    opened = open_rows(path, passthrough=["obs_names", "kind", "age", "note"])
    (batch,) = opened.batches()
    assert opened.feature_names == tuple("ABCD")
    np.testing.assert_array_equal(all_of(opened), rows)
    assert batch.passthrough["kind"].tolist() == ["b", None, "t"]
    assert batch.passthrough["note"].tolist() == ["x", "y", "z"]
    assert batch.passthrough["obs_names"].tolist() == ["one", "two", "three"]
    assert batch.passthrough["age"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("part", ["c/0/0", "c/1/1"])
def test_a_changed_value_changes_the_fingerprint_of_a_zarr_folder(tmp_path, part):
    path = written(tmp_path, DENSE, "zarr", numbers(16))
    before = open_rows(path)
    assert open_rows(path).fingerprint() == before.fingerprint()
    stored = path / part
    stored.write_bytes(stored.read_bytes())  # as long as before
    assert open_rows(path).fingerprint() != before.fingerprint()
    with pytest.raises(FileFormatError, match="changed while it was read"):
        list(before)
