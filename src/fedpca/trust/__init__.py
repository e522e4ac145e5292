"""Trust: who takes part in a study, and who signed a file.

Signatures need the extra "secure".
"""

from fedpca.trust.envelope import Signature
from fedpca.trust.keys import PublicKey, SigningKey
from fedpca.trust.roster import Member, Roster, Signer

__all__ = [
    "Member",
    "PublicKey",
    "Roster",
    "Signature",
    "Signer",
    "SigningKey",
]
