"""The form of a private record decides nothing: in lists of Spark, as dictionaries, in sheets."""

import numpy as np
import pytest

from fedpca import PrivatePCA

pa = pytest.importorskip("pyarrow", reason="the files extra")


def arrays(rows):
    return pa.RecordBatch.from_arrays([pa.array(rows, pa.list_(pa.float64()))], names=["rows"])


def vectors(rows):
    """As Spark keeps vectors: dense ones as lists, sparse ones as (size, {index: value})."""
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    structs = [
        None
        if row is None
        else {"type": 1, "size": None, "indices": None, "values": row}
        if isinstance(row, list)
        else {"type": 0, "size": row[0], "indices": list(row[1]), "values": list(row[1].values())}
        for row in rows
    ]
    return pa.RecordBatch.from_arrays([pa.array(structs, kind)], names=["rows"])


@pytest.mark.parametrize(
    ("made", "others", "record"),
    [
        *((arrays, [[1.0, 2.0]] * 4, record) for record in ([1.0], [], None, [1.0, 2.0, 3.0], [None, None])),
        *(
            (vectors, [[1.0, 2.0], (2, {1: 5.0}), [3.0, 4.0], (2, {})], record)
            for record in ([1.0], None, (3, {0: 1.0}), (1, {}), [1.0] * 3)
        ),
    ],
)
def test_no_row_of_spark_decides_how_others_are_read(made, others, record):
    from fedpca.federation.engines import spark_rows

    for place in range(5):
        rows = [*others[:place], record, *others[place:]]
        found = np.concatenate(list(spark_rows.read_private([made(rows)], 2)))
        expected = np.concatenate(list(spark_rows.read_private([made(others)], 2)))
        assert np.isnan(found[place]).all()
        np.testing.assert_array_equal(np.delete(found, place, 0), expected)
    assert not np.isnan(expected).any()


def test_no_row_by_name_decides_what_a_private_stream_learns():
    pandas = pytest.importorskip("pandas")
    first = pandas.DataFrame(np.random.default_rng(0).normal(size=(50, 2)), columns=["x", "y"])

    def private():
        return PrivatePCA(1, epsilon=1.0, delta=1e-5, bound=3.0, center=None)

    with pytest.raises(ValueError, match="no row may decide on the features; begin with partial_fit of a fr"):
        private().learn_one({"x": 1.0, "y": 2.0})
    pca = private().partial_fit(first)
    for row in ({"x": 10**400, "y": -(10**400)}, {"x": "secret", "z": 1.0}, {}, {"x": None, "y": [1]}):
        pca.learn_one(row)
    assert pca.release().certificate.records == 54


def test_an_empty_last_row_of_a_sheet_counts(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    from fedpca.readers import open_rows

    def sheet(rows):
        book = openpyxl.Workbook()
        for row in (["a", "b"], *rows):
            book.active.append(row)
        book.save(tmp_path / "rows.xlsx")
        return tmp_path / "rows.xlsx"

    others = [[1.0, 2.0]] * 4
    for record in ([None, None], [3.0, 4.0], ["?"], [3.0, None]):
        for place in range(5):
            path = sheet([*others[:place], record, *others[place:]])
            opened = open_rows(path, private=True, n_rows=5, passthrough=["a"])
            rows = np.concatenate([batch.rows for batch in opened.batches()])
            assert (opened.n_rows, rows.shape) == (5, (5, 1))
            np.testing.assert_array_equal(np.delete(rows, place, 0), [[2.0]] * 4)
            parts = [len(batch.passthrough["a"]) for batch in opened.batches(skip=2)]
            assert sum(parts) == 3
    with pytest.raises(ValueError, match=r"does not tell how many private rows it has.*; pass n_rows="):
        open_rows(path, private=True)
    with pytest.raises(ValueError, match="must have at most the 4 rows that n_rows states, and has more"):
        open_rows(path, private=True, n_rows=4)
    more = path.rename(tmp_path / "more.xlsx")
    with pytest.raises(ValueError, match="must be in one file"):
        open_rows([sheet(others), more], private=True)
