"""fedpca new-federation: a folder to start a Flower federation from."""

from typing import Annotated

from cyclopts import Parameter

from fedpca.cli.options import File, Output


def new_federation(
    folder: Annotated[File, Parameter(name="FOLDER")], /, *, output: Output = Output()
) -> None:
    """Write a folder to start a Flower federation from.

    For example:

    ```
    fedpca new-federation our-study
    ```

    Args:
        folder: A new or empty folder.
    """
    from fedpca.federation.flower.scaffold import write_template

    write_template(folder)
    output.result({"out": str(folder)}, f"{folder}: read its README.md")
