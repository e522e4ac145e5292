"""fedpca scale: weight, mean and variance of every column, for owners who divide by one scale of all."""

from fedpca.cli import scale_files
from fedpca.cli.options import (
    BatchRows,
    DataPaths,
    Force,
    Out,
    Output,
    PolicyPath,
    check_model_path,
)
from fedpca.cli.policy_text import policy_json, policy_line
from fedpca.cli.reading import Reading, Table, Variants, columns_of, matched_variants, variants_json
from fedpca.disclosure.policy import Policy
from fedpca.parallel import prefetch
from fedpca.progress import bar
from fedpca.summaries.scaling import Scaling


def scale(
    path: DataPaths,
    /,
    *,
    out: Out,
    table: Table = Table(),
    variants: Variants = Variants(),
    batch_rows: BatchRows = None,
    policy: PolicyPath = None,
    force: Force = False,
    output: Output = Output(),
    reading: Reading = Reading(),
) -> None:
    """Write the weight, mean and variance of every column, so that owners can share one scale.

    Each owner writes a file, merge combines them, and every owner fits with the result. It is not private.

    For example:

    ```
    fedpca scale north.pgen --variants panel.pvar -o north-scale.safetensors
    fedpca merge north-scale.safetensors south-scale.safetensors -o all-scale.safetensors
    fedpca fit north.pgen --variants panel.pvar --scale binomial:all-scale.safetensors -o north.safetensors
    ```

    Args:
        out: The file to write: scale.safetensors.
    """
    check_model_path(out, force)

    rules = None if policy is None else Policy.load(policy)
    listed = variants.listed(table, path)
    rows = table.open(path, reading, batch_rows=batch_rows, **columns_of(listed))
    matched = matched_variants(rows, listed)
    with output.progress():
        counts = None if rules is None else rules.check_rows(rows)
    scaling = Scaling.empty(rows.n_features)
    with (
        output.progress(),
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
    output.result(data, text)
