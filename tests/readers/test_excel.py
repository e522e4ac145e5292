"""Excel files are read as other tables are, or one line says why not."""

import datetime
from pathlib import Path

import numpy as np
import pytest

from fedpca.errors import FileFormatError
from fedpca.readers import open_rows

openpyxl = pytest.importorskip("openpyxl", reason="it writes the files that are read")
pytest.importorskip("python_calamine", reason="the excel extra")
pytest.importorskip("pyarrow", reason="the excel extra")


def write(path, *rows, **sheets):
    """The rows of the first sheet, and those of others by name."""
    book = openpyxl.Workbook()
    book.active.title = "First"
    for sheet, contents in (("First", rows), *sheets.items()):
        cells = book[sheet] if sheet in book.sheetnames else book.create_sheet(sheet)
        for row in contents:
            cells.append(row)
    book.save(path)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.xlsx"


def all_of(rows):
    return np.concatenate(list(rows))


def test_names_gaps_and_numbers_of_all_kinds(path):
    write(path, ["x", "y", "z"], [1, 2.5, True], [None, "NA", False], [], ["3", " 1e3 ", 1])
    opened = open_rows(path)
    assert (opened.feature_names, opened.n_rows, opened.dtype) == (("x", "y", "z"), 3, np.float64)
    np.testing.assert_array_equal(all_of(opened), [[1, 2.5, 1], [np.nan, np.nan, 0], [3, 1000, 1]])


def test_the_same_rows_as_pandas_reads(path):
    pandas = pytest.importorskip("pandas")
    rows = np.random.default_rng(0).normal(size=(500, 7)) * np.logspace(-8, 8, 7)
    rows[::9, 2] = np.nan
    frame = pandas.DataFrame(rows, columns=[f"f{i}" for i in range(7)])
    frame.to_excel(path, index=False)
    np.testing.assert_array_equal(all_of(open_rows(path, batch_rows=64)), pandas.read_excel(path).to_numpy())


def test_the_sheet_is_the_first_or_the_one_named(path):
    write(path, ["x"], [1], Other=[["y", "z"], [2, 3]])
    assert open_rows(path).feature_names == ("x",)
    other = open_rows(path, sheet="Other")
    assert all_of(other).tolist() == [[2, 3]]
    assert other.fingerprint() != open_rows(path).fingerprint()
    with pytest.raises(FileFormatError, match=r"rows\.xlsx has no sheet 'third'; it has First, Other\."):
        open_rows(path, sheet="third")


def test_sheets_are_of_excel_files(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    with pytest.raises(ValueError, match=r"sheet is for Excel files, and .*a\.npy is none; leave it out"):
        open_rows(tmp_path / "a.npy", sheet="First")


def test_a_table_may_start_anywhere(path):
    book = openpyxl.Workbook()
    for cell, value in {"C3": "x", "D3": "y", "C5": 1, "D5": 2, "D6": 4}.items():
        book.active[cell] = value
    book.save(path)
    np.testing.assert_array_equal(all_of(open_rows(path)), [[1, 2], [np.nan, 4]])


def test_cells_outside_of_the_table_are_named(path):
    write(path, ["sizes of 2025"], ["x", "y"], [1, 2])
    with pytest.raises(
        FileFormatError, match=r"row 2: cells must be below a name; .* skip_lines=1 .* if the rows above are"
    ):
        open_rows(path)


def test_without_names(path):
    write(path, [1, 2], [3, None, 5])
    opened = open_rows(path)
    assert opened.feature_names is None
    np.testing.assert_array_equal(all_of(opened), [[1, 2, np.nan], [3, np.nan, 5]])


def test_years_as_names(path):
    write(path, [2023, 2024, 2025], [1, 2, 3])
    assert open_rows(path, header=True).feature_names == ("2023", "2024", "2025")
    write(path, [1, 2, 3], [1, 2, 3])
    with pytest.raises(FileFormatError, match=r"counts up.* pass header=True or header=False"):
        open_rows(path)


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (["a", "b", "c"], r"bad contains text from row 2; encode it as numbers, or leave it out with drop"),
        ([datetime.date(2025, 1, 1)] * 3, "bad contains dates or times from row 2; encode it as numbers"),
        ([datetime.time(1), "b", 3], "bad contains dates or times and text from row 2; encode"),
        (
            [1, "?", 3],
            r"numbers and, in row 3, text; correct or empty .* with na_values=\[\.\.\.\] .*, or leave",
        ),
    ],
)
def test_columns_that_are_not_numeric(path, cells, rule):
    write(path, ["bad", "x"], *([cell, i] for i, cell in enumerate(cells)))
    with pytest.raises(FileFormatError, match=rule):
        open_rows(path)
    assert all_of(open_rows(path, drop=["bad"])).tolist() == [[0], [1], [2]]
    with pytest.warns(UserWarning, match="left out because not numeric: bad"):
        assert open_rows(path, numeric_only=True).feature_names == ("x",)
    np.testing.assert_array_equal(
        all_of(open_rows(path, private=True, n_rows=3)),
        [[cell if isinstance(cell, int) else np.nan, i] for i, cell in enumerate(cells)],
    )


def test_passthrough_is_text(path):
    write(path, ["id", "day", "x"], [7, datetime.date(2025, 1, 31), 1], [None, None, 2], ["a7", 1.5, 3])
    (batch,) = open_rows(path, passthrough=["id", "day"]).batches()
    assert batch.passthrough["id"].tolist() == ["7", None, "a7"]
    assert batch.passthrough["day"].tolist() == ["2025-01-31", None, "1.5"]


def test_codes_and_numbers_written_as_text(path):
    write(path, ["x", "y"], ["1.234,5", -999], ["2,5", 7])
    rows = all_of(open_rows(path, decimal=",", thousands=".", na_values=["-999"]))
    np.testing.assert_array_equal(rows, [[1234.5, np.nan], [2.5, 7]])
    with pytest.raises(ValueError, match=r"delimiter is for text files, and .* is none"):
        open_rows(path, delimiter=";")


def test_ids_are_noticed(path):
    write(path, ["number", "x"], *([i, i % 3 + 0.5] for i in range(20)))
    with pytest.warns(UserWarning, match="number may be an id"):
        open_rows(path)


@pytest.mark.parametrize("row", [[], ["a"], [1, 2, 3, "beyond"], [None, datetime.date(2025, 1, 1)], [1, "?"]])
def test_no_private_row_decides_how_others_are_read(path, row):
    write(path, ["x", "y"], [1, 2], row, [3, 4])
    rows = all_of(open_rows(path, private=True, n_rows=3))
    np.testing.assert_array_equal(rows[[0, 2]], [[1, 2], [3, 4]])
    assert rows.shape == (3, 2)
    with pytest.raises(FileFormatError, match="private rows would decide them; leave columns out"):
        open_rows(path, private=True, numeric_only=True, n_rows=3)


@pytest.mark.parametrize("header", [None, False])
def test_private_columns_have_names(path, header):
    write(path, [1, 2], [3, 4])
    with pytest.raises(
        FileFormatError, match=r"first row must contain names, .* pass header=True .* if it does"
    ):
        open_rows(path, private=True, header=header, n_rows=1)
    assert open_rows(path, private=True, header=True, n_rows=1).n_features == 2


def test_files_without_a_table(path):
    with pytest.raises(FileFormatError, match=r"contains no rows\."):
        open_rows(write(path))
    with pytest.raises(FileFormatError, match=r"contains no rows\."):
        all_of(open_rows(write(path, ["x", "y"])))
    Path(path).write_bytes(b"x,y\n1,2\n")
    with pytest.raises(FileFormatError, match="not a valid Excel file"):
        open_rows(path)


def test_the_command_line(path, monkeypatch):
    from command_line import invoke

    monkeypatch.chdir(path.parent)
    sizes = np.random.default_rng(0).normal(size=(50, 2)).tolist()
    write(path, ["notes"], Sizes=[["x", "y"], *sizes])
    result = invoke(["fit", "rows.xlsx", "--sheet", "Sizes", "-o", "m.safetensors"])
    assert result.exit_code == 0, result.stderr
    scores = ["transform", "m.safetensors", "rows.xlsx", "--sheet", "Sizes", "-o", "s.csv"]
    assert invoke(scores).exit_code == 0
    assert invoke(["fit", "rows.xlsx", "-o", "n.safetensors"]).exit_code == 1
