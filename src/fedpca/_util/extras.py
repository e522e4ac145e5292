"""Optional dependencies: one error message for a package that is not installed."""

from importlib import import_module
from typing import Any


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional module, or say which extra of fedpca installs it.

    >>> require("json", extra="cli", purpose="the command line").dumps([1])
    '[1]'
    >>> require("no_such_package", extra="cli", purpose="the command line")
    Traceback (most recent call last):
    ImportError: the command line needs no_such_package: pip install 'fedpca[cli]'.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{purpose} needs {package}: pip install 'fedpca[{extra}]'.") from error
