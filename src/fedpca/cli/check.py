"""fedpca check: whether a model keeps the rules of a policy."""

from math import inf
from pathlib import Path

from fedpca._typing import JSON
from fedpca._util.text import format_number
from fedpca.approval.wording import refuse_other_words
from fedpca.cli import model_files
from fedpca.cli.options import File, ModelPath, Output, RowsOfModel
from fedpca.cli.policy_text import policy_json
from fedpca.cli.reading import Reading
from fedpca.disclosure.policy import Policy, RuleResult, raise_broken
from fedpca.disclosure.row_counts import RowCounts
from fedpca.readers import RowReader, open_rows
from fedpca.summaries import model_file
from fedpca.summaries.summary import Summary


def check(
    model: ModelPath,
    /,
    *,
    policy: File | None = None,
    rows: RowsOfModel = None,
    output: Output = Output(),
    reading: Reading = Reading(),
) -> None:
    """Check a model against a policy. If a rule is broken, name it and exit with 1.

    Some rules need counts of the rows: fit --policy writes them into the model; otherwise pass --rows. A
    private model needs none.

    For example:

    ```
    fedpca check model.safetensors
    fedpca check model.safetensors --policy policy.toml
    fedpca check model.safetensors --policy policy.toml --rows rows.csv
    ```

    Args:
        policy: A policy.toml, the rules to check. By default all defaults.
    """
    rules = Policy() if policy is None else Policy.load(policy)
    contents = model_file.read_bytes(model)
    summary, _ = model_files.decode(model, contents)
    model_files.refuse_own_facts(model, contents)
    refuse_other_words(summary.certificate)
    counts = counted(model, contents, summary, open_rows_of(summary, rows, reading.given()), output)
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
    output.result(data, "\n".join(lines))
    raise_broken(results)


def open_rows_of(summary: Summary, rows: list[str] | None, reading: JSON) -> RowReader | None:
    """The rows behind a model; None of a private one, in whose rows nothing decides anything."""
    if not rows or summary.certificate is not None:
        return None

    table = open_rows(rows, columns=summary.feature_names, **reading)
    if table.n_features != summary.n_features:
        raise ValueError(
            f"rows must have the model's {summary.n_features} features, got {table.n_features}; name the "
            "files of the fit."
        )
    return table


def counted(
    model: Path, contents: bytes, summary: Summary, rows: RowReader | None, output: Output
) -> RowCounts | None:
    """What a policy has to know about the rows of a model: counted now, or when it was fitted."""
    if summary.certificate is not None:
        return None
    if rows is None:
        return model_files.counts_in(model, contents)
    with output.progress():
        counts = RowCounts.of(rows)
    if counts.rows != summary.count:
        raise ValueError(
            f"--rows must be all rows of the model, {format_number(summary.count)}, got "
            f"{format_number(counts.rows)}; name the files of the fit."
        )
    return counts


def _table(results: list[RuleResult]) -> list[str]:
    lines = [("rule", "limit", "found", "result")]
    lines += [(each.rule, _cell(each.limit), _cell(each.value), each.result) for each in results]
    return [f"{rule:<23}  {limit:>6}  {found:>8}  {result}" for rule, limit, found, result in lines]


def _cell(value: float | bool | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value == inf else format_number(value)
