"""fedpca sql: the summary of rows that stay in a database."""

import csv
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedpca._util.files import atomic_write
from fedpca._util.text import pluralize
from fedpca.cli import model_files
from fedpca.cli.options import (
    Components,
    File,
    Files,
    Force,
    Names,
    Out,
    Output,
    PolicyPath,
    Text,
    check_folder_path,
    check_model_path,
    check_output_path,
    wrong_usage,
)
from fedpca.cli.policy_text import policy_json, policy_line
from fedpca.disclosure.policy import Policy
from fedpca.sql import Dialect, Missing, MomentsQuery
from fedpca.summaries.moments import Moments


def query(
    table: Annotated[str, Parameter(name="TABLE")],
    /,
    *,
    columns: Names,
    dialect: Dialect,
    out: Out,
    weight: Text | None = None,
    group: Text | None = None,
    missing: Missing = "rows",
    force: Force = False,
    output: Output = Output(),
) -> None:
    """Write the aggregate queries whose results are the summary of a table.

    Run the file in the database's own client, and save what the queries return as CSV with headers, in one
    file or several, for fedpca sql import.

    For example:

    ```
    fedpca sql query sales.readings --columns heat,load --dialect postgres -o readings.sql
    psql --csv --quiet -f readings.sql -o readings.csv
    fedpca sql import readings.sql readings.csv -o readings.safetensors
    ```

    Args:
        table: The name of a table, or a query in parentheses.
        columns: Columns of numbers, at most 200: the features.
        dialect: The database.
        out: The file to write.
        weight: A column of weights, of which each counts repetitions of its row.
        group: A column: rows of each of its values are summed apart.
        missing: rows: leave out rows with NULL. pairs: use all rows that have both columns of a pair.
    """
    check_output_path(out, force)
    with wrong_usage():
        queries = MomentsQuery(table, tuple(columns), dialect, weight, group, missing)
    with atomic_write(out) as temporary:
        temporary.write_text(queries.script, encoding="utf-8")
    number = len(queries.texts)
    text = f"{out}: {pluralize(number, 'query', 'queries')} for {pluralize(len(columns), 'column')}"
    output.result({"out": str(out), "queries": number}, text)


def import_(
    script: Annotated[File, Parameter(name="SCRIPT", help="The file that fedpca sql query wrote.")],
    results: Annotated[Files, Parameter(name="CSV", help="What the queries returned, in their order.")],
    /,
    *,
    out: Out,
    components: Components | None = None,
    policy: PolicyPath = None,
    force: Force = False,
    output: Output = Output(),
) -> None:
    """Make a model of what the queries returned. It is checked like the model of a stranger.

    For example:

    ```
    fedpca sql import readings.sql readings.csv -o readings.safetensors --policy policy.toml
    ```

    Args:
        out: The model file to write; with --group, a folder for one model per value.
        components: Number of components. By default at most 10.
    """
    queries = MomentsQuery.from_script(script.read_text(encoding="utf-8"))
    if queries.group is None:
        check_model_path(out, force)
    else:
        check_folder_path(out, force)
    found = queries.read(_results(results))
    rules = None if policy is None else Policy.load(policy)
    models = {out: found} if isinstance(found, Moments) else _in_folder(out, found)
    for moments in models.values():
        if rules is not None:
            rules.check(moments)
    lines, data = [], []
    for path, moments in models.items():
        shown = min(components or 10, moments.subspace().rank)
        path.parent.mkdir(exist_ok=True)
        model_files.write(path, moments, shown)
        description = model_files.describe(moments, shown)
        lines.append(model_files.headline(path, moments, description))
        data.append({"out": str(path), **description})
    if policy is not None:
        lines.append(policy_line(policy))
    output.result({"models": data, "policy": policy_json(rules)}, "\n".join(lines))


def _results(paths: list[Path]) -> list[list[dict[str, str]]]:
    """What the queries returned: in files of their own, or one after another in one, each with its header."""
    results: list[list[dict[str, str]]] = []
    for path in paths:
        header: list[str] = []
        with path.open(encoding="utf-8-sig", newline="") as file:
            for cells in csv.reader(file):
                if cells and cells[0].lower() in ("n", "grp"):
                    header = cells
                    results.append([])
                elif cells and not header:
                    raise ValueError(
                        f"{path} must begin with the header of a result; save it as CSV with names."
                    )
                elif cells:
                    results[-1].append(dict(zip(header, cells, strict=False)))
    return results


def _in_folder(out: Path, found: dict[object, Moments]) -> dict[Path, Moments]:
    """A file for each group, by its value where that can be part of a name, else by its number."""
    models = {}
    for number, (group, moments) in enumerate(found.items(), 1):
        name = str(group)
        is_plain = name.replace("-", "").replace("_", "").isalnum() and len(name) < 100
        if not is_plain or name.startswith("group-"):  # which another group without a plain name may have
            name = f"group-{number}"
        models[out / f"{name}.safetensors"] = moments
    return models
