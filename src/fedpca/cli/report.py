"""fedpca report: a page about a model, its rows and its federation."""

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli import models
from fedpca.cli.common import AsJson, Force, bars, must_be_free, say


def report(
    model: Annotated[Path, typer.Argument(metavar="MODEL")],
    out: Annotated[Path, typer.Option("--out", "--output", help="Where to write, as in report.html.")],
    rows: Annotated[
        list[str] | None,
        typer.Option(help="A file, folder or glob of rows to show along the components; may come again."),
    ] = None,
    color: Annotated[str | None, typer.Option(help="The column of the rows to color them by.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder of a Flower run, or of an aggregator's store.")
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="A folder for all charts as files, .png and .svg.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a page about a model: one HTML file.

    As in: fedpca report model.safetensors --rows 2025.parquet --color site --out report.html

    It shows the spectrum, loadings and certificate. With --rows also the rows, a sample of them as points,
    and which are far from what was learned: the page is then as confidential as they are. With --run also
    who contributed what, how the model came to be, and who was late, refused or silent.
    """
    if color is not None and not rows:
        raise typer.BadParameter("--color names a column of the rows: say --rows, too.")
    must_be_free(out, force)
    if pictures is not None and pictures.exists() and not _may_write(pictures, force):
        raise FileExistsError(f"{pictures} must be a new or empty folder; name another, or say --force.")

    from fedpca.readers import open_rows
    from fedpca.report import write_report

    summary, shown = models.read(model)
    table = None
    if rows:
        names = summary.feature_names
        aside = [] if color is None or color in (names or ()) else [color]
        table = open_rows(rows, columns=names, aside=aside)
    with bars():
        write_report(
            out,
            summary,
            rows=table,
            color=color,
            run=run,
            n_components=shown,
            title=model.name,
            pictures=pictures,
        )
    facts = {"out": str(out), "pictures": None if pictures is None else str(pictures)}
    say(facts, as_json, f"Open in a browser: {out}")


def _may_write(folder: Path, force: bool) -> bool:
    return folder.is_dir() and (force or not any(folder.iterdir()))
