"""fedpca check: whether a model keeps the rules of a policy."""

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpca._util.text import format_number
from fedpca.cli import model_files
from fedpca.cli.common import (
    AsJson,
    ModelPath,
    Reading,
    RowsOfModel,
    print_result,
    progress_bars,
    reading_options,
)
from fedpca.cli.policy_text import policy_json

if TYPE_CHECKING:
    from fedpca.disclosure.policy import RuleResult
    from fedpca.disclosure.row_counts import RowCounts
    from fedpca.readers import RowReader
    from fedpca.summaries.summary import Summary


@reading_options
def check(
    model: ModelPath,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", metavar="FILE", help="A policy.toml, the rules to check. By default all defaults."
        ),
    ] = None,
    rows: RowsOfModel = None,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Check a model against a policy. If a rule is broken, name it and exit with 1.

    Some rules need counts of the rows: fit --policy writes them into the model; otherwise pass --rows. A
    private model needs none.

    Examples:

    ```
    fedpca check model.safetensors
    fedpca check model.safetensors --policy policy.toml
    fedpca check model.safetensors --policy policy.toml --rows rows.csv
    ```
    """
    from fedpca.approval.wording import refuse_other_words
    from fedpca.disclosure.policy import Policy, raise_broken
    from fedpca.summaries import model_file

    rules = Policy() if policy is None else Policy.load(policy)
    contents = model_file.read_bytes(model)
    summary, _ = model_files.decode(model, contents)
    model_files.refuse_own_facts(model, contents)
    refuse_other_words(summary.certificate)
    counts = counted(model, contents, summary, open_rows_of(summary, rows, reading))
    results = rules.results(summary, counts)
    broken = any(result.result == "broken" for result in results)
    verdict = f"{model} {'may not' if broken else 'may'} leave under {policy or 'the default policy'}"
    lines = [verdict, "", *_table(results)]
    data = {
        "model": str(model),
        "may_leave": not broken,
        "policy": policy_json(rules),
        "rules": [result.to_json() for result in results],
    }
    print_result(data, as_json, "\n".join(lines))
    raise_broken(results)


def open_rows_of(summary: "Summary", rows: list[str] | None, reading: Reading) -> "RowReader | None":
    """The rows behind a model; None of a private one, in whose rows nothing decides anything."""
    if not rows or summary.certificate is not None:
        return None
    from fedpca.readers import open_rows

    table = open_rows(rows, columns=summary.feature_names, **reading)
    if table.n_features != summary.n_features:
        raise ValueError(
            f"rows must have the model's {summary.n_features} features, got {table.n_features}; name the "
            "files of the fit."
        )
    return table


def counted(model: Path, contents: bytes, summary: "Summary", rows: "RowReader | None") -> "RowCounts | None":
    """What a policy has to know about the rows of a model: counted now, or when it was fitted."""
    from fedpca.disclosure.row_counts import RowCounts

    if summary.certificate is not None:
        return None
    if rows is None:
        return model_files.counts_in(model, contents)
    with progress_bars():
        counts = RowCounts.of(rows)
    if counts.rows != summary.count:
        raise ValueError(
            f"--rows must be all rows of the model, {format_number(summary.count)}, got "
            f"{format_number(counts.rows)}; name the files of the fit."
        )
    return counts


def _table(results: "list[RuleResult]") -> list[str]:
    lines = [("rule", "limit", "found", "result")]
    lines += [(each.rule, _cell(each.limit), _cell(each.value), each.result) for each in results]
    return [f"{rule:<23}  {limit:>6}  {found:>8}  {result}" for rule, limit, found, result in lines]


def _cell(value: float | bool | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value == inf else format_number(value)
