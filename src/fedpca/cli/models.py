"""fedpca merge, fedpca inspect: what can be done with model files alone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpca.cli.common import AsJson, Force, must_be_free, printable, say

if TYPE_CHECKING:
    from fedpca.summaries.summary import Summary


def merge(
    model: Annotated[list[Path], typer.Argument(metavar="MODEL...")],
    out: Annotated[Path, typer.Option(help="Where to write the model of all.")],
    components: Annotated[
        int | None, typer.Option(min=1, help="How many to show; by default the most that any model has.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Merge models, as if all their rows had been in one place."""
    from fedpca.summaries.merging import merge_tree
    from fedpca.summaries.moments import Moments
    from fedpca.summaries.rank import oversampled_rank

    must_be_free(out, force)
    parts = [read(path) for path in model]
    summaries = [summary for summary, _ in parts]
    wanted = components or max(shown for _, shown in parts)
    n_features = summaries[0].n_features
    rank = min(oversampled_rank(wanted), n_features)
    # Sums stay sums: releases lose nothing in a merge, nor in the next.
    all_sums = all(isinstance(summary, Moments) for summary in summaries)
    merged = merge_tree(summaries, None if all_sums else rank)
    write(out, merged, min(wanted, n_features))
    say({"out": str(out), **facts_of(merged, wanted)}, as_json, f"{out}: {merged!r}")


def inspect(model: Annotated[Path, typer.Argument(metavar="MODEL")], as_json: AsJson = False) -> None:
    """Show a model: its variances, and what it promises."""
    summary, shown = read(model)
    facts = facts_of(summary, shown)
    lines = [f"{model}: {summary!r}", "", "component  variance  share of all  together"]
    together = 0.0
    for place, (variance, share) in enumerate(
        zip(facts["explained_variance"], facts["explained_variance_ratio"], strict=True), start=1
    ):
        together += share
        lines.append(f"{place:>9}  {variance:>8.4g}  {share:>12.2%}  {together:>8.2%}")
    if facts["feature_names"]:
        from fedpca._util.text import join_names

        lines += ["", f"features: {printable(join_names(facts['feature_names']))}"]
    if facts["certificate"]:
        lines += ["", f"certificate: {json.dumps(facts['certificate'], indent=2)}"]
    say(facts, as_json, "\n".join(lines))


def read(path: Path) -> "tuple[Summary, int]":
    """The summary in a model file, and how many of its directions are shown."""
    from fedpca.summaries import model_file
    from fedpca.summaries.summary import from_file

    kind, arrays, facts = model_file.read(path)
    summary = from_file(path, kind, arrays, facts)
    shown = facts.get("n_components")
    return summary, shown if isinstance(shown, int) and shown > 0 else summary.subspace().rank


def write(path: Path, summary: "Summary", shown: int, **more: Any) -> None:
    """A model file that says how many of its directions to show: it carries more, for the sake of merging."""
    from fedpca.summaries import model_file

    arrays, facts = summary.arrays, summary.metadata
    model_file.write(path, summary.kind, arrays, facts | {"n_components": shown} | more)


def facts_of(summary: "Summary", shown: int) -> dict[str, Any]:
    """What there is to say about a model, as JSON can say it."""
    directions = summary.subspace()
    values = directions.singular_values[:shown]
    return {
        "kind": summary.kind,
        "rows": summary.count,
        "n_features": summary.n_features,
        "n_components": len(values),
        "carried": directions.rank,
        "centered": summary.centered,
        "explained_variance": (values**2 / max(summary.count - 1, 1)).tolist(),
        "explained_variance_ratio": directions.explained_variance_ratio[:shown].tolist(),
        "feature_names": None if summary.feature_names is None else list(summary.feature_names),
        "certificate": None if summary.certificate is None else summary.certificate.to_json(),
    }
