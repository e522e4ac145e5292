"""fedpca export: a model for other programs, one option per format."""

from typing import Annotated, Literal

from cyclopts import Parameter

from fedpca._typing import JSON
from fedpca._util.text import pluralize
from fedpca.cli import model_files
from fedpca.cli.options import (
    FORMATS,
    File,
    Flag,
    Force,
    ModelPath,
    Output,
    ShownComponents,
    WrongUsage,
    check_output_path,
    output_file,
)
from fedpca.genetics import write_plink2
from fedpca.genetics.plink2 import plink2_paths
from fedpca.writers import write_faiss, write_onnx


def export(
    model: ModelPath,
    /,
    *,
    onnx: Annotated[File | None, Parameter(group=FORMATS)] = None,
    faiss: Annotated[File | None, Parameter(group=FORMATS)] = None,
    plink2: Annotated[File | None, Parameter(group=FORMATS, metavar="PREFIX")] = None,
    components: ShownComponents = None,
    whiten: Flag = False,
    dtype: Literal["float32", "float64"] = "float32",
    variants: File | None = None,
    force: Force = False,
    output: Output = Output(),
) -> None:
    """Write a model for other programs.

    For example:

    ```
    fedpca export model.safetensors --onnx model.onnx
    fedpca export model.safetensors --faiss model.vt -n 100
    fedpca export model.safetensors --plink2 model
    ```

    Args:
        onnx: An .onnx file to write: a graph from rows to scores.
        faiss: A file to write that faiss.read_VectorTransform reads: what comes before an index.
        plink2: Files to write for plink2 --score: loadings in PREFIX.tsv, frequencies in PREFIX.afreq,
            variances in PREFIX.eigenval.
        whiten: For --onnx and --faiss: divide scores by their standard deviations over the rows of the fit.
        dtype: For --onnx: the type of the rows and of the arithmetic.
        variants: For --plink2: genotypes, or a .bim or .pvar file, with the ids and alleles to write. By
            default ids are as in 1:55516888:G:A.
    """
    if onnx is None and faiss is None and plink2 is None:
        raise WrongUsage("name a format and its file, as in --onnx model.onnx.")
    if plink2 is None and variants is not None:
        raise WrongUsage("--variants is for --plink2; leave it out.")
    if onnx is None and faiss is None and whiten:
        raise WrongUsage("--whiten is for --onnx and --faiss; leave it out.")
    summary, shown = model_files.read(model)
    model_files.require_components(model, summary, components)
    n_components = components or shown
    if not n_components:
        raise ValueError(f"{model} has no components to export.")
    for path in () if plink2 is None else plink2_paths(plink2):
        check_output_path(path, force)
    data: JSON = {"n_components": n_components, "n_features": summary.n_features}
    lines = []
    if onnx is not None:
        with output_file(onnx, force) as temporary:
            write_onnx(summary, temporary, n_components=n_components, whiten=whiten, dtype=dtype)
        data["onnx"] = str(onnx)
        lines.append(f"{onnx}: {_size(n_components, summary.n_features, 'feature')}")
    if faiss is not None:
        with output_file(faiss, force) as temporary:
            write_faiss(summary, temporary, n_components=n_components, whiten=whiten)
        data["faiss"] = str(faiss)
        lines.append(f"{faiss}: {_size(n_components, summary.n_features, 'feature')}")
    if plink2 is not None:
        n_variants = write_plink2(summary, plink2, n_components=n_components, variants=variants)
        data |= {"plink2": str(plink2), "n_variants": n_variants}
        lines.append(f"{plink2}.tsv, .afreq, .eigenval: {_size(n_components, n_variants, 'variant')}")
    output.result(data, "\n".join(lines))


def _size(n_components: int, number: int, noun: str) -> str:
    return f"{pluralize(n_components, 'component')} of {pluralize(number, noun)}"
