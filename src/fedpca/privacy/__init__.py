"""Differential privacy: what leaves an owner of rows is noised once, as a sum, and certified."""

from fedpca.privacy.ledger import BudgetExceeded, Ledger
from fedpca.privacy.planning import Plan, plan
from fedpca.privacy.settings import Privacy
from fedpca.privacy.tracker import NotReleasedError, PrivateTracker

__all__ = ["BudgetExceeded", "Ledger", "NotReleasedError", "Plan", "Privacy", "PrivateTracker", "plan"]
