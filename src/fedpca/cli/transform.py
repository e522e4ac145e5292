"""fedpca transform: scores of rows on a model's components, a batch at a time."""

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedpca._util.text import join_names, pluralize
from fedpca.cli import model_files
from fedpca.cli.common import (
    AsJson,
    BatchRows,
    Components,
    DataPaths,
    Force,
    ModelPath,
    Reading,
    check_no_input,
    check_output_path,
    parse_names,
    print_result,
    progress_bars,
    reading_options,
    wrong_usage,
)
from fedpca.cli.variant_options import matched_variants

if TYPE_CHECKING:
    from fedpca._typing import AnyArray
    from fedpca.estimators.scoring import ModelPCA
    from fedpca.readers import Batch

_SCORES = ("components", "spe", "t2", "score", "alarm", "named", "contributions")
_STDOUT = Path("-")


class Shrinkage(StrEnum):
    """How scores of new rows are corrected for shrinkage."""

    ASYMPTOTIC = "asymptotic"


@reading_options
def transform(
    model: ModelPath,
    path: DataPaths,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write: .parquet, .csv, .tsv, .csv.gz, .tsv.gz, .npy, .h5ad or .eigenvec; - for "
            "CSV on standard output.",
        ),
    ],
    components: Components = None,
    keep: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Columns to copy into the result, such as ids.")
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="What to write: components, the scores pc1, pc2, ...; spe and t2, how unusual each row is "
            "outside of the components and within them; score, one number of both; alarm, 1 above the limit "
            "(fit --alarms); named, the column that explains the score best; contributions, what every "
            "column adds to it. By default components.",
        ),
    ] = None,
    whiten: Annotated[
        bool,
        typer.Option("--whiten", help="Divide scores by their standard deviations over the rows of the fit."),
    ] = False,
    shrinkage: Annotated[
        Shrinkage | None,
        typer.Option(
            help="asymptotic: correct the scores of new rows, which are shrunk towards the center.",
        ),
    ] = None,
    batch_rows: BatchRows = None,
    force: Force = False,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Write the scores of rows on a model's components: columns pc1, pc2, ... or, with --scores, others.

    The files must have the columns that the model was fitted to, in any order; other columns are ignored.
    Variants of genotypes are matched by position and alleles.

    Examples:

    ```
    fedpca transform model.safetensors 2025.parquet --keep id -o scores.parquet
    fedpca transform model.safetensors 2025.parquet --keep id --scores spe,t2 -o unusual.csv
    ```
    """
    from fedpca.writers import scores as writers
    from fedpca.writers.tables import ending

    kept, wanted = parse_names(keep) or [], _wanted(scores)
    with wrong_usage():
        kind = ".csv" if out == _STDOUT else ending(out, writers.SCORES)
        if wanted != ["components"]:
            writers.require_any_scores(kind)
    outputs = () if out == _STDOUT else writers.score_files(out)
    if out == _STDOUT and as_json:
        raise typer.BadParameter("--json cannot be combined with --out -: the scores go to standard output.")
    for output in outputs:
        check_output_path(output, force)
    check_no_input(outputs, [model, *map(Path, path)])

    import numpy as np

    from fedpca.estimators.detector import PCADetector
    from fedpca.estimators.scoring import ModelPCA
    from fedpca.parallel import prefetch
    from fedpca.progress import bar
    from fedpca.readers import open_rows
    from fedpca.summaries import model_file

    contents = model_file.read_bytes(model)
    summary, shown = model_files.decode(model, contents)
    if not shown:
        why = "the training rows do not vary" if summary.certificate is None else "none rises above its noise"
        raise ValueError(f"{model} has no components: {why}.")
    model_files.require_components(model, summary, components)
    if shrinkage is not None and summary.certificate is not None:
        raise ValueError(f"{model} is private: shrinkage cannot be corrected, its variances contain noise.")
    read_as = model_files.reading_of(model, contents, path, reading)
    rows = open_rows(path, columns=summary.feature_names, passthrough=kept, batch_rows=batch_rows, **read_as)
    if rows.n_features != summary.n_features:
        raise ValueError(
            f"rows must have the model's {summary.n_features} features, got {rows.n_features}; "
            "use files with the columns of the fit."
        )
    if rows.matches:  # genotypes come as float32, which would lose digits of scores that plink2 prints
        rows = replace(rows, dtype=np.dtype(np.float64))
    n_components = min(components or shown, summary.n_features)
    pca = ModelPCA(summary, n_components, whiten=whiten)
    detector = None
    if "alarm" in wanted:
        if components not in (None, shown):
            raise typer.BadParameter(f"the limit in {model} is of {shown} components; leave -n out.")
        detector = PCADetector.load_model(model)
        if detector.histogram_ is None:
            raise ValueError(f"{model} has no limit; fit it with --alarms 0.01, or leave out alarm.")
    features = summary.feature_names or tuple(f"column {i + 1}" for i in range(summary.n_features))
    columns = writers.score_names(pca.n_components_, [name for name in wanted if name != "named"], features)
    if not kept:
        known = set(rows.passthrough_names)
        kept = next((names for names in writers.DEFAULT_IDS.get(kind, ()) if known.issuperset(names)), [])
        rows = replace(rows, passthrough=tuple(kept))
    with wrong_usage():
        writers.check_passthrough(kind, [*kept, *({"named"} & {*wanted})], columns)
    n_shown = pluralize(pca.n_components_, "component")
    done = empty = 0
    correction: Literal["asymptotic"] | None = None if shrinkage is None else "asymptotic"
    with (
        progress_bars(),
        rows.naming_infinity(),
        bar("rows", rows.n_rows, "rows") as progress,
        writers.open_scores(sys.stdout.buffer if out == _STDOUT else out, pca, columns) as write,
        prefetch(rows.batches()) as batches,
    ):
        for batch in batches:
            found, beside = _found(pca, batch, wanted, correction), batch.passthrough
            if detector is not None:
                found["alarm"] = found["score"] > detector.limit_
            if "named" in wanted:
                beside = {**beside, "named": np.asarray(features, dtype=object)[found["named"]]}
            numbers = np.column_stack(
                [np.zeros((len(batch), 0)), *(found[name] for name in wanted if name != "named")]
            )
            write(numbers.astype(np.float32) if rows.dtype == np.float32 else numbers, beside)
            done += len(batch)
            empty += batch.n_empty_rows()
            progress.advance(len(batch))
        for output in outputs:
            check_output_path(output, force)  # again: who wrote it meanwhile did not want it replaced
    if out == _STDOUT:
        sys.stdout.buffer.flush()  # so that a full disk is an error
    data = {"out": str(out), "rows": done, "rows_without_values": empty, "columns": [*kept, *columns]}
    data["variants"] = [match.to_json() for match in rows.matches]
    matched = matched_variants(rows)
    what = join_names([n_shown if name == "components" else name for name in wanted])
    text = f"{out}: {pluralize(done, 'row')} of {what}"
    if empty:
        text += f"; {pluralize(empty, 'row')} without any value {'has' if empty == 1 else 'have'} scores of 0"
    text = "\n".join([text, *matched])
    if out != _STDOUT:
        print_result(data, as_json, text)
    elif empty or matched:
        typer.echo(f"fedpca: {text}", err=True)


def _found(
    pca: "ModelPCA", batch: "Batch", wanted: list[str], correction: "Literal['asymptotic'] | None"
) -> "dict[str, AnyArray]":
    """What is wanted of some rows, by name; alarms are made of the score."""
    found: dict[str, AnyArray] = {}
    if "components" in wanted:
        found["components"] = pca.transform(batch, shrinkage=correction)
    if {"spe", "t2"} & {*wanted}:
        found["spe"], found["t2"] = pca.anomaly_scores(batch)
    if {"score", "alarm"} & {*wanted}:
        found["score"] = pca.anomaly_score(batch)
    if {"named", "contributions"} & {*wanted}:
        added = pca.contributions(batch)
        found["named"], found["contributions"] = added.named, added.score
    return found


def _wanted(scores: str | None) -> list[str]:
    """The names in --scores, in their order."""
    wanted = parse_names(scores) or ["components"]
    if len(set(wanted)) < len(wanted) or not {*wanted} <= {*_SCORES}:
        raise typer.BadParameter(f"--scores must be some of {', '.join(_SCORES)}, each once, got {scores!r}.")
    return wanted
