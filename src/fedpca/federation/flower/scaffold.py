"""A folder to start a federation from: the Flower app, a node config, and how to use them."""

import shutil
from pathlib import Path


def new(folder: str | Path) -> None:
    """Write the template of a federation.

    Args:
        folder: made if there is none; one that is not empty stays as it is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     new(empty)
    ...     sorted(path.name for path in Path(empty).iterdir())
    ['README.md', 'node.toml', 'pyproject.toml']
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"a federation starts in a new or empty folder, and {folder} is not.")
    shutil.copytree(Path(__file__).parent / "template", folder, dirs_exist_ok=True)
