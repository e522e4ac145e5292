"""A line of private text is one row, whatever it contains, and no line decides how others are read."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpca import Privacy, StreamingPCA
from fedpca.errors import FileFormatError
from fedpca.readers import fit_files, open_rows

pytestmark = pytest.mark.slow  # all of it together

pytest.importorskip("pyarrow", reason="the files extra")


def write(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text, newline="")
    return path


def all_of(rows):
    return np.concatenate(list(rows))


LINE = st.text('";,\r17 x#\xff\x00\x1c', max_size=9)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    line=LINE,
    before=st.integers(0, 3),
    cell=st.sampled_from(["7", '"7"', "'7"]),
    n_cells=st.integers(1, 3),
    header=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    given_as=st.fixed_dictionaries(
        {},
        optional={"comment": st.just("#"), "encoding": st.just("latin-1"), "thousands": st.just(",")},
    ),
)
@pytest.mark.long
def test_a_private_line_is_one_row_and_changes_no_other(
    tmp_path, line, before, cell, n_cells, header, end, given_as
):
    good = ";".join([cell] * n_cells)
    lines = [*[";".join("abc"[:n_cells])] * header, *[good] * before, line, *[good] * 5]
    (tmp_path / "rows.csv").write_bytes(end.join(lines).encode("latin-1"))
    rows = all_of(open_rows(tmp_path / "rows.csv", private=True, header=header, delimiter=";", **given_as))
    assert rows.shape == (before + 6, n_cells)
    others = np.delete(rows, before, axis=0)
    np.testing.assert_array_equal(others, np.full_like(others, np.nan if cell == "'7" else 7))


@pytest.mark.parametrize(
    "line",
    ["1", "1,2,3", "", "   ", '"1,2', '1,"2', "#1,2", "1\r2,3", "1" * 2**19 + ",2", '"' * 2**19],
    ids=lambda line: repr(line[:8]),
)
@pytest.mark.parametrize("row", [0, 150_000, 299_999])
def test_a_private_line_that_cannot_be_parsed_is_a_row_of_missing_values(tmp_path, line, row):
    lines = ["x,y", *["1,2"] * 300_000]
    lines[row + 1] = line
    path = write(tmp_path, "\n".join(lines) + "\n")
    rows = all_of(open_rows(path, private=True, comment="#"))
    assert np.flatnonzero(np.isnan(rows).all(axis=1)).tolist() == [row]
    assert rows.shape == (300_000, 2)
    np.testing.assert_array_equal(np.delete(rows, row, axis=0), np.tile([1, 2], (299_999, 1)))


def test_private_cells_with_line_breaks(tmp_path):
    path = write(tmp_path, 'x,note\n1,"a\n\nb ""c"""\n2,"d\n\n3,"e"\n4,"f\r\ng"\n')
    (batch,) = open_rows(path, private=True, passthrough=["note"]).batches()
    np.testing.assert_array_equal(batch.rows, [[1], [np.nan], [np.nan], [3], [4]])
    assert batch.passthrough["note"].tolist() == ['a\n\nb "c"', "", "", "e", "f\ng"]


def test_private_lines_before_the_header_are_no_rows(tmp_path):
    path = write(tmp_path, "# of 2025\n\nx,y\n1,2\n")
    np.testing.assert_array_equal(all_of(open_rows(path, private=True, comment="#")), [[1, 2]])


def test_private_names_must_be_text(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("größe,x\n1,2\n".encode("latin-1"))
    with pytest.raises(FileFormatError, match="not a valid UTF-8 text file"):
        open_rows(path, private=True)
    path.write_bytes("größe,x\n1,2\n".encode("utf-16"))
    assert open_rows(path, private=True).feature_names == ("größe", "x")


def test_no_private_row_decides_the_encoding_without_names(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xff\xfe,2\n3,4\n")
    rows = all_of(open_rows(path, private=True, header=False))
    np.testing.assert_array_equal(rows, [[np.nan, 2], [3, 4]])
    path.write_bytes(b"\n\n")
    with pytest.raises(FileFormatError, match="contains no rows"):
        open_rows(path, private=True, header=False)


@pytest.mark.parametrize("line", ["", "1,2,3", '"1,2'])
def test_a_line_that_cannot_be_parsed_does_not_stop_a_private_fit(tmp_path, line):
    rows = np.random.default_rng(0).normal(size=(400, 2))
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    rows[200], lines[200] = np.nan, line
    path = write(tmp_path, "\n".join(["x,y", *lines]))
    privacy = Privacy(50.0, 1e-5, bound=3.0)
    pca = StreamingPCA(1, privacy=privacy, random_state=0)
    assert fit_files(pca, open_rows(path, private=True)) == 400
    expected = StreamingPCA(1, privacy=privacy, random_state=0).fit(rows)
    assert pca.release().count == expected.release().count
    if line:
        with pytest.raises(FileFormatError, match="line 202: expected 2 cells"):
            all_of(open_rows(path))
