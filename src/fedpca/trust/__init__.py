"""Trust: what may leave its owner."""

from fedpca.trust.policy import Policy, RuleResult
from fedpca.trust.row_counts import RowCounts

__all__ = ["Policy", "RowCounts", "RuleResult"]
