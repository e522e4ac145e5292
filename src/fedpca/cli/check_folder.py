"""fedpca check-folder: whether a folder may have ledgers, stores, states and shared files."""

from pathlib import Path
from typing import Annotated

import typer

from fedpca._util.text import join_names
from fedpca.cli.common import AsJson, print_result


def check_folder(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder, where something can be written.")
    ],
    as_json: AsJson = False,
) -> None:
    """Try whether locks, appended lines, renames, hard links and fsync work in a folder. Exit code 1 if not.

    Two processes of this machine try it: what two machines see of each other they cannot tell.

    Example:

    ```
    fedpca check-folder /srv/study
    ```
    """
    from fedpca._util.folder_checks import check_folder as checked

    found = checked(folder)
    width = max(len(item.name) for item in found)
    lines = [f"{item.name:<{width}}  {'ok' if item.holds else 'NO'}  {item.text}" for item in found]
    data = {item.name: {"holds": item.holds, "text": item.text} for item in found}
    print_result({"folder": str(folder), "properties": data}, as_json, "\n".join(lines))
    if bad := [item.name for item in found if not item.holds]:
        raise ValueError(f"{folder} does not do what is needed: {join_names(bad)}; choose a local disk.")
