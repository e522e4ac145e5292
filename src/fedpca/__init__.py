"""Federated, streaming, private principal component analysis: rows in, summaries out, summaries merge."""

from fedpca import metrics, progress
from fedpca.audit import audit
from fedpca.estimator import StreamingPCA
from fedpca.federated import FederatedPCA
from fedpca.federation import Aggregator
from fedpca.merge import merge, merge_tree
from fedpca.modelfile import ModelFileError
from fedpca.moments import Moments
from fedpca.privacy import BudgetExceeded, Ledger, Privacy, plan
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
