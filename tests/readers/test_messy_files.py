"""Tables as people have them, through the command line: what is read, what is said, and that advice works."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

pa = pytest.importorskip("pyarrow", reason="the files extra")
pytest.importorskip("pyarrow.parquet")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("always")]  # the command line shows warnings


def advised(said, *names):
    """The options of these names that a message advises."""
    found = re.findall(r" \((--[^()]+)\)", said)
    assert found, said
    return " ".join(option for option in found if option.removeprefix("--").partition(" ")[0] in names)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in a folder of its own, and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments, fails=False):
        result = invoke(arguments)
        assert bool(result.exit_code) == fails, result.output
        return result.output

    return command


def write(name, text, encoding="utf-8"):
    with open(name, "w", encoding=encoding, newline="") as file:
        file.write(text)


def lines(n_cells, n_rows=12):
    rows = np.random.default_rng(0).normal(size=(n_rows, n_cells))
    return "".join(",".join(f"{x:.3f}" for x in row) + "\n" for row in rows)


def rows_of(path, **given):
    from fedpca.readers import open_rows

    return np.concatenate(list(open_rows(path, **given)))


@pytest.mark.parametrize(
    "header",
    [
        "2001,2002,2003,2004",
        "1990,1995,2000,2010",
        "2020,2019,2018,2017",
        "2001,2003,2002,1999",
        "2001.0,2002.0,2003.0,2004.0",
        "5,10,15,20",
        "400.5,401.0,401.5,402.0",
        ",2001,2002,2003",
    ],
)
def test_names_that_may_be_years_are_asked_about(run, header):
    write("a.csv", f"{header}\n{lines(4)}")
    assert "(--header or --no-header)" in run("fit", "a.csv", fails=True)
    assert "of 12 rows" in run("fit", "a.csv", "--header", *(["--drop", ""] if header[0] == "," else []))
    assert run("fit", "a.csv", "--no-header", "--force").count("of 13 rows") == 1


@pytest.mark.parametrize(
    "header",
    [
        "country,1990,1995,2000",
        "country,1,2,3",
        "country,2019,2020",
        "country,0,1",
        "0,1",
        "2019,2020",
    ],
)
def test_years_beside_text_and_two_names_are_asked_about(run, header):
    """Else columns of text are left out, and their names with them: years are a row like any other."""
    is_text, n = header.startswith("country"), len(re.findall(r"\d+", header))
    write("a.csv", header + "\n" + "".join(f"{'c,' * is_text}{line}\n" for line in lines(n).split()))
    left_out = ["--numeric-only"] * is_text
    assert "(--header or --no-header)" in run("fit", "a.csv", *left_out, fails=True)
    assert "of 12 rows" in run("fit", "a.csv", "--header", *left_out)


def test_years_above_what_might_be_years(run):
    write("a.csv", "1990,1995,2000\n1874,1932,1861\n1911,1820,2007\n")
    assert "(--header or --no-header)" in run("fit", "a.csv", fails=True)
    write("b.csv", "1874,1932,1961\n1811,1820,1907\n1801,1830,1850\n")  # born, married, died
    assert "of 3 rows" in run("fit", "b.csv")


def test_wavelengths_as_names_are_asked_about(run):
    write("a.csv", "1100.2,1103.4,1106.9,1110.1,1113.7,1116.8,1120.2,1123.3\n" + lines(8))
    assert "(--header or --no-header)" in run("fit", "a.csv", fails=True)
    write("b.csv", "1,2,4,5,7,9,10,12\n1,3,4,6,7,8,9,11\n2,3,4,5,6,7,8,9\n2,2,4,4,6,6,8,9\n")
    assert "of 4 rows" in run("fit", "b.csv", "-n", "1")  # running totals


def test_decimal_commas_without_a_header(run):
    write("a.csv", "1,5;2,5;3,0\n2,5;1,0;4,5\n7,0;1,25;9,5\n")
    assert "2 components of 3 rows" in run("fit", "a.csv")


@pytest.mark.parametrize(
    "text", ["4,5,6\n7,8,9\n9,1,4\n", "5,9,3\n2,2,2\n4,4,1\n", "1990,7\n2000,8\n1,2\n", "0,1\n2,5\n9,3\n"]
)
def test_numbers_in_the_first_line_that_are_no_names(run, text):
    write("a.csv", text)
    assert "of 3 rows" in run("fit", "a.csv")


def test_cells_of_blanks_and_missing_values_of_pandas(run):
    write("a.csv", "a,b,c\n1,2,3\n ,3.5,None\n4,   ,<NA>\n2,7,4\n")
    nan = np.nan
    np.testing.assert_array_equal(rows_of("a.csv"), [[1, 2, 3], [nan, 3.5, nan], [4, nan, nan], [2, 7, 4]])
    assert "of 4 rows" in run("fit", "a.csv")


@pytest.mark.parametrize("gap", ["\t", " NA ", "\u00a0", " \u2007", "None ", " " * 40, "  ?"])
def test_blanks_around_what_is_missing(run, gap):
    write("a.csv", f"a,b\n1,2\n{gap},3.5\n 4 ,1\n2,7\n")
    np.testing.assert_array_equal(rows_of("a.csv", na_values=["?"]), [[1, 2], [np.nan, 3.5], [4, 1], [2, 7]])


def test_all_columns_with_the_same_problem_have_the_same_advice(run):
    names = [f"v{i}" for i in range(12)]
    write("a.csv", ",".join(names) + "\n" + lines(12) + ",".join(["?"] * 11 + ["1"]) + "\n")
    said = run("fit", "a.csv", fails=True)
    assert "and leave" not in said
    assert "v7 and 3 more contain numbers and, in line 14, text; correct" in said
    assert "--na-values" in said
    assert "of 13 rows" in run("fit", "a.csv", "--na-values", "?")


def test_names_with_blanks_and_commas_can_be_pasted(run):
    write("a.csv", 'id, gram,"Name, Country",x,y\na,b,c,1,2\na,b,c,3,4\nb,c,d,3,1\n')
    remedy = advised(run("fit", "a.csv", fails=True), "drop")
    assert "of 3 rows" in run("fit", "a.csv", *shlex.split(remedy))
    assert "of 3 rows" in run("fit", "a.csv", "--columns", "x,y", "-o", "b.safetensors")
    run("transform", "b.safetensors", "a.csv", "--keep", '" gram"', "-o", "s.csv")


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("1.001,000;2\n2.040,500;3\n1.100,250;1\n", ";"),
        ("1'001.50;2\n2’040.5;3\n12;1\n", ";"),
        ("1\u00a0001,50;2\n2\u202f040,5;3\n12;1\n", ";"),
        ('"1,001.5",2\n"2,040.25",3\n12,1\n', ","),
    ],
)
def test_advice_on_thousands_works_as_it_is_printed(run, text, delimiter):
    write("a.csv", f"area{delimiter}b\n{text}")
    said = run("fit", "a.csv", fails=True)
    assert "line 2" in said
    options = advised(said, "thousands", "decimal")
    assert "of 3 rows" in run("fit", "a.csv", "--scale", "std", *shlex.split(options))
    run("transform", "model.safetensors", "a.csv", "-o", "s.csv")  # the model knows how its rows were read
    run("report", "model.safetensors", "--rows", "a.csv")


def test_separators_and_other_text_in_one_column(run):
    write("a.csv", 'area,b\n"1,001.5",1\n"2,001,001.25",2\n-,5\n"1,500.0",7\n')
    said = run("fit", "a.csv", fails=True)
    assert "read area with thousands=',' (--thousands ','), and correct" in said
    assert "--na-values VALUES" in said
    assert "of 4 rows" in run("fit", "a.csv", "--thousands", ",", "--na-values", "-")


@pytest.mark.parametrize(
    ("cells", "options"),
    [
        (["1.001,500", "2.002,25"], "--thousands . --decimal ,"),
        (["1,5", "2,25"], "--decimal ,"),
        (["1 500.5", "2\u00a0250"], "--thousands space"),
    ],
)
def test_numbers_as_text_in_a_workbook(run, cells, options):
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    for row in (["area", "b"], *([cell, i] for i, cell in enumerate(cells)), [3, 7]):
        book.active.append(row)
    book.save("a.xlsx")
    found = advised(run("fit", "a.xlsx", fails=True), "thousands", "decimal")
    assert shlex.split(found) == shlex.split(options)
    assert "of 3 rows" in run("fit", "a.xlsx", "--scale", "std", *shlex.split(options))


def test_columns_by_number_without_a_header(run):
    write("a.csv", "".join(f"t{i},{line}\n" for i, line in enumerate(lines(4).splitlines())))
    said = run("fit", "a.csv", fails=True)
    assert "--numeric-only" in said
    assert "4 components of 12 rows" in run("fit", "a.csv", "--numeric-only")
    assert "3 components of 12 rows" in run("fit", "a.csv", "--columns", "2,4-5", "-o", "b.safetensors")
    assert "3 components of 12 rows" in run("fit", "a.csv", "--drop", "1,3", "-o", "c.safetensors")
    run("transform", "b.safetensors", "a.csv", "--keep", "1", "-o", "s.csv")
    assert Path("s.csv").read_text().startswith('"column 1","pc1","pc2","pc3"\n')
    assert "numbers 1 to 5" in run("fit", "a.csv", "--columns", "2,4-6", "-o", "d.safetensors", fails=True)
    run("report", "b.safetensors", "--rows", "a.csv", "--keep", "1")


def test_lines_above_the_names(run):
    write("a.csv", f"Sizes of 2025\n\na,b\n{lines(2, 5)}")
    said = run("fit", "a.csv", fails=True)
    assert "line 3: expected 1 cell, got 2" in said
    option = advised(said, "skip-lines")
    assert "of 5 rows" in run("fit", "a.csv", *shlex.split(option))
    run("transform", "model.safetensors", "a.csv", "-o", "s.csv")
    write("b.csv", "a,b\n\n1,2\n\n\n3\n")
    assert "line 6: expected 2 cells, got 1" in run("fit", "b.csv", "--force", fails=True)


@pytest.mark.parametrize(
    ("title", "skipped"), [("Sizes, of 2025\n\n", 2), ("Sizes,,\n,,\n", 2), ("sep=,\n", 1)]
)
def test_titles_with_commas(run, title, skipped):
    write("a.csv", f"{title}a,b,c\n{lines(3, 5)}")
    option = advised(run("fit", "a.csv", fails=True), "skip-lines")
    assert "of 5 rows" in run("fit", "a.csv", *shlex.split(option.replace("N", str(skipped))))
    run("transform", "model.safetensors", "a.csv", "-o", "s.csv")


def test_columns_by_number_color_and_name_clients(run):
    write("a.csv", "".join(f"t{i % 2},{line}\n" for i, line in enumerate(lines(4).splitlines())))
    run("fit", "a.csv", "--columns", "2-4")
    run("report", "model.safetensors", "--rows", "a.csv", "--color", "1", "--keep", "5,1")
    assert "column 1" in Path("report.html").read_text()
    run("report", "model.safetensors", "--rows", "a.csv", "--color", "2", "--force")
    assert "2 clients" in run("simulate", "a.csv", "--client", "1", "--columns", "2-4", "--dropouts", "0")


def test_no_group_of_thousands_begins_with_zero(run):
    write("a.csv", "a;b\n0,280;1\n1,250;2\n-0,500;5\n")
    np.testing.assert_array_equal(rows_of("a.csv"), [[0.28, 1], [1.25, 2], [-0.5, 5]])
    write("b.csv", 'a,b\n"0,280",1\n"1,250",2\n"1,500",5\n')
    said = run("fit", "b.csv", "--thousands", ",", fails=True)  # 280 would be wrong, and nobody would see it
    assert "a contains numbers and, in line 2, text" in said


def test_a_model_keeps_the_options_but_not_where_they_mean_nothing(run):
    write("a.csv", "a;b\n1,5;2\n2,5;1\n3,0;4\n")
    run("fit", "a.csv", "--decimal", ",", "--delimiter", ";", "--na-values", "-9")
    pa.parquet.write_table(pa.table({"a": [1.5, 2.0], "b": [1.0, 2.0]}), "b.parquet")
    run("transform", "model.safetensors", "b.parquet", "-o", "s.csv")
    write("c.csv", "a,b\n1.5,2\n")
    run("transform", "model.safetensors", "c.csv", "--delimiter", ",", "--decimal", ".", "-o", "t.csv")
    run("merge", "model.safetensors", "-o", "merged.safetensors")
    run("package", "model.safetensors", "-o", "package")
    from fedpca.summaries import model_file

    assert model_file.read("model.safetensors")[2]["reading"] == {
        "delimiter": ";",
        "decimal": ",",
        "na_values": ["-9"],
    }
    for leaves in ("merged.safetensors", "package/model.safetensors"):
        assert "reading" not in model_file.read(leaves)[2]


def test_other_sheets_are_named(run):
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    book.active.append(["note"])
    book.active.append(["see the other sheet"])
    sheet = book.create_sheet("Sizes 2025")
    for row in (["a", "b"], [1, 2], [2, 5], [4, 4]):
        sheet.append(row)
    book.save("a.xlsx")
    option = advised(run("fit", "a.xlsx", fails=True), "sheet")
    assert "of 3 rows" in run("fit", "a.xlsx", *shlex.split(option))
    run("transform", "model.safetensors", "a.xlsx", "-o", "s.csv")


def test_titles_and_empty_sheets_of_a_workbook(run):
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    sheet = book.create_sheet("Sizes")
    for row in (["Sizes of 2025"], [], ["a", "b"], [1, 2], [2, 5], [4, 4]):
        sheet.append(row)
    book.save("a.xlsx")
    option = advised(run("fit", "a.xlsx", fails=True), "sheet")
    said = run("fit", "a.xlsx", *shlex.split(option), fails=True)
    skip = advised(said, "skip-lines")
    assert "of 3 rows" in run("fit", "a.xlsx", *shlex.split(option), *shlex.split(skip))
    run("transform", "model.safetensors", "a.xlsx", "-o", "s.csv")


def test_names_that_are_there_twice(run):
    write("a.csv", "mean,mean,x\n1,2,3\n2,3,1\n4,4,2\n")
    said = run("fit", "a.csv", fails=True)
    assert "mean appears twice" in said
    options = advised(said, "skip-lines", "no-header")
    assert "of 3 rows" in run("fit", "a.csv", *shlex.split(options), "--columns", "1,3")
    write("b.csv", "mean,area,mean,area\n1,2,3,4\n")
    assert "mean, area appear twice" in run("fit", "b.csv", "-o", "b.safetensors", fails=True)


def test_infinity_is_found(run):
    write("a.csv", "a,b\n\n1,2\ninf,3\n2,2\n4,1\n")
    said = run("fit", "a.csv", fails=True)
    assert "a.csv, line 4: a contains infinity" in said
    option = advised(said, "na-values")
    assert "of 4 rows" in run("fit", "a.csv", *shlex.split(option))
    for command in (
        ["transform", "model.safetensors", "a.csv", "-o", "s.csv"],
        ["scale", "a.csv", "-o", "s.safetensors"],
    ):
        assert "a.csv, line 4: a contains infinity" in run(*command, "--na-values", "?", fails=True)
    report = ["report", "model.safetensors", "--rows", "a.csv", "--na-values", "?"]
    assert "a.csv, line 4: a contains infinity" in run(*report, fails=True)
    write("b.csv", "site,a,b\nx,1,2\nx,2,3\ny,inf,2\ny,4,1\n")
    assert "b.csv, line 4: a contains infinity" in run("simulate", "b.csv", "--client", "site", fails=True)


def test_infinity_in_a_workbook_has_the_number_of_its_row(run):
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    for row in ([], ["a", "b"], [1, 2], [], ["inf", 3], [2, 2]):
        book.active.append(row)
    book.save("a.xlsx")
    assert "a.xlsx, row 5: a contains infinity" in run("fit", "a.xlsx", fails=True)


def test_fewer_components_than_asked_for_are_a_warning(run):
    write("a.csv", "a,b\n1,2\n2,5\n4,4\n")
    said = run("fit", "a.csv", "-n", "3")
    assert "only 2" in said
    assert "2 components of 3 rows" in said


def test_text_alone_has_advice(run):
    write("a.csv", "a,b\ny,n\nn,y\n")
    assert "encode columns of text as numbers" in run("fit", "a.csv", "--numeric-only", fails=True)


def test_scores_of_float32_rows_are_float32(run):
    rows = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    pa.parquet.write_table(pa.table({name: rows[:, i] for i, name in enumerate("abc")}), "a.parquet")
    run("fit", "a.parquet", "-n", "2")
    run("transform", "model.safetensors", "a.parquet", "-o", "s.parquet")
    assert {str(kind) for kind in pa.parquet.read_schema("s.parquet").types} == {"float"}


def test_a_map_of_rounding_errors_is_not_drawn(run):
    write("a.csv", f"a,b,c\n{lines(3)},,\n")
    run("fit", "a.csv")
    run("report", "model.safetensors", "--rows", "a.csv")
    assert "There is no outlier map" in Path("report.html").read_text()
    run("fit", "a.csv", "-n", "2", "--force")
    run("report", "model.safetensors", "--rows", "a.csv", "--force")
    assert "There is no outlier map" not in Path("report.html").read_text()


@pytest.mark.parametrize("form", ["2012/{month}/{day:02}", "{day}.{month}.2012", "{day:02}.{month:02}.2012"])
def test_dates_with_slashes_or_points_are_times(form):
    from fedpca.plot.groups import as_ramp, as_texts

    dates = as_texts([form.format(month=1 + i % 12, day=1 + i) for i in range(24)])
    assert as_ramp(dates)[0] == "time"
    assert as_ramp(as_texts([f"2012/13/{i}" for i in range(24)])) is None


@pytest.mark.parametrize("name", ["t.csv", "t.txt"])
@pytest.mark.parametrize("text", ["a   b\n1    2\n30   4\n", "  a   b\n  1   2\n 30   4\n"])
def test_cells_aligned_by_blanks_have_advice_that_works(run, name, text):
    write(name, text)
    said = run("fit", name, fails=True)
    assert "aligned by several blanks" in said
    command = re.search("awk .*'1?", said.partition(", or pass")[0])[0]
    Path("c.csv").write_bytes(subprocess.run([*shlex.split(command), name], capture_output=True).stdout)
    np.testing.assert_array_equal(rows_of("c.csv"), [[1, 2], [30, 4]])


def test_an_empty_cell_between_blanks_is_missing(run):
    write("t.txt", "1 2  4\n3 4 5 6\n")
    np.testing.assert_array_equal(rows_of("t.txt"), [[1, 2, np.nan, 4], [3, 4, 5, 6]])


@pytest.mark.parametrize("private", [[], ["--epsilon", "1", "--delta", "1e-6"]])
def test_lines_of_old_macs_are_named(run, private):
    write("t.csv", "a,b\r1,2\r3,5\r")
    said = run("fit", "t.csv", *private, fails=True)
    assert "carriage return alone" in said
    assert "tr '\\r' '\\n'" in said


@pytest.mark.parametrize("drop", ["''", "'',b"])
def test_columns_that_are_left_out_may_share_a_name(run, drop):
    twice = [",,b,b,", "1,x,2,3,", "2,y,3,4,"]
    n_cells = 4 if "b" in drop else 2
    starts = [",".join(each.split(",")[:n_cells]) + "," for each in twice]
    write(
        "t.csv", "".join(start + end for start, end in zip(starts, ["a,c\n", "4,1\n", "6,3\n"], strict=True))
    )
    run("fit", "t.csv", "--drop", *shlex.split(drop))
    np.testing.assert_array_equal(rows_of("t.csv", columns=["c", "a"]), [[1, 4], [3, 6]])
