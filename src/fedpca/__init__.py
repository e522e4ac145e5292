"""Federated, streaming, differentially private PCA: rows in, summaries out, summaries merge."""

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedpca._util.version import __version__ as __version__

if TYPE_CHECKING:
    from fedpca import metrics, plot, progress
    from fedpca.auditing.audit import audit
    from fedpca.disclosure.policy import Policy
    from fedpca.errors import BudgetExceeded, ModelFileError, PolicyViolation
    from fedpca.estimators.files import fit_files
    from fedpca.estimators.private import PrivatePCA
    from fedpca.estimators.streaming import StreamingPCA
    from fedpca.estimators.windowed import WindowedPCA
    from fedpca.federation.aggregator.aggregator import Aggregator
    from fedpca.federation.one_process.federated_pca import FederatedPCA
    from fedpca.privacy.ledger import Ledger
    from fedpca.privacy.settings import Privacy
    from fedpca.secure.planning import plan
    from fedpca.secure.settings import SecureSums
    from fedpca.summaries.merging import merge, merge_tree
    from fedpca.summaries.moments import Moments
    from fedpca.summaries.rank import EnergyBand
    from fedpca.summaries.scaling import Scaling
    from fedpca.summaries.subspace import Subspace
    from fedpca.summaries.summary import load
    from fedpca.trust.keys import SigningKey
    from fedpca.trust.roster import Roster

_MODULES = {
    "Aggregator": "federation.aggregator.aggregator",
    "BudgetExceeded": "errors",
    "EnergyBand": "summaries.rank",
    "FederatedPCA": "federation.one_process.federated_pca",
    "Ledger": "privacy.ledger",
    "ModelFileError": "errors",
    "Moments": "summaries.moments",
    "Policy": "disclosure.policy",
    "PolicyViolation": "errors",
    "Privacy": "privacy.settings",
    "PrivatePCA": "estimators.private",
    "Roster": "trust.roster",
    "Scaling": "summaries.scaling",
    "SecureSums": "secure.settings",
    "SigningKey": "trust.keys",
    "StreamingPCA": "estimators.streaming",
    "Subspace": "summaries.subspace",
    "WindowedPCA": "estimators.windowed",
    "audit": "auditing.audit",
    "fit_files": "estimators.files",
    "load": "summaries.summary",
    "merge": "summaries.merging",
    "merge_tree": "summaries.merging",
    "metrics": "metrics",
    "plan": "secure.planning",
    "plot": "plot",
    "progress": "progress",
}
__all__ = [
    "Aggregator",
    "BudgetExceeded",
    "EnergyBand",
    "FederatedPCA",
    "Ledger",
    "ModelFileError",
    "Moments",
    "Policy",
    "PolicyViolation",
    "Privacy",
    "PrivatePCA",
    "Roster",
    "Scaling",
    "SecureSums",
    "SigningKey",
    "StreamingPCA",
    "Subspace",
    "WindowedPCA",
    "audit",
    "fit_files",
    "load",
    "merge",
    "merge_tree",
    "metrics",
    "plan",
    "plot",
    "progress",
]


logging.getLogger("fedpca").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import fedpca` stays cheap."""
    if name not in _MODULES:
        remedy = f"; import it with `import fedpca.{name}`." if _is_module(name) else ""
        raise AttributeError(f"module 'fedpca' has no attribute {name!r}{remedy}")
    module = import_module(f"fedpca.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name, module)
    return value


def _is_module(name: str) -> bool:
    return not name.startswith("_") and find_spec(f"fedpca.{name}") is not None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
