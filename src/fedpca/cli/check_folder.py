"""fedpca check-folder: whether a folder may have ledgers, stores, states and shared files."""

from typing import Annotated

from cyclopts import Parameter

from fedpca._util.folder_checks import check_folder as checked
from fedpca._util.text import join_names
from fedpca.cli.options import File, Output


def check_folder(folder: Annotated[File, Parameter(name="FOLDER")], /, *, output: Output = Output()) -> None:
    """Try whether locks, appended lines, renames, hard links and fsync work in a folder. Exit code 1 if not.

    Two processes of this machine try it: what two machines see of each other they cannot tell.

    For example:

    ```
    fedpca check-folder /srv/study
    ```

    Args:
        folder: The folder, where something can be written.
    """
    found = checked(folder)
    width = max(len(item.name) for item in found)
    lines = [f"{item.name:<{width}}  {'ok' if item.holds else 'NO'}  {item.text}" for item in found]
    data = {item.name: {"holds": item.holds, "text": item.text} for item in found}
    output.result({"folder": str(folder), "properties": data}, "\n".join(lines))
    if bad := [item.name for item in found if not item.holds]:
        raise ValueError(f"{folder} does not do what is needed: {join_names(bad)}; choose a local disk.")
