"""fedpca report: an HTML page about a model, its rows and its federation."""

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli import model_files
from fedpca.cli.common import (
    AsJson,
    Force,
    ModelPath,
    Reading,
    check_output_path,
    parse_names,
    print_result,
    progress_bars,
    reading_options,
)
from fedpca.cli.roster_options import RosterOption, load_roster
from fedpca.cli.signatures import describe_signature


@reading_options
def report(
    model: ModelPath,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A file, folder or glob pattern of rows to show; may be repeated."),
    ] = None,
    color: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of the rows to color them by.")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Columns to show with each row, such as ids; readers can color rows by any of them.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder of a Flower run, or of an aggregator's store."),
    ] = None,
    roster: RosterOption = None,
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A folder for all charts as .png and .svg files.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Write a report about a model: one HTML file.

    It shows the scree plot, loadings, certificate, and who signed the model. With --rows it also shows the
    scores of a sample of the rows, and outliers; if the model has limits (fit --alarms) also the alarms, what
    caused them, and contributions over time: the page is then as confidential as the rows. With --run it
    also shows who contributed what, and which clients were late, rejected or did not report. Plots are
    interactive in a browser; the page loads nothing from the network.

    Example:

    ```
    fedpca report model.safetensors --rows 2025.parquet --color site -o report.html
    ```
    """
    for option, value in (("--color", color), ("--keep", keep)):
        if value is not None and not rows:
            raise typer.BadParameter(f"{option} names columns of the rows; add --rows.")
    if out.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(
            f"a report must end in .html, got {out}; print the page to a PDF in a browser, or write "
            "its charts with --pictures FOLDER."
        )
    check_output_path(out, force)
    if pictures is not None and pictures.exists() and not _may_write(pictures, force):
        raise FileExistsError(f"{pictures} must be a new or empty folder; choose another, or pass --force.")

    from fedpca.estimators.detector import PCADetector
    from fedpca.readers import open_rows
    from fedpca.report import write_report
    from fedpca.summaries import model_file

    contents = model_file.read_bytes(model)
    summary, shown = model_files.decode(model, contents)
    signature = describe_signature(contents, load_roster(roster))
    signed = "" if run and signature["holds"] is None else signature["text"]  # a run names its members
    table = None
    if rows:
        names = summary.feature_names
        shown_with, apart = parse_names(keep) or [], color is not None and color not in (names or ())
        if apart and color is not None:
            shown_with = [color, *(name for name in shown_with if name != color)]
        read_as = model_files.reading_of(model, contents, rows, reading)
        table = open_rows(rows, columns=names, passthrough=shown_with, **read_as)
        color = table.passthrough[0] if apart else color  # which may be the number of a column
    has_limits = "limits" in model_file.decode(contents, model)[2]
    detector = PCADetector.load_model(model) if has_limits else None
    with progress_bars():
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
    print_result(data, as_json, f"Open in a browser: {out}")


def _may_write(folder: Path, force: bool) -> bool:
    return folder.is_dir() and (force or not any(folder.iterdir()))
