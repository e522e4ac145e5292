"""Disclosure: what may leave the owner of rows, by a policy and by what is counted of the rows."""

from fedpca.disclosure.policy import Policy, RuleResult
from fedpca.disclosure.row_counts import RowCounts

__all__ = ["Policy", "RowCounts", "RuleResult"]
