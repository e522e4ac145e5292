"""fedpca merge: one model of the rows of many."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter

from fedpca._util.text import join_names, sanitize
from fedpca.cli import model_files, scale_files
from fedpca.cli.options import (
    Components,
    Files,
    Force,
    Out,
    Output,
    WrongUsage,
    at_least,
    check_model_path,
    check_no_input,
)
from fedpca.cli.robust import RobustMerging
from fedpca.cli.signing import Study
from fedpca.federation.aggregator import membership
from fedpca.federation.aggregator.admission import check_least_rows
from fedpca.federation.aggregator.robust import Robust, merge_robust
from fedpca.genetics import VariantMatch, count_alike
from fedpca.readers.paths import require_distinct
from fedpca.summaries import model_file
from fedpca.summaries.agreement import check_compatible
from fedpca.summaries.features import LeftOut, intersect
from fedpca.summaries.merging import merge_tree
from fedpca.summaries.rank import oversampled_rank
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.summary import Summary, all_moments
from fedpca.summaries.view import SummaryView


def merge(
    model: Annotated[Files, Parameter(name="MODEL")],
    /,
    *,
    out: Out,
    components: Components | None = None,
    features: Literal["same", "intersection"] = "same",
    robust: RobustMerging = RobustMerging(),
    study: Study = Study(),
    least_rows: Annotated[int, at_least(0)] = 0,
    force: Force = False,
    output: Output = Output(),
) -> None:
    """Merge models, as if all their rows had been in one place; or files of fedpca scale.

    Models of genotypes are converted to count the same alleles as the first.

    For example:

    ```
    fedpca merge north.safetensors south.safetensors -o both.safetensors
    fedpca merge north.safetensors south.safetensors --features intersection -o common.safetensors
    fedpca merge site-*.safetensors --robust trim -o all.safetensors
    fedpca merge north.safetensors south.safetensors --roster roster.toml -o both.safetensors
    ```

    Args:
        model: Model files, as fit and merge write them.
        out: The merged model file to write.
        components: Components to show. By default the largest number that any of the models shows.
        features: same rejects models of different features; intersection matches them by name, and leaves out
            those that not all models have.
        least_rows: Reject models of fewer rows, or with a smaller group of rows that know the same features.
    """
    rule = robust.rule()
    require_distinct(model)
    check_model_path(out, force)
    check_no_input([out], model)
    roster = study.load()
    files = {str(path): model_file.read_bytes(path) for path in model}
    if scalings := scale_files.decode_all(files):
        if roster is not None or rule is not None or least_rows or components:
            raise WrongUsage("files of fedpca scale are merged without options but --features.")
        _require_different(scalings)
        scale_files.merge(out, scalings, features == "intersection", output)
        return
    signed_by = {} if roster is None else membership.signers(roster, files)
    decoded = {name: model_files.decode(Path(name), contents) for name, contents in files.items()}
    parts = {name: summary for name, (summary, _) in decoded.items()}
    for name, summary in parts.items():
        _check_least_rows(name, summary, least_rows)
    _require_different(parts)
    parts, left_out, matches = _of_the_same_features(parts, features == "intersection")
    _require_no_result(parts)
    if roster is not None:
        for name, summary in parts.items():
            membership.check_member(roster, signed_by[name], summary, name)
        components = roster.settings.get("rank") if components is None else components
    shown = components or max(shown for _, shown in decoded.values())
    merged, n_components = _merged(parts, shown, rule)
    model_files.require_components(out, merged, components)
    model_files.write(out, merged, n_components)
    description = model_files.describe(merged, n_components)
    lines = [model_files.headline(out, merged, description), *map(str, matches)]
    lines += [f"left out of {path}: {sanitize(what)}" for path, what in left_out.items()]
    description |= {
        "left_out": {
            path: {"features": list(what.features), "variance_share": what.share}
            for path, what in left_out.items()
        },
        "variants": [match.to_json() for match in matches],
        "roster": None,
    }
    if roster is not None:
        silent = [member for member in roster.members if member not in signed_by.values()]
        description["roster"] = {"study": roster.study, "hash": roster.hash, "not_heard_from": silent}
        description["signed_by"] = signed_by
        lines.append(f"signed by members of study {sanitize(roster.study)!r}: {_listed(signed_by.values())}")
        lines += [f"not heard from: {_listed(silent)}"] if silent else []
    output.result({"out": str(out), **description}, "\n".join(lines))


def _check_least_rows(name: str, summary: Summary, least_rows: int) -> None:
    try:
        check_least_rows(summary, least_rows)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _of_the_same_features(
    parts: dict[str, Summary], intersection: bool
) -> tuple[dict[str, Summary], dict[str, LeftOut], list[VariantMatch]]:
    """The models, what was left out of each, and how its variants were matched to those of the first."""
    names = list(parts)
    summaries, matches = count_alike(list(parts.values()), names)
    lost = {}
    if intersection:
        summaries, left_out = intersect(summaries, names)
        lost = {name: what for name, what in zip(names, left_out, strict=True) if what is not None}
    check_compatible(summaries, option="--features intersection")
    return dict(zip(names, summaries, strict=True)), lost, matches


def _merged(parts: dict[str, Summary], shown: int, rule: Robust | None) -> tuple[Summary, int]:
    """The merged model, and how many components it shows."""
    summaries = list(parts.values())
    n_features = summaries[0].n_features
    n_components = min(shown, n_features)
    # Sums stay sums: releases lose nothing in a merge, nor in the next.
    rank = None if all_moments(summaries) else min(oversampled_rank(n_components), n_features)
    if rule is None:
        merged = merge_tree(summaries, rank)
    else:
        if text := rule.too_few(len(summaries)):
            warnings.warn(text, stacklevel=2)
        merged = merge_robust(parts, rule, rank=rank)
    if not n_components:  # nothing rose above the noise of any part; of their sum it may
        n_components = SummaryView(merged, None, "auto", float).n_components()
    return merged, n_components


def _require_different(parts: Mapping[str, Summary | Scaling]) -> None:
    """Refuse two files with the same contents: their rows would count twice. No rows count nothing."""
    known: dict[tuple[str, bytes], list[tuple[str, Summary | Scaling]]] = {}
    for name, part in parts.items():
        n_rows = part.observed.max() if isinstance(part, Scaling) else part.count
        alike = known.setdefault((part.kind, part.mean.tobytes()), [])
        if other := next((other for other, found in alike if n_rows and found == part), None):
            raise ValueError(
                f"models must be of different rows, because all of them count, but {other} and {name} have "
                "the same contents; leave one out."
            )
        alike.append((name, part))


def _require_no_result(parts: Mapping[str, Summary]) -> None:
    """Refuse a file that has the rows of all the others, such as what they were merged into before."""
    count = sum(part.count for part in parts.values())
    for name, part in parts.items():
        if len(parts) > 1 and count and 2 * part.count == count:
            others = [other for known, other in parts.items() if known != name]
            if _of_the_same_rows(part, merge_tree(others)):
                raise ValueError(
                    f"models must be of different rows, because all of them count, but {name} has the rows "
                    "of all the others; leave it out."
                )


def _of_the_same_rows(one: Summary, other: Summary) -> bool:
    """Whether mean, energy and longest direction agree but for rounding; the counts do."""
    if one.certificate is not None or other.certificate is not None:
        return one == other  # of a private release a merge has a certificate of its own
    sizes = [np.append(part.subspace(1).singular_values, np.sqrt(part.total)) for part in (one, other)]
    spread = sizes[0].max(initial=0.0) / np.sqrt(one.count)
    return bool(
        sizes[0].shape == sizes[1].shape
        and np.allclose(sizes[0], sizes[1], rtol=1e-6, atol=0)
        and np.allclose(one.mean, other.mean, rtol=1e-9, atol=1e-6 * spread)
    )


def _listed(names: Iterable[str]) -> str:
    return join_names([sanitize(name, 100) for name in names])
