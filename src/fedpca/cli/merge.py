"""fedpca merge: one model of the rows of many."""

import warnings
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpca._util.text import join_names, sanitize
from fedpca.cli import model_files, scale_files
from fedpca.cli.common import (
    AsJson,
    Force,
    MaxShare,
    Robust,
    check_model_path,
    check_no_input,
    print_result,
)
from fedpca.cli.roster_options import RosterOption, load_roster

if TYPE_CHECKING:
    from fedpca.summaries.scaling import Scaling
    from fedpca.summaries.summary import Summary


class Features(StrEnum):
    """Which features models may have."""

    SAME = "same"
    INTERSECTION = "intersection"


def merge(
    model: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="Model files, as fit and merge write them.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The merged model file to write.")],
    components: Annotated[
        int | None,
        typer.Option(
            "--components",
            "-n",
            metavar="N",
            min=1,
            help="Components to show. By default the largest number that any of the models shows.",
        ),
    ] = None,
    features: Annotated[
        Features,
        typer.Option(
            help="same rejects models of different features; intersection matches them by name, and leaves "
            "out those that not all models have.",
        ),
    ] = Features.SAME,
    robust: Robust = None,
    max_share: MaxShare = None,
    roster: RosterOption = None,
    least_rows: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Reject models of fewer rows, or with a smaller group of rows that know the same features.",
        ),
    ] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Merge models, as if all their rows had been in one place; or files of fedpca scale.

    Models of genotypes are converted to count the same alleles as the first.

    Examples:

    ```
    fedpca merge north.safetensors south.safetensors -o both.safetensors
    fedpca merge north.safetensors south.safetensors --features intersection -o common.safetensors
    fedpca merge site-*.safetensors --robust trim -o all.safetensors
    fedpca merge north.safetensors south.safetensors --roster roster.toml -o both.safetensors
    ```
    """
    from fedpca.federation.aggregator import membership
    from fedpca.federation.aggregator.admission import check_least_rows
    from fedpca.federation.aggregator.robust import Robust as RobustMerging
    from fedpca.federation.aggregator.robust import merge_robust
    from fedpca.genetics import count_alike
    from fedpca.readers.paths import require_distinct
    from fedpca.summaries import model_file
    from fedpca.summaries.agreement import check_compatible
    from fedpca.summaries.features import intersect
    from fedpca.summaries.merging import merge_tree
    from fedpca.summaries.rank import oversampled_rank
    from fedpca.summaries.summary import all_moments
    from fedpca.summaries.view import SummaryView

    rule = RobustMerging.of(robust and robust.value, max_share)
    require_distinct(model)
    check_model_path(out, force)
    check_no_input([out], model)
    study = load_roster(roster)
    files = {str(path): model_file.read_bytes(path) for path in model}
    if scalings := scale_files.decode_all(files):
        if study is not None or rule is not None or least_rows or components:
            raise typer.BadParameter("files of fedpca scale are merged without options but --features.")
        _require_different(scalings)
        scale_files.merge(out, scalings, features is Features.INTERSECTION, as_json)
        return
    signed_by = {} if study is None else membership.signers(study, files)
    parts = [model_files.decode(path, files[str(path)]) for path in model]
    summaries = [summary for summary, _ in parts]
    for name, summary in zip(files, summaries, strict=True):
        try:
            check_least_rows(summary, least_rows)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    _require_different(dict(zip(files, summaries, strict=True)))
    summaries, matches = count_alike(summaries, list(files))
    lost = {}
    if features is Features.INTERSECTION:
        summaries, left_out = intersect(summaries, list(map(str, model)))
        lost = {str(path): what for path, what in zip(model, left_out, strict=True) if what is not None}
    check_compatible(summaries, option="--features intersection")
    _require_no_result(dict(zip(files, summaries, strict=True)))
    if study is not None:
        for file, summary in zip(files, summaries, strict=True):
            membership.check_member(study, signed_by[file], summary, file)
        components = study.settings.get("rank") if components is None else components
    n_features = summaries[0].n_features
    n_components = min(components or max(shown for _, shown in parts), n_features)
    # Sums stay sums: releases lose nothing in a merge, nor in the next.
    rank = None if all_moments(summaries) else min(oversampled_rank(n_components), n_features)
    if rule is None:
        merged = merge_tree(summaries, rank)
    else:
        if text := rule.too_few(len(summaries)):
            warnings.warn(text, stacklevel=2)
        owners = dict(zip(map(str, model), summaries, strict=True))
        merged = merge_robust(owners, rule, rank=rank)
    if not n_components:  # nothing rose above the noise of any part; of their sum it may
        n_components = SummaryView(merged, None, "auto", float).n_components()
    model_files.require_components(out, merged, components)
    model_files.write(out, merged, n_components)
    description = model_files.describe(merged, n_components)
    description["left_out"] = {
        path: {"features": list(what.features), "variance_share": what.share} for path, what in lost.items()
    }
    description["variants"] = [match.to_json() for match in matches]
    lines = [model_files.headline(out, merged, description), *map(str, matches)]
    lines += [f"left out of {path}: {sanitize(what)}" for path, what in lost.items()]
    description["roster"] = None
    if study is not None:
        silent = [member for member in study.members if member not in signed_by.values()]
        description["roster"] = {"study": study.study, "hash": study.hash, "not_heard_from": silent}
        description["signed_by"] = signed_by
        lines.append(f"signed by members of study {sanitize(study.study)!r}: {_listed(signed_by.values())}")
        lines += [f"not heard from: {_listed(silent)}"] if silent else []
    print_result({"out": str(out), **description}, as_json, "\n".join(lines))


def _require_different(parts: "Mapping[str, Summary | Scaling]") -> None:
    """Refuse two files with the same contents: their rows would count twice. No rows count nothing."""
    from fedpca.summaries.scaling import Scaling

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


def _require_no_result(parts: "Mapping[str, Summary]") -> None:
    """Refuse a file that has the rows of all the others, such as what they were merged into before."""
    from fedpca.summaries.merging import merge_tree

    count = sum(part.count for part in parts.values())
    for name, part in parts.items():
        if len(parts) > 1 and count and 2 * part.count == count:
            others = [other for known, other in parts.items() if known != name]
            if _of_the_same_rows(part, merge_tree(others)):
                raise ValueError(
                    f"models must be of different rows, because all of them count, but {name} has the rows "
                    "of all the others; leave it out."
                )


def _of_the_same_rows(one: "Summary", other: "Summary") -> bool:
    """Whether mean, energy and longest direction agree but for rounding; the counts do."""
    import numpy as np

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
