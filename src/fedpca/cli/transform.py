"""fedpca transform: scores of rows on a model's components, a batch at a time."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import DTypeLike

from fedpca._typing import JSON, AnyArray
from fedpca._util.text import join_names, pluralize
from fedpca.cli import model_files
from fedpca.cli.options import (
    BatchRows,
    DataPaths,
    Flag,
    Force,
    ModelPath,
    Names,
    Out,
    Output,
    ShownComponents,
    WrongUsage,
    check_no_input,
    check_output_path,
    note,
    wrong_usage,
)
from fedpca.cli.reading import Reading, matched_variants, reading_of
from fedpca.parallel import prefetch
from fedpca.progress import bar
from fedpca.readers import Batch, RowReader, open_rows
from fedpca.summaries import model_file
from fedpca.summaries.summary import Summary
from fedpca.writers import scores as writers
from fedpca.writers.tables import ending

if TYPE_CHECKING:
    from fedpca.estimators.detector import PCADetector
    from fedpca.estimators.scoring import ModelPCA

_SCORES = ("components", "spe", "t2", "score", "alarm", "named", "contributions")
_STDOUT = Path("-")

Shrinkage = Literal["asymptotic"] | None


def transform(
    model: ModelPath,
    path: DataPaths,
    /,
    *,
    out: Out,
    components: ShownComponents = None,
    keep: Names | None = None,
    scores: Names | None = None,
    whiten: Flag = False,
    shrinkage: Shrinkage = None,
    batch_rows: BatchRows = None,
    force: Force = False,
    output: Output = Output(),
    reading: Reading = Reading(),
) -> None:
    """Write the scores of rows on a model's components: columns pc1, pc2, ... or, with --scores, others.

    The files must have the columns that the model was fitted to, in any order; other columns are ignored.
    Variants of genotypes are matched by position and alleles.

    For example:

    ```
    fedpca transform model.safetensors 2025.parquet --keep id -o scores.parquet
    fedpca transform model.safetensors 2025.parquet --keep id --scores spe,t2 -o unusual.csv
    ```

    Args:
        out: The file to write: .parquet, .csv, .tsv, .csv.gz, .tsv.gz, .npy, .h5ad or .eigenvec; - for CSV on
            standard output.
        keep: Columns to copy into the result, such as ids.
        scores: What to write: components, the scores pc1, pc2, ...; spe and t2, how unusual each row is
            outside of the components and within them; score, one number of both; alarm, 1 above the limit
            (fit --alarms); named, the column that explains the score best; contributions, what every column
            adds to it. By default components.
        whiten: Divide scores by their standard deviations over the rows of the fit.
        shrinkage: asymptotic: correct the scores of new rows, which are shrunk towards the center.
    """
    wanted = _wanted(scores)
    kind = _kind(out, wanted, output)
    written = _written(out, force)
    check_no_input(written, [model, *map(Path, path)])
    from fedpca.estimators.scoring import ModelPCA

    contents = model_file.read_bytes(model)
    summary, shown = model_files.decode(model, contents)
    _check_model(model, summary, shown, shrinkage)
    model_files.require_components(model, summary, components)
    read_as = reading_of(model, contents, path, reading)
    rows = open_rows(
        path, columns=summary.feature_names, passthrough=keep or (), batch_rows=batch_rows, **read_as
    )
    rows = _with_ids(rows, kind, summary, keep or [])
    pca = ModelPCA(summary, min(components or shown, summary.n_features), whiten=whiten)
    detector = None if "alarm" not in wanted else _detector(model, components, shown)
    features = summary.feature_names or tuple(f"column {i + 1}" for i in range(summary.n_features))
    columns = writers.score_names(pca.n_components_, [name for name in wanted if name != "named"], features)
    with wrong_usage():
        writers.check_passthrough(kind, [*rows.passthrough, *({"named"} & {*wanted})], columns)
    done = empty = 0
    with (
        output.progress(),
        rows.naming_infinity(),
        bar("rows", rows.n_rows, "rows") as progress,
        writers.open_scores(sys.stdout.buffer if out == _STDOUT else out, pca, columns) as write,
        prefetch(rows.batches()) as batches,
    ):
        for batch in batches:
            found = _scores(pca, batch, wanted, shrinkage)
            if detector is not None:
                found["alarm"] = found["score"] > detector.limit_
            write(*_to_write(found, batch, wanted, features, rows.dtype))
            done += len(batch)
            empty += batch.n_empty_rows()
            progress.advance(len(batch))
        _written(out, force)  # again: who wrote it meanwhile did not want it replaced
    if out == _STDOUT:
        sys.stdout.buffer.flush()  # so that a full disk is an error
    n_shown = pluralize(pca.n_components_, "component")
    what = join_names([n_shown if name == "components" else name for name in wanted])
    data = {"out": str(out), "rows": done, "rows_without_values": empty}
    _report(output, data | {"columns": [*rows.passthrough, *columns]}, what, rows)


def _report(output: Output, data: JSON, what: str, rows: RowReader) -> None:
    """What was done, on stdout; on stderr if the scores are there, and only what is not as usual."""
    text, empty = f"{data['out']}: {pluralize(data['rows'], 'row')} of {what}", data["rows_without_values"]
    if empty:
        text += f"; {pluralize(empty, 'row')} without any value {'has' if empty == 1 else 'have'} scores of 0"
    matched = matched_variants(rows)
    lines = "\n".join([text, *matched])
    if data["out"] != str(_STDOUT):
        output.result({**data, "variants": [each.to_json() for each in rows.matches]}, lines)
    elif empty or matched:
        note(lines)


def _to_write(
    found: dict[str, AnyArray], batch: Batch, wanted: Sequence[str], features: Sequence[str], dtype: DTypeLike
) -> tuple[AnyArray, dict[str, AnyArray]]:
    """The numbers of some rows, and the columns beside them."""
    beside = dict(batch.passthrough)
    if "named" in wanted:
        beside["named"] = np.asarray(features, dtype=object)[found["named"]]
    numbers = np.column_stack(
        [np.zeros((len(batch), 0)), *(found[name] for name in wanted if name != "named")]
    )
    return numbers.astype(np.float32) if dtype == np.float32 else numbers, beside


def _scores(
    pca: "ModelPCA", batch: Batch, wanted: Sequence[str], shrinkage: Shrinkage
) -> dict[str, AnyArray]:
    """What is wanted of some rows, by name; alarms are made of the score."""
    found: dict[str, AnyArray] = {}
    if "components" in wanted:
        found["components"] = pca.transform(batch, shrinkage=shrinkage)
    if {"spe", "t2"} & {*wanted}:
        found["spe"], found["t2"] = pca.anomaly_scores(batch)
    if {"score", "alarm"} & {*wanted}:
        found["score"] = pca.anomaly_score(batch)
    if {"named", "contributions"} & {*wanted}:
        added = pca.contributions(batch)
        found["named"], found["contributions"] = added.named, added.score
    return found


def _detector(model: Path, components: int | None, shown: int) -> "PCADetector":
    """The limit in a model file."""
    from fedpca.estimators.detector import PCADetector

    if components not in (None, shown):
        raise WrongUsage(f"the limit in {model} is of {shown} components; leave -n out.")
    detector = PCADetector.load_model(model)
    if detector.histogram_ is None:
        raise ValueError(f"{model} has no limit; fit it with --alarms 0.01, or leave out alarm.")
    return detector


def _wanted(scores: list[str] | None) -> list[str]:
    """The names in --scores, in their order."""
    wanted = scores or ["components"]
    if len(set(wanted)) < len(wanted) or not {*wanted} <= {*_SCORES}:
        raise WrongUsage(
            f"--scores must be some of {', '.join(_SCORES)}, each once, got {','.join(wanted)!r}."
        )
    return wanted


def _kind(out: Path, wanted: Sequence[str], output: Output) -> str:
    """The format to write."""
    if out == _STDOUT and output.as_json:
        raise WrongUsage("--json cannot be combined with --out -: the scores go to standard output.")
    with wrong_usage():
        kind = ".csv" if out == _STDOUT else ending(out, writers.SCORES)
        if wanted != ["components"]:
            writers.require_any_scores(kind)
    return kind


def _written(out: Path, force: bool) -> Sequence[Path]:
    """The files to write, which can be written."""
    written = () if out == _STDOUT else writers.score_files(out)
    for file in written:
        check_output_path(file, force)
    return written


def _check_model(model: Path, summary: Summary, shown: int, shrinkage: Shrinkage) -> None:
    if not shown:
        why = "the training rows do not vary" if summary.certificate is None else "none rises above its noise"
        raise ValueError(f"{model} has no components: {why}.")
    if shrinkage is not None and summary.certificate is not None:
        raise ValueError(f"{model} is private: shrinkage cannot be corrected, its variances contain noise.")


def _with_ids(rows: RowReader, kind: str, summary: Summary, keep: Sequence[str]) -> RowReader:
    """Rows of the model's features, with the ids that a format of scores has by default."""
    if rows.n_features != summary.n_features:
        raise ValueError(
            f"rows must have the model's {summary.n_features} features, got {rows.n_features}; "
            "use files with the columns of the fit."
        )
    if rows.matches:  # genotypes come as float32, which would lose digits of scores that plink2 prints
        rows = replace(rows, dtype=np.dtype(np.float64))
    if keep:
        return rows
    known, ids = set(rows.passthrough_names), writers.DEFAULT_IDS.get(kind, ())
    return replace(rows, passthrough=tuple(next((names for names in ids if known.issuperset(names)), ())))
