"""Secure sums: whoever collects learns the sum over owners, and nothing else of any of them.

Double masking after Bonawitz et al. (2017), with signatures on who is in the sum before anything is opened.
`Owner` and `Coordinator` answer a board of named messages, all of them in one table (`messages`); carriers
move the board.
Needs the extra "secure".
"""

from fedpca.secure.board import CheckedBoard, relevant
from fedpca.secure.coordinator import Coordinator
from fedpca.secure.messages import Announced, NoiseBlock, Total
from fedpca.secure.owner import Owner
from fedpca.secure.owner_secrets import Secrets
from fedpca.secure.owner_state import OwnerFiles, OwnerMemory
from fedpca.secure.progress import Progress
from fedpca.secure.session import Session
from fedpca.secure.settings import SecureSums, Terms

__all__ = [
    "Announced",
    "CheckedBoard",
    "Coordinator",
    "NoiseBlock",
    "Owner",
    "OwnerFiles",
    "OwnerMemory",
    "Progress",
    "Secrets",
    "SecureSums",
    "Session",
    "Terms",
    "Total",
    "relevant",
]
