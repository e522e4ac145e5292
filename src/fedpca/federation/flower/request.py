"""Request: what a run asks of every node."""

import hashlib
from typing import TypedDict

from fedpca.errors import BudgetExceeded, NodeConfigError, NodeError

NOTHING = "none"
"""The value in a run config of what is not set."""


class Request(TypedDict, total=False):
    """What a run asks of every node; anyone may have sent it.

    Attributes:
        rank, center, scale: of the model, as `fedpca.trust.agreement` spells them.
        epsilon, delta, bound, adjacency: the weakest promise, if only private releases are accepted.
        study, rosters, keys: of a run with a roster, see `member.to_request`.
        known: in secure sums, what on the board the node has already.
        taken: `digest_of_name` of every name that belongs to another node, in a run without a roster.
    """

    rank: int
    center: bool
    scale: str
    epsilon: float
    delta: float
    bound: float | str
    adjacency: str
    study: str
    rosters: list[str]
    keys: list[str]
    known: list[str]
    taken: list[str]


def digest_of_name(client: str) -> str:
    """A name in 64 bits: tells who has the same name, and no others to those who cannot guess them."""
    return hashlib.sha256(b"fedpca client\n" + client.encode()).hexdigest()[:16]


def check_name(request: Request, client: str) -> None:
    """Raise a NodeError, before anything is read or spent, for the name of another node."""
    if digest_of_name(client) in request.get("taken", []):
        raise NodeError(
            f"another node is {client!r:.80} already; give each its own client-id. Nothing was read or "
            "spent. If this client has another node now, let the server withdraw it first."
        )


def public_reason(error: Exception) -> str:
    """What others may learn about an error: no value of a config, path or row."""
    if isinstance(error, NodeConfigError):
        return f"{error.public}; see the log of its SuperNode."
    if isinstance(error, NodeError):
        return str(error)
    if isinstance(error, BudgetExceeded):
        return "its ledger does not have the budget for it; see the log of its SuperNode."
    return f"its rows could not be released ({type(error).__name__}); see the log of its SuperNode."


def config_error(error: Exception) -> NodeConfigError:
    """What is wrong with a node config, in words that may quote it."""
    return NodeConfigError(f"node config: {error}", "a value in its node config cannot be used")
