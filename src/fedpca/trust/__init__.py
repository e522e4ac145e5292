"""Trust: who takes part in a study, who signed a file, and what may leave its owner.

Signatures need the extra "secure".
"""

from fedpca.trust.keys import PublicKey, SigningKey
from fedpca.trust.policy import Policy, RuleResult
from fedpca.trust.roster import Member, Roster, Signer
from fedpca.trust.row_counts import RowCounts
from fedpca.trust.signature import Signature

__all__ = [
    "Member",
    "Policy",
    "PublicKey",
    "Roster",
    "RowCounts",
    "RuleResult",
    "Signature",
    "Signer",
    "SigningKey",
]
