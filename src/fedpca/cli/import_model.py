"""fedpca import: a model from the files of other programs."""

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli import model_files
from fedpca.cli.common import AsJson, Force, check_output_path, print_result


def import_(
    plink2: Annotated[
        Path,
        typer.Option(
            metavar="PREFIX",
            help="Read loadings from PREFIX.tsv, frequencies from PREFIX.afreq, both as for plink2 --score, "
            "and variances from PREFIX.eigenval if it exists.",
            rich_help_panel="Formats",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The model file to write.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a model from published loadings, for transform to project cohorts on.

    Example:

    ```
    fedpca import --plink2 reference -o reference.safetensors
    fedpca transform reference.safetensors north.pgen -o north-scores.csv
    ```
    """
    check_output_path(out, force)

    from fedpca.genetics.plink2 import plink2_paths, read_plink2

    model = read_plink2(plink2)
    model_files.write(out, model, model.rank)
    description = model_files.describe(model, model.rank)
    text = model_files.headline(out, model, description)
    if not (spectrum := plink2_paths(plink2)[2]).exists():
        text += f"\n{spectrum} is missing: shares of the variance are not known"
    print_result({"out": str(out), **description}, as_json, text)
