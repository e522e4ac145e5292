"""Federated, streaming, private principal component analysis: rows in, summaries out, summaries merge."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpca import metrics, progress
    from fedpca.audit import audit
    from fedpca.estimator import StreamingPCA
    from fedpca.federated import FederatedPCA
    from fedpca.federation import Aggregator
    from fedpca.merge import merge, merge_tree
    from fedpca.modelfile import ModelFileError
    from fedpca.moments import Moments
    from fedpca.privacy import BudgetExceeded, Ledger, Privacy
    from fedpca.privacy.plan import plan
    from fedpca.rank import EnergyBand
    from fedpca.subspace import Subspace, load

__version__ = "0.1.0"
__all__ = [
    "Aggregator",
    "BudgetExceeded",
    "EnergyBand",
    "FederatedPCA",
    "Ledger",
    "ModelFileError",
    "Moments",
    "Privacy",
    "StreamingPCA",
    "Subspace",
    "audit",
    "load",
    "merge",
    "merge_tree",
    "metrics",
    "plan",
    "progress",
]
_HOMES = {
    "Aggregator": "federation",
    "BudgetExceeded": "privacy",
    "EnergyBand": "rank",
    "FederatedPCA": "federated",
    "Ledger": "privacy",
    "ModelFileError": "modelfile",
    "Moments": "moments",
    "Privacy": "privacy",
    "StreamingPCA": "estimator",
    "Subspace": "subspace",
    "audit": "audit",
    "load": "subspace",
    "merge": "merge",
    "merge_tree": "merge",
    "plan": "privacy",
}


class _Package(ModuleType):
    """Imports what is asked for when it is: the command line answers before scikit-learn is there."""

    def __getattr__(self, name: str) -> Any:
        if name in _HOMES:
            value = getattr(import_module(f"fedpca.{_HOMES[name]}"), name)
        elif name in __all__:
            value = import_module(f"fedpca.{name}")
        else:
            raise AttributeError(f"module 'fedpca' has no attribute {name!r}")
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Where a function has its module's name, whoever imports the module must not replace the function.
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
