"""Differential privacy: what leaves an owner of rows is noised once, as a sum, and certified."""

from fedpca.errors import BudgetExceeded, NotReleasedError
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.planning import Plan
from fedpca.privacy.settings import Privacy
from fedpca.privacy.sums import StepSum
from fedpca.privacy.tracker import PrivateTracker

__all__ = [
    "BudgetExceeded",
    "Ledger",
    "NotReleasedError",
    "Plan",
    "Privacy",
    "PrivateTracker",
    "StepSum",
]
