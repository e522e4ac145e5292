"""fedpca report: an HTML page about a model, its rows and its federation."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedpca.cli import model_files
from fedpca.cli.options import (
    File,
    Force,
    ModelPath,
    Names,
    Out,
    Output,
    Text,
    WrongUsage,
    check_folder_path,
    check_output_path,
)
from fedpca.cli.reading import Reading, reading_of
from fedpca.cli.signatures import describe_signature
from fedpca.cli.signing import Study
from fedpca.readers import open_rows
from fedpca.summaries import model_file


def report(
    model: ModelPath,
    /,
    *,
    out: Out = Path("report.html"),
    rows: Annotated[list[str] | None, Parameter(metavar="PATH")] = None,
    color: Text | None = None,
    keep: Names | None = None,
    run: Annotated[File | None, Parameter(metavar="FOLDER")] = None,
    study: Study = Study(),
    pictures: Annotated[File | None, Parameter(metavar="FOLDER")] = None,
    force: Force = False,
    output: Output = Output(),
    reading: Reading = Reading(),
) -> None:
    """Write a report about a model: one HTML file.

    It shows the scree plot, loadings, certificate, and who signed the model. With --rows it also shows the
    scores of a sample of the rows, and outliers; if the model has limits (fit --alarms) also the alarms, what
    caused them, and contributions over time: the page is then as confidential as the rows. With --run it
    also shows who contributed what, and which clients were late, rejected or did not report. Plots are
    interactive in a browser; the page loads nothing from the network.

    For example:

    ```
    fedpca report model.safetensors --rows 2025.parquet --color site -o report.html
    ```

    Args:
        out: The page to write.
        rows: A file, folder or glob pattern of rows to show; may be repeated.
        color: The column of the rows to color them by.
        keep: Columns to show with each row, such as ids; readers can color rows by any of them.
        run: The folder of a Flower run, or of an aggregator's store.
        pictures: A folder for all charts as .png and .svg files.
    """
    for option, value in (("--color", color), ("--keep", keep)):
        if value is not None and not rows:
            raise WrongUsage(f"{option} names columns of the rows; add --rows.")
    if out.suffix.lower() not in (".html", ".htm"):
        raise WrongUsage(
            f"a report must end in .html, got {out}; print the page to a PDF in a browser, or write "
            "its charts with --pictures FOLDER."
        )
    check_output_path(out, force)
    if pictures is not None:
        check_folder_path(pictures, force)

    from fedpca.estimators.detector import PCADetector
    from fedpca.report import write_report

    contents = model_file.read_bytes(model)
    summary, shown = model_files.decode(model, contents)
    signature = describe_signature(contents, study.load())
    signed = "" if run and signature["holds"] is None else signature["text"]  # a run names its members
    table = None
    if rows:
        names = summary.feature_names
        shown_with, apart = keep or [], color is not None and color not in (names or ())
        if apart and color is not None:
            shown_with = [color, *(name for name in shown_with if name != color)]
        read_as = reading_of(model, contents, rows, reading)
        table = open_rows(rows, columns=names, passthrough=shown_with, **read_as)
        color = table.passthrough[0] if apart else color  # which may be the number of a column
    has_limits = "limits" in model_file.decode(contents, model)[2]
    detector = PCADetector.load_model(model) if has_limits else None
    with output.progress():
        write_report(
            out,
            summary if detector is None else detector,
            rows=table,
            color=color,
            run=run,
            n_components=shown,
            signature=signed,
            title=model.name,
            pictures=pictures,
        )
    data = {"out": str(out), "pictures": None if pictures is None else str(pictures)}
    output.result(data, f"Open in a browser: {out}")
