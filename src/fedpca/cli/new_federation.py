"""fedpca new-federation: a folder to start a Flower federation from."""

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.common import AsJson, print_result


def new_federation(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")],
    as_json: AsJson = False,
) -> None:
    """Write a folder to start a Flower federation from.

    Example:

    ```
    fedpca new-federation our-study
    ```
    """
    from fedpca.federation.flower.scaffold import write_template

    write_template(folder)
    print_result({"out": str(folder)}, as_json, f"{folder}: read its README.md")
