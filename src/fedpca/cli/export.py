"""fedpca export: a model for other programs, one option per format."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpca._util.text import pluralize
from fedpca.cli import model_files
from fedpca.cli.common import (
    AsJson,
    Components,
    Force,
    ModelPath,
    check_output_path,
    output_file,
    print_result,
)

if TYPE_CHECKING:
    from fedpca._typing import JSON
    from fedpca.summaries.summary import Summary


class Precision(StrEnum):
    """Of numbers in the file."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


def export(
    model: ModelPath,
    onnx: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="An .onnx file to write: a graph from rows to scores.",
            rich_help_panel="Formats",
        ),
    ] = None,
    plink2: Annotated[
        Path | None,
        typer.Option(
            metavar="PREFIX",
            help="Files to write for plink2 --score: loadings in PREFIX.tsv, frequencies in PREFIX.afreq, "
            "variances in PREFIX.eigenval.",
            rich_help_panel="Formats",
        ),
    ] = None,
    components: Components = None,
    whiten: Annotated[
        bool,
        typer.Option(
            "--whiten",
            help="For --onnx: divide scores by their standard deviations over the rows of the fit.",
        ),
    ] = False,
    dtype: Annotated[
        Precision, typer.Option(help="For --onnx: the type of the rows and of the arithmetic.")
    ] = Precision.FLOAT32,
    variants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For --plink2: genotypes, or a .bim or .pvar file, with the ids and alleles to write. By "
            "default ids are as in 1:55516888:G:A.",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model for other programs.

    Examples:

    ```
    fedpca export model.safetensors --onnx model.onnx
    fedpca export model.safetensors --plink2 model
    ```
    """
    if onnx is None and plink2 is None:
        raise typer.BadParameter("name a format and its file, as in --onnx model.onnx.")
    if plink2 is None and variants is not None:
        raise typer.BadParameter("--variants is for --plink2; leave it out.")
    if onnx is None and whiten:
        raise typer.BadParameter("--whiten is for --onnx; leave it out.")
    summary, shown = model_files.read(model)
    model_files.require_components(model, summary, components)
    n_components = components or shown
    if not n_components:
        raise ValueError(f"{model} has no components to export.")
    if plink2 is not None:
        _check_plink2(plink2, force)
    data: JSON = {"n_components": n_components, "n_features": summary.n_features}
    lines = []
    if onnx is not None:
        data["onnx"] = str(_write_onnx(onnx, summary, n_components, whiten, dtype.value, force))
        lines.append(f"{onnx}: {_size(n_components, summary.n_features, 'feature')}")
    if plink2 is not None:
        from fedpca.genetics import write_plink2

        n_variants = write_plink2(summary, plink2, n_components=n_components, variants=variants)
        data |= {"plink2": str(plink2), "n_variants": n_variants}
        lines.append(f"{plink2}.tsv, .afreq, .eigenval: {_size(n_components, n_variants, 'variant')}")
    print_result(data, as_json, "\n".join(lines))


def _size(n_components: int, number: int, noun: str) -> str:
    return f"{pluralize(n_components, 'component')} of {pluralize(number, noun)}"


def _write_onnx(
    path: Path, summary: "Summary", n_components: int, whiten: bool, dtype: Any, force: bool
) -> Path:
    from fedpca.writers import write_onnx

    with output_file(path, force) as temporary:
        write_onnx(summary, temporary, n_components=n_components, whiten=whiten, dtype=dtype)
    return path


def _check_plink2(prefix: Path, force: bool) -> None:
    from fedpca.genetics.plink2 import plink2_paths

    for path in plink2_paths(prefix):
        check_output_path(path, force)
