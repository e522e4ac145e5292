"""fedpca inspect: what a model file contains."""

import json

from fedpca._util.text import join_names, pluralize, sanitize
from fedpca.cli import model_files
from fedpca.cli.common import AsJson, ModelPath, print_result


def inspect(model: ModelPath, as_json: AsJson = False) -> None:
    """Show a model: explained variances, features and privacy certificate.

    Example:

    ```
    fedpca inspect model.safetensors
    ```
    """
    summary, shown = model_files.read(model)
    description = model_files.describe(summary, shown)
    features, carried = pluralize(summary.n_features, "feature"), description["carried"]
    lines = [
        model_files.headline(model, summary, description),
        f"{features}; {pluralize(carried, 'direction')} carried for merging",
        "",
        "component  variance  explained  cumulative",
    ]
    cumulative = 0.0
    for i, (variance, share) in enumerate(
        zip(description["explained_variance"], description["explained_variance_ratio"], strict=True), start=1
    ):
        cumulative += share
        lines.append(f"{i:>9}  {variance:>8.4g}  {share:>9.2%}  {cumulative:>10.2%}")
    if description["feature_names"]:
        lines += ["", f"features: {sanitize(join_names(description['feature_names']))}"]
    if description["certificate"]:
        lines += ["", f"certificate: {json.dumps(description['certificate'], indent=2)}"]
    print_result(description, as_json, "\n".join(lines))
