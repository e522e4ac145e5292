"""Moments of rows in a database equal those of the rows, and whatever comes back is checked."""

import csv
import io
import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedpca
from fedpca.readers import open_rows
from fedpca.sql import MAX_COLUMNS, MAX_EXPRESSIONS, MomentsQuery

DIALECTS = ("bigquery", "duckdb", "postgres", "snowflake", "sqlite")


class Database(sqlite3.Connection):
    """In memory, and closed with its last reference: from Python 3.13 on one that is open then warns."""

    def __init__(self, name=":memory:"):
        super().__init__(name)

    def __del__(self):
        self.close()


def database(rows, names):
    connection = Database()
    columns = ", ".join(f"`{name}`" for name in names)
    connection.execute(f"CREATE TABLE readings ({columns})")
    cells = [[None if cell is None or cell != cell else cell for cell in row] for row in rows]
    connection.executemany(f"INSERT INTO readings VALUES ({', '.join('?' * len(names))})", cells)
    connection.commit()
    return connection


def names_of(rows):
    return [f"x{i}" for i in range(np.shape(rows)[1])]


def summed(rows, **settings):
    names = names_of(rows)
    return MomentsQuery("readings", names, dialect="sqlite", **settings).run(database(rows, names))


def assert_equal(moments, expected, rtol=1e-9):
    level = max(float(np.abs(expected.scatter).max()), 1e-300)
    assert moments.count == pytest.approx(expected.count, rel=1e-12)
    np.testing.assert_allclose(moments.mean, expected.mean, rtol=rtol, atol=1e-12 * np.sqrt(level))
    np.testing.assert_allclose(moments.scatter, expected.scatter, rtol=rtol, atol=rtol * level)


ROWS = arrays(float, st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=st.integers(-1000, 1000))


@given(rows=ROWS, far=st.sampled_from([0.0, 1e6, -3e9]))
def test_the_moments_are_those_of_the_rows(rows, far):
    assert_equal(summed(rows + far), fedpca.Moments.from_rows(rows + far))


def test_means_a_million_standard_deviations_away_lose_no_digits():
    rows = np.random.default_rng(0).normal(size=(2000, 6)) + 1e6
    assert_equal(summed(rows), fedpca.Moments.from_rows(rows))


@given(rows=ROWS, seed=st.integers(0, 99))
def test_rows_with_null_are_left_out(rows, seed):
    gaps = np.random.default_rng(seed).random(rows.shape) < 0.2
    whole = ~gaps.any(axis=1)
    if whole.any():
        assert_equal(summed(np.where(gaps, np.nan, rows)), fedpca.Moments.from_rows(rows[whole]))


def test_rows_that_are_left_out_are_counted(caplog):
    with caplog.at_level("INFO", "fedpca.sql"):
        summed([[1.0, 2.0], [None, 3.0], [4.0, 7.0]])
    assert "left out 1 of 3 rows, which have NULL" in caplog.text


def test_weights_count_repetitions():
    rng = np.random.default_rng(1)
    rows, weights = rng.normal(size=(50, 3)), rng.integers(0, 4, size=50)
    connection = database(np.column_stack([rows, weights]), ["a", "b", "c", "w"])
    found = MomentsQuery("readings", ["a", "b", "c"], dialect="sqlite", weight="w").run(connection)
    assert_equal(found, fedpca.Moments.from_rows(rows, sample_weight=weights))


def test_groups_are_owners_whose_moments_merge():
    rng = np.random.default_rng(2)
    rows = rng.normal([1e6, 0, -1e6], size=(90, 3))
    rows[45:] *= 1000
    table = [
        [*row, None if i % 10 == 9 else "north" if i < 45 else "it's"] for i, row in enumerate(rows.tolist())
    ]
    names = ["a", "b", "c"]
    found = MomentsQuery("readings", names, dialect="sqlite", group="site").run(
        database(table, [*names, "site"])
    )
    kept = np.arange(90) % 10 != 9
    assert_equal(found["north"], fedpca.Moments.from_rows(rows[:45][kept[:45]]))
    assert_equal(fedpca.merge([*found.values()]), fedpca.Moments.from_rows(rows[kept]), rtol=1e-8)


def test_pairs_use_every_row_that_has_both():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 3)) + 50
    gaps = rng.random(rows.shape) < 0.1
    found = summed(np.where(gaps, np.nan, rows), missing="pairs")
    mean = np.array([column[~gap].mean() for column, gap in zip(rows.T, gaps.T, strict=True)])
    for i in range(3):
        for j in range(3):
            both = ~gaps[:, i] & ~gaps[:, j]
            offsets = rows[both][:, [i, j]] - mean[[i, j]]
            assert found.scatter[i, j] / found.count == pytest.approx(
                offsets[:, 0] @ offsets[:, 1] / both.sum()
            )
    np.testing.assert_allclose(found.mean, mean)
    assert found.count == (~gaps).any(axis=1).sum()


@pytest.mark.parametrize("missing", ["rows", "pairs"])
def test_no_query_has_more_expressions_than_databases_take(missing):
    query = MomentsQuery("t", [f"x{i}" for i in range(MAX_COLUMNS)], "postgres", missing=missing)
    found = [text.rpartition("SELECT\n")[2].count(" AS ") for text in query.texts]
    assert max(found) <= MAX_EXPRESSIONS
    products = MAX_COLUMNS * (MAX_COLUMNS + 1) // 2
    assert sum(found) >= products * (2 if missing == "pairs" else 1)


def test_many_columns_take_several_queries():
    rows = np.random.default_rng(4).normal(size=(30, 60))
    names = names_of(rows)
    assert len(MomentsQuery("readings", names, "sqlite").texts) == 3
    assert_equal(summed(rows), fedpca.Moments.from_rows(rows))


def test_awkward_names_and_queries_as_tables():
    rows = np.random.default_rng(5).normal(size=(20, 2))
    names = ['an "odd" name', "or `this`, too"]
    connection = Database()
    connection.execute('CREATE TABLE "my table" ("an ""odd"" name", "or `this`, too", kept)')
    connection.executemany(
        'INSERT INTO "my table" VALUES (?, ?, ?)', [(*row, i < 10) for i, row in enumerate(rows)]
    )
    found = MomentsQuery("my table", names, dialect="sqlite").run(connection)
    assert_equal(found, fedpca.Moments.from_rows(rows))
    some = MomentsQuery('(SELECT * FROM "my table" WHERE kept)', names, dialect="sqlite").run(connection)
    assert_equal(some, fedpca.Moments.from_rows(rows[:10]))


def test_results_may_come_back_as_text_in_upper_case():
    rows = np.random.default_rng(6).normal(size=(20, 2))
    query, connection = MomentsQuery("readings", ["x0", "x1"], "sqlite"), database(rows, ["x0", "x1"])
    cursor = connection.execute(query.texts[0])
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([column[0].upper() for column in cursor.description])
    writer.writerows([[repr(value) for value in row] for row in cursor])
    again = MomentsQuery.from_script(query.script)
    assert again == query
    assert_equal(
        again.read([list(csv.DictReader(io.StringIO(file.getvalue())))]), fedpca.Moments.from_rows(rows)
    )


# --- bad input ---


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"columns": []}, "at least one column"),
        ({"columns": "ab"}, "at least one column"),
        ({"columns": ["a", "a"]}, "must be different"),
        ({"columns": [f"x{i}" for i in range(201)]}, "at most 200 columns"),
        ({"dialect": "oracle"}, "dialect must be one of"),
        ({"missing": "none"}, "missing must be one of"),
        ({"table": " "}, "table must be"),
    ],
)
def test_a_query_that_cannot_be_written_is_refused(changes, problem):
    with pytest.raises(ValueError, match=problem):
        MomentsQuery(**{"table": "t", "columns": ["a", "b"], "dialect": "duckdb"} | changes)


def test_a_column_that_does_not_exist_is_an_error_of_the_database():
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        MomentsQuery("readings", ["x0", "nowhere"], "sqlite").run(database([[1.0]], ["x0"]))


@pytest.mark.parametrize(
    ("rows", "settings", "problem"),
    [
        ([[1.0, "high"], [2.0, "low"]], {}, "column 'x1' has text"),
        ([[1.0, 2.0], [float("inf"), 3.0]], {}, "column 'x0' are not finite"),
        ([[1e200, 2.0], [-1e200, 3.0]], {}, "column 'x0' are not finite"),
        ([[1.0, None], [None, 3.0]], {}, "no row has a number in every column"),
        ([[1.0, None], [None, 3.0]], {"missing": "pairs"}, "no row has both 'x0' and 'x1'"),
    ],
)
def test_rows_that_cannot_be_summed_are_refused_by_column(rows, settings, problem):
    with pytest.raises(ValueError, match=problem):
        summed(np.array(rows, dtype=object), **settings)


def test_negative_weights_are_refused():
    connection = database([[1.0, 1.0], [2.0, -1.0], [4.0, 3.0]], ["a", "w"])
    with pytest.raises(ValueError, match="weights must be at least 0"):
        MomentsQuery("readings", ["a"], "sqlite", weight="w").run(connection)


def test_results_of_other_rows_or_queries_are_refused():
    query = MomentsQuery("readings", ["a", "b"], "sqlite")
    connection = database([[1.0, 2.0], [3.0, 5.0]], ["a", "b"])
    cursor = connection.execute(query.texts[0])
    row = dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))
    for results, problem in [
        ([], "one result for each of 1"),
        ([[]], "one row"),
        ([[row, row | {"n": 7}]], "changed between two queries"),
        ([[{name: value for name, value in row.items() if name != "product_0_1"}]], "has no product_0_1"),
        ([[row | {"product_0_1": 1e9}]], "positive semidefinite|cannot be"),
        ([[row | {"n": "many"}]], "n of a result must be a number"),
    ]:
        with pytest.raises(ValueError, match=problem):
            query.read(results)
    with pytest.raises(ValueError, match="first line"):
        MomentsQuery.from_script("SELECT 1")


# --- real databases ---


@pytest.mark.client
@pytest.mark.parametrize("settings", [{}, {"weight": "w"}, {"group": "g"}, {"missing": "pairs"}], ids=str)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_one_that_a_parser_knows(dialect, settings):
    sqlglot = pytest.importorskip("sqlglot")
    query = MomentsQuery("sales.readings", ["heat", "load", 'a "b"'], dialect, **settings)
    for text in query.texts:
        parsed = sqlglot.parse_one(text, dialect=dialect)
        assert {table.name for table in parsed.find_all(sqlglot.exp.Table)} >= {"readings"}
        columns = {column.name for column in parsed.find_all(sqlglot.exp.Column)}
        assert columns >= {"heat", "load", 'a "b"', *settings.values()} - {"pairs"}
    assert len(sqlglot.parse(query.script, dialect=dialect)) >= len(query.texts) + 2


@pytest.mark.client
def test_a_million_rows_in_duckdb_equal_the_file(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(1_000_000, 12)) @ rng.normal(size=(12, 12)) + 1e6
    frame = pandas.DataFrame(rows, columns=names_of(rows))
    frame.to_parquet(tmp_path / "readings.parquet")
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE readings AS SELECT * FROM '{tmp_path / 'readings.parquet'}'")
    found = MomentsQuery("readings", names_of(rows), "duckdb").run(connection)
    pca = fedpca.StreamingPCA(12, tracker="exact")
    fedpca.fit_files(pca, open_rows(tmp_path / "readings.parquet"))
    assert_equal(found, pca.summary_)
