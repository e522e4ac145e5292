"""A line of private text is one row, whatever it contains, and no line decides how others are read."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpca import Privacy, PrivatePCA, fit_files
from fedpca.errors import FileFormatError
from fedpca.readers import open_rows

pytestmark = pytest.mark.slow  # all of it together

pytest.importorskip("pyarrow", reason="the files extra")


def write(tmp_path, text, name="rows.csv"):
    path = tmp_path / name
    path.write_text(text, newline="")
    return path


def all_of(rows):
    return np.concatenate(list(rows))


# Both of the line that is replaced and of all others: whoever wrote them may have used any of these.
PIECES = [
    *'";,\r17 x#\x00\x0b\x0c\x1c\xff\x85\xa0',
    "NA",
    "1e999",
    "nan(1)",
    "1_0",
    "1,234",
    "true",
    "+",
    ".",
]
LINE = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "comment": st.just("#"),
        "encoding": st.sampled_from(["latin-1", "cp932", "iso2022_jp"]),
        "thousands": st.just(","),
        "na_values": st.just(["7"]),
    },
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINE, max_size=6),
    line=LINE,
    other=LINE,
    place=st.integers(0, 6),
    n_cells=st.integers(1, 3),
    header=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    given_as=GIVEN,
)
@pytest.mark.long
def test_to_replace_a_private_line_changes_no_other_row(
    tmp_path, lines, line, other, place, n_cells, header, end, given_as
):
    place = min(place, len(lines))

    def rows_with(replaced):
        names = [";".join("abc"[:n_cells])] * header
        text = end.join([*names, *lines[:place], replaced, *lines[place:], ""])
        (tmp_path / "rows.csv").write_bytes(text.encode("latin-1"))
        width = None if header else n_cells
        opened = open_rows(
            tmp_path / "rows.csv", private=True, header=header, width=width, delimiter=";", **given_as
        )
        return all_of(opened)

    one, another = rows_with(line), rows_with(other)
    assert one.shape == another.shape == (len(lines) + 1, n_cells)
    np.testing.assert_array_equal(np.delete(one, place, 0), np.delete(another, place, 0))


@pytest.mark.parametrize("record", ["65,120", '"65,120', '"', '65,"'])
@pytest.mark.parametrize("company", [["70,150", '71",180', "68,140"], [*["70"] * 20, '71",180'], ['"', '"']])
def test_an_open_quote_swallows_no_record(tmp_path, record, company):
    path = write(tmp_path, "\n".join(["height,weight", record, *company, ""]))
    rows = all_of(open_rows(path, private=True))
    assert len(rows) == 1 + len(company)
    alone = [
        all_of(open_rows(write(tmp_path, f"h,w\n{each}\n"), private=True)) for each in [record, *company]
    ]
    np.testing.assert_array_equal(rows, np.concatenate(alone))


def test_a_release_counts_the_lines(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{x:.2f},{y:.2f}" for x, y in rng.normal(size=(400, 2))]
    lines[200] = '71",1.0'
    for record in ("0.5,0.5", '"0.5,0.5', ""):
        lines[199] = record
        path = write(tmp_path, "\n".join(["x,y", *lines, ""]))
        privacy = Privacy(0.1, 1e-5, bound=3.0, center=None, evaluate=False)
        pca = PrivatePCA(1, **privacy.settings)
        fit_files(pca, open_rows(path, private=True))
        assert pca.release().certificate.records == 400


def test_the_number_of_private_lines_can_be_stated(tmp_path):
    """The last line may be empty and without an end: then nothing in the file tells that there is one."""
    for last in ("3,4", ""):
        opened = open_rows(write(tmp_path, f"x,y\n1,2\n{last}"), private=True, n_rows=2)
        rows = all_of(opened)
        np.testing.assert_array_equal(rows, [[1, 2], [3, 4] if last else [np.nan] * 2])
    with pytest.raises(FileFormatError, match="at most the 1 rows that n_rows states"):
        all_of(open_rows(write(tmp_path, "x,y\n1,2\n3,4\n"), private=True, n_rows=1))
    for wrong, rule in (
        ({"n_rows": 3}, "n_rows is for private rows"),
        ({"width": 3}, "width is for private"),
    ):
        with pytest.raises(ValueError, match=rule):
            open_rows(tmp_path / "rows.csv", **wrong)


def test_the_width_of_private_lines_without_names_is_stated(tmp_path):
    two, three = "1,2", "1,2,3"
    for mine in (two, three):
        path = write(tmp_path, "\n".join([*[two] * 24, *[three] * 24, mine, ""]))
        with pytest.raises(FileFormatError, match=r"how many cells .*; pass width=\.\.\. \(--width N\)\."):
            open_rows(path, private=True, header=False)
        assert all_of(open_rows(path, private=True, header=False, width=2)).shape == (49, 2)
        assert all_of(open_rows(path, private=True, width=2)).shape == (49, 2)
    with pytest.raises(ValueError, match="width is for private rows without a header"):
        open_rows(write(tmp_path, "x,y\n1,2\n"), private=True, header=True, width=2)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-7", "cp500"])
def test_private_text_extends_ascii(tmp_path, encoding):
    path = tmp_path / "rows.csv"
    path.write_bytes("größe,x\n1,2\n".encode(encoding))
    with pytest.raises(FileFormatError, match=r"must be in an encoding that extends ASCII, .*as UTF-8\."):
        open_rows(path, private=True, encoding=encoding)


def test_private_names_are_in_one_line(tmp_path):
    for record in ("1,2", '1",2'):
        path = write(tmp_path, f'x,"y\n{record}\n3,4\n')
        with pytest.raises(FileFormatError, match="all names in one line, but a quote in it is open"):
            open_rows(path, private=True)


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


def test_private_cells_have_no_line_breaks(tmp_path):
    path = write(tmp_path, 'x,note\n1,"a\nb ""c"""\n3,"e ""f"", g"\n')
    (batch,) = open_rows(path, private=True, passthrough=["note"]).batches()
    np.testing.assert_array_equal(batch.rows, [[np.nan], [np.nan], [3]])
    assert batch.passthrough["note"].tolist() == ["", "", 'e "f", g']


def test_private_lines_before_the_header_are_no_rows(tmp_path):
    path = write(tmp_path, "# of 2025\n\nx,y\n1,2\n")
    np.testing.assert_array_equal(all_of(open_rows(path, private=True, comment="#")), [[1, 2]])


def test_private_names_must_be_text(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("größe,x\n1,2\n".encode("latin-1"))
    with pytest.raises(FileFormatError, match="not a valid UTF-8 text file"):
        open_rows(path, private=True)
    path.write_bytes("größe,x\n1,2\n".encode("utf-16"))
    with pytest.raises(FileFormatError, match="extends ASCII, got utf-16; save it as UTF-8"):
        open_rows(path, private=True)


def test_no_private_row_decides_the_encoding_without_names(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xff\xfe,2\n3,4\n")
    rows = all_of(open_rows(path, private=True, header=False, width=2))
    np.testing.assert_array_equal(rows, [[np.nan, 2], [3, 4]])
    path.write_bytes(b"\n\n")
    assert all_of(open_rows(path, private=True, header=False, width=2)).shape == (2, 2)


@pytest.mark.parametrize("line", ["", "1,2,3", '"1,2'])
def test_a_line_that_cannot_be_parsed_does_not_stop_a_private_fit(tmp_path, line):
    rows = np.random.default_rng(0).normal(size=(400, 2))
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    rows[200], lines[200] = np.nan, line
    path = write(tmp_path, "\n".join(["x,y", *lines]))
    privacy = Privacy(50.0, 1e-5, bound=3.0)
    pca = PrivatePCA(1, **privacy.settings)
    assert fit_files(pca, open_rows(path, private=True)) == 400
    expected = PrivatePCA(1, **privacy.settings).fit(rows)
    assert pca.release().count == expected.release().count
    if line:
        with pytest.raises(FileFormatError, match="line 202: expected 2 cells"):
            all_of(open_rows(path))
