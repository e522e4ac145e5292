"""fedpca scale: weight, mean and variance of every column, for owners who divide by one scale of all."""

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli import scale_files
from fedpca.cli.common import (
    AsJson,
    BatchRows,
    Columns,
    DataPaths,
    Drop,
    Force,
    NumericOnly,
    PolicyPath,
    Reading,
    check_model_path,
    parse_names,
    print_result,
    progress_bars,
    reading_options,
)
from fedpca.cli.policy_text import policy_json, policy_line
from fedpca.cli.variant_options import Variants, matched_variants, variant_list, variants_json


@reading_options
def scale(
    path: DataPaths,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: scale.safetensors.")
    ],
    columns: Columns = None,
    drop: Drop = None,
    numeric_only: NumericOnly = False,
    variants: Variants = None,
    batch_rows: BatchRows = None,
    policy: PolicyPath = None,
    force: Force = False,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Write the weight, mean and variance of every column, so that owners can share one scale.

    Each owner writes a file, merge combines them, and every owner fits with the result. It is not private.

    Example:

    ```
    fedpca scale north.pgen --variants panel.pvar -o north-scale.safetensors
    fedpca merge north-scale.safetensors south-scale.safetensors -o all-scale.safetensors
    fedpca fit north.pgen --variants panel.pvar --scale binomial:all-scale.safetensors -o north.safetensors
    ```
    """
    check_model_path(out, force)

    from fedpca.disclosure.policy import Policy
    from fedpca.parallel import prefetch
    from fedpca.progress import bar
    from fedpca.readers import open_rows
    from fedpca.summaries.scaling import Scaling

    rules = None if policy is None else Policy.load(policy)
    listed = variant_list(variants, columns, path)
    rows = open_rows(
        path,
        columns=parse_names(columns) if listed is None else listed.names,
        drop=parse_names(drop) or (),
        numeric_only=numeric_only,
        batch_rows=batch_rows,
        **reading,
    )
    matched = matched_variants(rows, listed)
    with progress_bars():
        counts = None if rules is None else rules.check_rows(rows)
    scaling = Scaling.empty(rows.n_features)
    with (
        progress_bars(),
        rows.naming_infinity(),
        bar("rows", rows.n_rows, "rows") as progress,
        prefetch(rows.batches()) as batches,
    ):
        for batch in batches:
            scaling = Scaling.merge([scaling, Scaling.from_rows(batch.rows)])
            progress.advance(len(batch))
    scaling = scaling.with_names(rows.feature_names)
    if rules is not None:
        rules.check(scaling, counts)
    scaling.save(out)
    data = scale_files.describe(out, scaling) | variants_json(rows, listed) | {"policy": policy_json(rules)}
    checked = [] if policy is None else [policy_line(policy)]
    text = "\n".join([scale_files.headline(out, scaling), *matched, *checked])
    print_result(data, as_json, text)
