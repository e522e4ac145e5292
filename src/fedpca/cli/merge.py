"""fedpca merge: one model of the rows of many."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli import model_files
from fedpca.cli.common import AsJson, Force, check_output_path, print_result


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
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Merge models, as if all their rows had been in one place.

    Example:

    ```
    fedpca merge north.safetensors south.safetensors -o both.safetensors
    ```
    """
    from fedpca.readers.paths import require_distinct
    from fedpca.summaries.certificate import same_rows_warning
    from fedpca.summaries.merging import all_moments, merge_tree
    from fedpca.summaries.rank import oversampled_rank
    from fedpca.summaries.view import SummaryView

    require_distinct(model)
    check_output_path(out, force)
    parts = [model_files.read(path) for path in model]
    summaries = [summary for summary, _ in parts]
    n_features = summaries[0].n_features
    n_components = min(components or max(shown for _, shown in parts), n_features)
    # Sums stay sums: releases lose nothing in a merge, nor in the next.
    rank = None if all_moments(summaries) else min(oversampled_rank(n_components), n_features)
    if text := same_rows_warning([summary.certificate for summary in summaries]):
        warnings.warn(text, stacklevel=2)
    merged = merge_tree(summaries, rank)
    if not n_components:  # nothing rose above the noise of any part; of their sum it may
        n_components = SummaryView(merged, None, "auto", float).n_components()
    model_files.require_components(out, merged, components)
    model_files.write(out, merged, n_components)
    description = model_files.describe(merged, n_components)
    print_result({"out": str(out), **description}, as_json, model_files.headline(out, merged, description))
