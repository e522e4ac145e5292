"""Moments of rows that stay in a database: the text of aggregate queries, and a summary of what they return.

A query sums what is left of each column when its approximate mean, found by the same query, is subtracted:
so no digits are lost however far means are from zero.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, Literal, Self, get_args

import numpy as np

from fedpca._typing import Array
from fedpca._util.text import join_names
from fedpca.summaries.about import About
from fedpca.summaries.algebra import without_negative_eigenvalues
from fedpca.summaries.moments import Moments

Dialect = Literal["bigquery", "duckdb", "postgres", "snowflake", "sqlite"]
Missing = Literal["rows", "pairs"]
Results = Sequence[Sequence[Mapping[str, Any]]]  # rows, by name, of every text of a query

MAX_COLUMNS = 200  # 20,000 products: beyond, rows are read faster than they are multiplied in SQL
# Expressions of one SELECT: PostgreSQL takes at most 1,664 columns, SQLite 2,000, BigQuery 10,000.
MAX_EXPRESSIONS = 1000

_FLOAT = {
    "bigquery": "FLOAT64", "duckdb": "DOUBLE", "postgres": "DOUBLE PRECISION", "snowflake": "DOUBLE",
    "sqlite": "REAL",
}  # fmt: skip
_BEGIN = {"postgres": "BEGIN ISOLATION LEVEL REPEATABLE READ"}
_HEADER = "-- fedpca "
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class MomentsQuery:
    """Aggregate queries for the count, the mean and the scatter of columns of a table.

    Rows with NULL in any of the columns are left out; so are rows whose weight or group is NULL.

    Args:
        table: the name of a table, as in sales.readings, or a query in parentheses.
        columns: columns of numbers, at most 200; the features, in this order.
        dialect: "bigquery", "duckdb", "postgres", "snowflake" or "sqlite".
        weight: a column of weights, of which each counts repetitions of its row.
        group: a column; rows of each of its values are summed apart.
        missing: "rows" leaves out rows with NULL. "pairs" leaves out entries: means are those of a column's
            own entries, covariances those of rows that have both columns. The covariances of different rows
            may be those of no table, and are then replaced by the nearest that are.

    >>> import sqlite3
    >>> database = sqlite3.connect(":memory:")
    >>> _ = database.execute("CREATE TABLE readings (heat REAL, load REAL)")
    >>> _ = database.executemany("INSERT INTO readings VALUES (?, ?)", [(1, 200), (3, 900), (5, None)])
    >>> moments = MomentsQuery("readings", ("heat", "load"), dialect="sqlite").run(database)
    >>> moments.count, moments.mean, moments.feature_names
    (2.0, array([  2., 550.]), ('heat', 'load'))
    """

    table: str
    columns: tuple[str, ...]
    dialect: Dialect
    weight: str | None = None
    group: str | None = None
    missing: Missing = "rows"

    def __post_init__(self) -> None:
        columns = tuple(self.columns)
        if isinstance(self.columns, str) or not columns or not all(isinstance(c, str) and c for c in columns):
            raise ValueError(
                "columns must be the names of at least one column, as in columns=('heat', 'load')."
            )
        if len(columns) > MAX_COLUMNS:
            raise ValueError(
                f"at most {MAX_COLUMNS} columns can be summed by queries, got {len(columns)}; write the rows "
                "to a Parquet file, and fit that."
            )
        if len(set(columns)) < len(columns):
            raise ValueError(f"columns must be different, got {join_names(columns, 10)}.")
        for name, value, kinds in (
            ("dialect", self.dialect, get_args(Dialect)),
            ("missing", self.missing, get_args(Missing)),
        ):
            if value not in kinds:
                raise ValueError(f"{name} must be one of {', '.join(kinds)}, got {value!r}.")
        if not isinstance(self.table, str) or not self.table.strip():
            raise ValueError("table must be the name of a table, or a query in parentheses.")
        object.__setattr__(self, "columns", columns)

    # --- the text ---

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The queries, to be run in one transaction; each returns one row, or one per group."""
        return tuple(self._text(names) for names in self._selected)

    @property
    def script(self) -> str:
        """All of it as one file, whose first line is what `from_script` reads."""
        begin = _BEGIN.get(self.dialect, "BEGIN TRANSACTION")
        statements = "".join(f"{text};\n" for text in self.texts)
        return f"{_HEADER}{json.dumps(asdict(self))}\n{begin};\n{statements}COMMIT;\n"

    @classmethod
    def from_script(cls, text: str) -> Self:
        """The query whose script this is."""
        first = text.partition("\n")[0]
        if not first.startswith(_HEADER):
            raise ValueError("the first line of a script of fedpca sql query must be kept as it was written.")
        try:
            return cls(**json.loads(first.removeprefix(_HEADER)))
        except (TypeError, json.JSONDecodeError):
            raise ValueError(
                "the first line of a script of fedpca sql query was changed; write it again."
            ) from None

    @cached_property
    def _selected(self) -> list[dict[str, str]]:
        """Per query: expressions by name."""
        always = {} if self.group is None else {"grp": "grp"}
        always |= {"n": self._count}
        once = {"all_rows": "COUNT(*)"} | ({} if self.weight is None else {"least_weight": "MIN(w)"})
        for i in range(len(self.columns)):
            once |= {f"origin_{i}": f"MAX(o{i})", f"sum_{i}": self._sum(f"x{i}")}
            if self.dialect == "sqlite":  # which takes text for the number 0
                once[f"text_{i}"] = f"SUM(t{i})"
            if self.missing == "pairs":
                once[f"count_{i}"] = self._number(f"x{i}")
        for i, j in combinations_with_replacement(range(len(self.columns)), 2):
            once[f"product_{i}_{j}"] = self._sum(f"x{i} * x{j}")
            if self.missing == "pairs":
                once[f"count_{i}_{j}"] = self._number(f"x{i} * x{j}")
        names, size = list(once), MAX_EXPRESSIONS - len(always)
        return [
            always | {name: once[name] for name in names[start : start + size]}
            for start in range(0, len(names), size)
        ]

    @property
    def _count(self) -> str:
        if self.missing == "rows":
            return self._number("x0")  # all are NULL where one is
        known = " AND ".join(f"x{i} IS NULL" for i in range(len(self.columns)))
        return f"SUM(CASE WHEN {known} THEN 0 ELSE {'1' if self.weight is None else 'w'} END)"

    def _number(self, cell: str) -> str:
        return f"COUNT({cell})" if self.weight is None else f"SUM(CASE WHEN {cell} IS NULL THEN 0 ELSE w END)"

    def _sum(self, cell: str) -> str:
        return f"SUM({cell})" if self.weight is None else f"SUM(w * {cell})"

    def _text(self, selected: Mapping[str, str]) -> str:
        """Numbers of every row, and z, NULL where the row is left out; their means; what is left of them."""
        table = self.table if self.table.lstrip().startswith("(") else self._name_of_table()
        numbered = list(enumerate(self.columns))
        numbers = [f"{self._float(name)} AS c{i}" for i, name in numbered]
        required = [*self.columns] if self.missing == "rows" else []
        if self.weight is not None:
            numbers.append(f"{self._float(self.weight)} AS w")
            required.append(self.weight)
        absent = " OR ".join(f"s.{self._quoted(name)} IS NULL" for name in required)
        numbers.append(f"CASE WHEN {absent} THEN NULL ELSE 0 END AS z" if required else "0 AS z")
        if self.dialect == "sqlite":
            kinds = "('integer', 'real', 'null')"
            numbers += [
                f"CASE WHEN typeof(s.{self._quoted(name)}) IN {kinds} THEN 0 ELSE 1 END AS t{i}"
                for i, name in numbered
            ]
        means = [f"COALESCE(AVG(c{i} + z), 0) AS o{i}" for i, _ in numbered]
        values = [f"c{i} - o{i} + z AS x{i}" for i, _ in numbered]
        join, by = "CROSS JOIN origins", ""
        if self.group is not None:
            numbers.append(f"s.{self._quoted(self.group)} AS grp")
            means.append("grp AS of_group")
            join, by = "JOIN origins ON of_group = grp", " GROUP BY grp"
        chosen = ",\n  ".join(f"{expression} AS {name}" for name, expression in selected.items())
        return (
            f"WITH numbers AS (SELECT {', '.join(numbers)} FROM {table} AS s),\n"
            f"origins AS (SELECT {', '.join(means)} FROM numbers{by}),\n"
            f"cells AS (SELECT numbers.*, origins.*, {', '.join(values)} FROM numbers {join})\n"
            f"SELECT\n  {chosen}\nFROM cells{by}"
        )

    def _float(self, name: str) -> str:
        return f"CAST(s.{self._quoted(name)} AS {_FLOAT[self.dialect]})"

    def _quoted(self, name: str) -> str:
        # SQLite takes "name" for a text if there is no such column.
        mark = "`" if self.dialect in ("bigquery", "sqlite") else '"'
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def _name_of_table(self) -> str:
        return ".".join(self._quoted(part) for part in self.table.split("."))

    # --- what comes back ---

    def run(self, connection: Any) -> Any:
        """`read` of the results on a DB-API connection, such as sqlite3's, duckdb's or psycopg's.

        Several queries (of more than about 40 columns) must see the same rows: begin a transaction before, as
        `script` does.
        """
        cursor, results = connection.cursor(), []
        for text in self.texts:
            cursor.execute(text)
            names = [column[0] for column in cursor.description]
            results.append([dict(zip(names, row, strict=True)) for row in cursor.fetchall()])
        return self.read(results)

    def read(self, results: Results) -> Moments | dict[Any, Moments]:
        """The moments of what the texts returned; with `group`, by its values.

        Args:
            results: for each text its rows, by the names of the expressions in any case.
        """
        if len(results) != len(self.texts):
            raise ValueError(
                f"there must be one result for each of {len(self.texts)} queries, got {len(results)}."
            )
        found: dict[Any, dict[str, Any]] = {}
        for number, (rows, selected) in enumerate(zip(results, self._selected, strict=True), 1):
            for row in rows:
                values = {str(name).lower(): value for name, value in row.items()}
                if lacking := [name for name in selected if name not in values]:
                    raise ValueError(
                        f"the result of query {number} has no {join_names(lacking, 3)}; run it as it is."
                    )
                whole = found.setdefault(values.get("grp"), {})
                if whole.setdefault("n", values["n"]) != values["n"]:
                    raise ValueError(
                        "the table changed between two queries; run all of them in one transaction."
                    )
                whole |= values
        if self.group is None and list(found) != [None]:
            raise ValueError("a result must have one row; run the query as it is.")
        moments = {group: self._moments(values) for group, values in found.items()}
        return moments[None] if self.group is None else moments

    def _moments(self, values: Mapping[str, Any]) -> Moments:
        d = len(self.columns)
        text = [name for i, name in enumerate(self.columns) if self._value(values, f"text_{i}", 0)]
        if text:
            raise ValueError(
                f"column {text[0]!r} has text; leave it out, or write a query that makes it a number."
            )
        count = self._value(values, "n")
        if not count > 0:
            raise ValueError("no row has a number in every column; pass missing='pairs' (--missing pairs).")
        if self._value(values, "least_weight", 0) < 0:
            raise ValueError(f"weights must be at least 0, and column {self.weight!r} has smaller ones.")
        origin = np.array([self._value(values, f"origin_{i}") for i in range(d)])
        sums = np.array([self._value(values, f"sum_{i}", 0) for i in range(d)])
        products = self._matrix(values, "product")
        for i, name in enumerate(self.columns):
            if not np.isfinite([origin[i], sums[i], products[i, i]]).all():
                raise ValueError(
                    f"the sums of column {name!r} are not finite: it has NaN or infinite "
                    "values, or its squares are too large; select rows without them, or divide the column."
                )
        if self.missing == "rows":
            if self.weight is None:
                everything = self._value(values, "all_rows")
                _LOG.info("left out %d of %d rows, which have NULL", everything - count, everything)
            return Moments.from_sums(count, sums, products, origin=origin, names=self.columns)
        return self._of_pairs(count, sums, products, origin, values)

    def _of_pairs(
        self, count: float, sums: Array, products: Array, origin: Array, values: Mapping[str, Any]
    ) -> Moments:
        counts = self._matrix(values, "count")
        if not (counts > 0).all():
            i, j = np.argwhere(counts == 0)[0]
            raise ValueError(
                f"no row has both {self.columns[i]!r} and {self.columns[j]!r}, so that their covariance is "
                "not known; leave one of them out."
            )
        offsets = sums / np.diag(counts)
        covariance = products / counts - np.outer(offsets, offsets)
        scatter = without_negative_eigenvalues(count * covariance)
        return Moments(count, origin + offsets, scatter, about=About(self.columns))

    def _matrix(self, values: Mapping[str, Any], name: str) -> Array:
        d = len(self.columns)
        matrix = np.zeros((d, d))
        for i, j in combinations_with_replacement(range(d), 2):
            matrix[i, j] = matrix[j, i] = self._value(values, f"{name}_{i}_{j}", 0)
        return matrix

    def _value(self, values: Mapping[str, Any], name: str, default: float | None = None) -> float:
        value = values.get(name)
        if value is None or value == "":  # of no rows
            if default is None:
                raise ValueError(f"{name} of a result must be a number, and is empty.")
            return default
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name} of a result must be a number, got {value!r:.40}.") from None
