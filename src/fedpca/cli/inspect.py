"""fedpca inspect: what a model file contains."""

import json
from itertools import accumulate

from fedpca._util.text import join_names, pluralize, sanitize
from fedpca.cli import model_files
from fedpca.cli.options import (
    File,
    Force,
    ModelPath,
    Output,
    WrongUsage,
    check_output_path,
    wrong_usage,
)
from fedpca.cli.signatures import describe_signature
from fedpca.cli.signing import Study
from fedpca.summaries import model_file
from fedpca.writers.tables import TABLES, ending, write_tables

_SCALED = {
    None: "",
    "std": ", divided by their standard deviations",
    "binomial": ", divided by their binomial deviations",
    "numbers": ", divided by the numbers in the column scale of --loadings",
}


def inspect(
    model: ModelPath,
    /,
    *,
    loadings: File | None = None,
    spectrum: File | None = None,
    study: Study = Study(),
    force: Force = False,
    output: Output = Output(),
) -> None:
    """Show a model: explained variances, features, signature, and privacy certificate.

    Tables are .csv, .tsv, .csv.gz, .tsv.gz or .parquet.

    For example:

    ```
    fedpca inspect model.safetensors
    fedpca inspect model.safetensors --loadings loadings.csv --spectrum spectrum.csv
    fedpca inspect north.safetensors --roster roster.toml
    ```

    Args:
        loadings: A table to write, with one row per feature: its mean, its scale if there is one, and its
            loading on every component.
        spectrum: A table to write, with one row per component: its variance.
    """
    outputs = [out for out in (loadings, spectrum) if out is not None]
    for out in outputs:
        with wrong_usage():
            ending(out, TABLES)
        check_output_path(out, force)
    if len({out.resolve() for out in outputs}) < len(outputs):
        raise WrongUsage("--loadings and --spectrum must be two files.")
    contents = model_file.read_bytes(model)
    summary, shown = model_files.decode(model, contents)
    description = model_files.describe(summary, shown)
    description["signature"] = describe_signature(contents, study.load())
    variances, shares = description["explained_variance"], description["explained_variance_ratio"]
    components = {
        "component": range(1, len(shares) + 1),
        "explained_variance": variances,
        "explained_variance_ratio": shares,
        "cumulative": list(accumulate(shares)),
    }
    tables = {loadings: model_files.loadings(summary, shown), spectrum: components}
    write_tables({out: table for out, table in tables.items() if out is not None})
    features, carried = pluralize(summary.n_features, "feature"), description["carried"]
    lines = [
        model_files.headline(model, summary, description),
        f"{features}{_SCALED[description['scale']]}; {pluralize(carried, 'direction')} carried for merging",
        "",
        "component  variance  explained  cumulative",
    ]
    for i, variance, share, cumulative in zip(*components.values(), strict=True):
        lines.append(f"{i:>9}  {variance:>8.4g}  {share:>9.2%}  {cumulative:>10.2%}")
    if description["feature_names"]:
        lines += ["", f"features: {sanitize(join_names(description['feature_names']))}"]
    lines += ["", f"signature: {description['signature']['text']}"]
    releases = [] if summary.certificate is None else summary.certificate.all_releases()
    for secure in [release.secure for release in releases if release.secure is not None]:
        lines += ["", sanitize(secure.describe(), 1000)]
    if description["certificate"]:
        lines += ["", f"certificate: {json.dumps(description['certificate'], indent=2)}"]
    if outputs:
        lines += ["", f"written: {', '.join(map(str, outputs))}"]
    output.result(description, "\n".join(lines))
