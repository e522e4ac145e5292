"""fedpca import: a model from the files of other programs."""

from typing import Annotated

from cyclopts import Parameter

from fedpca.cli import model_files
from fedpca.cli.options import FORMATS, File, Force, Out, Output, check_output_path
from fedpca.genetics.plink2 import plink2_paths, read_plink2


def import_(
    *,
    plink2: Annotated[File, Parameter(group=FORMATS, metavar="PREFIX")],
    out: Out,
    force: Force = False,
    output: Output = Output(),
) -> None:
    """Make a model from published loadings, for transform to project cohorts on.

    For example:

    ```
    fedpca import --plink2 reference -o reference.safetensors
    fedpca transform reference.safetensors north.pgen -o north-scores.csv
    ```

    Args:
        plink2: Read loadings from PREFIX.tsv, frequencies from PREFIX.afreq, both as for plink2 --score, and
            variances from PREFIX.eigenval if it exists.
        out: The model file to write.
    """
    check_output_path(out, force)

    model = read_plink2(plink2)
    model_files.write(out, model, model.rank)
    description = model_files.describe(model, model.rank)
    text = model_files.headline(out, model, description)
    if not (spectrum := plink2_paths(plink2)[2]).exists():
        text += f"\n{spectrum} is missing: shares of the variance are not known"
    output.result({"out": str(out), **description}, text)
