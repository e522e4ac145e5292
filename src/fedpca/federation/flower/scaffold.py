"""A template to start a federation from: the Flower app, a node config, and a README."""

import shutil
from pathlib import Path


def write_template(folder: str | Path) -> None:
    """Write the template of a federation.

    Args:
        folder: created if it does not exist; must be empty.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     write_template(empty)
    ...     sorted(path.name for path in Path(empty).iterdir())
    ['README.md', 'node.toml', 'pyproject.toml']
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"a federation needs a new or empty folder, and {folder} is not; choose another."
        )
    shutil.copytree(Path(__file__).parent / "template", folder, dirs_exist_ok=True)
