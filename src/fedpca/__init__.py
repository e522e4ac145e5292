"""Federated, streaming, differentially private PCA: rows in, summaries out, summaries merge.

`__init__.pyi` lists the public names. Each is imported on first use, so that `import fedpca` stays cheap.
"""

import logging
import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedpca._util.version import __version__ as __version__

_STUB = __spec__.loader.get_data(os.path.join(__path__[0], "__init__.pyi")).decode()
_LINES = [line.split() for line in _STUB.splitlines() if line.startswith("from fedpca")]  # ... import name
_MODULES = {line[3]: f"fedpca.{line[3]}" if line[1] == "fedpca" else line[1] for line in _LINES}
__all__ = sorted({*_MODULES} - {"__version__"})

logging.getLogger("fedpca").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        is_module = not name.startswith("_") and find_spec(f"fedpca.{name}") is not None
        remedy = f"; import it with `import fedpca.{name}`." if is_module else ""
        raise AttributeError(f"module 'fedpca' has no attribute {name!r}{remedy}")
    module = import_module(_MODULES[name])
    value = globals()[name] = getattr(module, name, module)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
