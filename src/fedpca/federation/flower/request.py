"""Request: what a run asks of every node."""

from typing import TypedDict

from fedpca.privacy.calibration import Adjacency


class Request(TypedDict, total=False):
    """What a run asks of every node; anyone may have sent it.

    Attributes:
        rank, center, scale: of the model.
        epsilon, delta, bound, adjacency: those of a `PrivacyFloor`, if only private releases are accepted.
        study, rosters, keys: of a run with a roster, see `member.to_request`.
        known: in secure sums, what on the board the node has already.
    """

    rank: int
    center: bool
    scale: str
    epsilon: float
    delta: float
    bound: float
    adjacency: Adjacency
    study: str
    rosters: list[str]
    keys: list[str]
    known: list[str]
