"""Secure sums in one process: every client an owner with keys of its own, over one board in memory."""

import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fedpca.errors import SecureError
from fedpca.privacy import Privacy
from fedpca.secure import Coordinator, Owner, OwnerMemory, Progress, SecureSums, Session, relevant
from fedpca.secure.fit import Fit
from fedpca.secure.rows import OwnerRows
from fedpca.summaries.summary import Summary
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Member, Roster


@dataclass(frozen=True)
class SecureResult:
    """What came out of a study.

    Attributes:
        fit: the coordinator's, with the model.
        model: that of all totals, with its certificate.
        owners: the clients that the model is made of.
        problems: why others dropped out, by name; they may have taken part in earlier sums.
    """

    fit: Fit
    model: Summary
    owners: tuple[str, ...]
    problems: dict[str, str]


class SecureClients:
    """A study among clients in one process, each with ephemeral keys. One that fails drops out.

    Args:
        rows: those of each client, by name.
        problems: of clients that have no rows that can be used: they have dropped out already.
        make_fit: gives the fit that all have agreed on; the clients and the coordinator have one each.
        secure: fewest clients in a sum, and how many may collude.
        privacy: that of the fit, or None; every client has an account of its own, in memory.
    """

    def __init__(
        self,
        rows: Mapping[str, OwnerRows],
        problems: Mapping[str, str],
        make_fit: Callable[[], Fit],
        secure: SecureSums,
        privacy: Privacy | None = None,
    ) -> None:
        self._terms = terms = secure.terms(sorted([*rows, *problems]))
        keys = {name: SigningKey.new() for name in terms.ids}
        roster = Roster(
            f"in-process-{secrets.token_hex(4)}",
            [Member(name, key.public) for name, key in keys.items()],
            {"colluding": terms.colluding, "least": terms.least},
        )
        session = Session.new(roster)
        self._board = {"session": session}
        self._coordinator = Coordinator(Progress(Session(roster, session), make_fit()))
        self._owners = {
            name: Owner(
                Progress(Session(roster, session), make_fit()),
                keys[name],
                own,
                OwnerMemory(),
                privacy=privacy,
                ledger=None if privacy is None else privacy.open_ledger(),
            )
            for name, own in sorted(rows.items())
        }
        self._problems = dict(problems)

    def run(self, pool: ThreadPoolExecutor) -> SecureResult:
        """All sums, the clients in the threads of a pool.

        Raises:
            SecureError: too few clients are left for a sum.
        """
        board = self._board
        while True:
            new = self._coordinator.advance(board)
            if self._coordinator.has_ended:
                break
            new = new or self._replies(pool) or self._coordinator.advance(board, closing=True)
            if not new:
                raise SecureError(
                    f"secure sums need at least {self._terms.least} of {self._terms.n_members} clients, and "
                    f"{len(self._owners)} are left: {self._problems}"
                )
            board |= new
        progress = self._coordinator.progress
        fit = progress.fit
        release = next(part for part in reversed(fit.taken) if part.sum != "evaluation")
        return SecureResult(fit, progress.model(board), release.owners, self._problems)

    def _replies(self, pool: ThreadPoolExecutor) -> dict[str, bytes]:
        """What all clients have to say now."""
        indices = {name: index for index, name in enumerate(self._terms.ids)}
        pending = {
            name: pool.submit(owner.reply, relevant(self._board, indices[name]))
            for name, owner in self._owners.items()
        }
        replies: dict[str, bytes] = {}
        for name, future in pending.items():
            error = future.exception()
            if error is None:
                replies |= future.result()
            elif isinstance(error, Exception):
                self._problems[name] = f"{type(error).__name__}: {error}"
                del self._owners[name]
            else:
                raise error
        return replies
