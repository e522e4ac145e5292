"""Secure sums: whoever collects learns the sum over owners, and nothing else of any of them.

Double masking after Bonawitz et al. (2017), with signatures on who is in the sum before anything is opened.
Owners and the coordinator are pure state machines on a board of named messages; carriers move the board.
Needs the extra "secure".
"""

from fedpca.secure.coordinator import Coordinator
from fedpca.secure.messages import Announced, NoiseBlock, Total
from fedpca.secure.owner import Owner
from fedpca.secure.owner_secrets import Secrets
from fedpca.secure.record import Record, relevant
from fedpca.secure.session import Session
from fedpca.secure.settings import SecureSums, Terms

__all__ = [
    "Announced",
    "Coordinator",
    "NoiseBlock",
    "Owner",
    "Record",
    "Secrets",
    "SecureSums",
    "Session",
    "Terms",
    "Total",
    "relevant",
]
