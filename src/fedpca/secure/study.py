"""A study by secure sums: the protocol, which moves sums, and the fit, which says of what.

Both sides go through the same fit: the coordinator announces its next sum, every owner checks that it is its
own next sum, too, and adds its rows. The total is public, and the fit goes on with it.
"""

import hashlib
from dataclasses import dataclass
from math import ceil, frexp, ldexp, sqrt
from typing import Any

import numpy as np

from fedpca._typing import AnyArray
from fedpca.disclosure.policy import Policy
from fedpca.errors import SecureError
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.settings import Privacy
from fedpca.secure.aliasing import require_negligible
from fedpca.secure.coordinator import Coordinator
from fedpca.secure.fit import Fit, PrivateFit
from fedpca.secure.followed import Followed, added_to_delta
from fedpca.secure.messages import Announced
from fedpca.secure.owner import Owner
from fedpca.secure.owner_state import OwnerState
from fedpca.secure.plain_fit import PlainFit
from fedpca.secure.proofs import debit_name
from fedpca.secure.record import Record
from fedpca.secure.rows import HashedParts, OwnerRows
from fedpca.secure.session import Session
from fedpca.secure.wire import Board
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Member, Roster

_SAME = 1e-12  # what machines round differently
_LARGER = 1e-5  # by which announced noise may exceed what is needed
_TAIL = 10.0  # standard deviations of the noise of all owners
_WORDS = 2.0**63


def privacy_of(roster: Roster) -> Privacy | None:
    """The privacy that all members of a study have agreed on; None without."""
    return Privacy.agreed(roster.settings)


def fit_of(roster: Roster) -> Fit:
    """What the members of a study have agreed to sum."""
    settings = roster.settings
    names = tuple(settings["features"]) if "features" in settings else None
    n_features = len(names) if names is not None else settings.get("n_features")
    if n_features is None or "rank" not in settings:
        raise ValueError(
            "a study by secure sums must state rank, and features or n_features, in [settings] of its roster."
        )
    rank, scale = settings["rank"], settings.get("scale", "none")
    if scale == "binomial":
        raise ValueError("scale='binomial' cannot be found by secure sums; use 'std' or 'none'.")
    scale = None if scale == "none" else scale
    privacy = privacy_of(roster)
    if privacy is not None:
        return PrivateFit(privacy, n_features, rank, scale=scale, feature_names=names)
    if "largest" not in settings:
        raise ValueError(
            "a study by secure sums must state epsilon and delta or, without noise, largest, a public bound "
            "on the entries of rows, in [settings] of its roster."
        )
    return PlainFit(
        settings["largest"],
        n_features,
        rank,
        center=settings.get("center", True),
        scale=scale,
        feature_names=names,
    )


def member_facts(roster: Roster, key: SigningKey) -> dict[str, Any]:
    """Whose state it is: two members with the same secrets would add the same noise."""
    return {"the member": roster.member_of(key.public).id}


class OwnerStudy:
    """One owner's part in a session.

    Args:
        roster: the owner's own copy.
        session: as the coordinator opened it.
        key: the owner's.
        fit: that of the roster.
        rows: the owner's.
        state: what it keeps of the session.
        privacy: the settings of the fit, with its ledger; None without noise.
        ledger: what pays; None without privacy.
        policy: of the owner, checked before anything leaves; None checks nothing.
    """

    def __init__(
        self,
        roster: Roster,
        session: bytes,
        key: SigningKey,
        fit: Fit,
        rows: OwnerRows,
        state: OwnerState,
        *,
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
        policy: Policy | None = None,
    ) -> None:
        if (privacy is None) != (ledger is None):
            raise ValueError("privacy must come with the ledger that pays, and a ledger with privacy.")
        self._session = Session(roster, session)
        self._session.check_clock()
        self._followed = Followed(self._session, fit)
        self._rows = rows
        self._state = state
        self._privacy = privacy
        self._ledger = ledger
        self._policy = policy
        self._is_allowed = False
        self._check_features(fit)
        self._check_declared(roster.member_of(key.public))
        state.begin(member_facts(roster, key) | {"the number of rows": rows.n_rows}, fit.most_sums)
        self._owner = Owner(roster, session, key, rows.n_rows, state.secrets, state.sent)

    def reply(self, board: Board) -> dict[str, bytes]:
        """What the owner has to send now: kept before it is returned, so that it is never made twice.

        Raises:
            SecureError: the board contradicts what this owner knows; nothing new is sent.
            BudgetExceeded: the ledger cannot pay for the study; nothing is sent.
            PolicyViolation: the owner's policy does not allow it; nothing is sent.
        """
        if not self._state.sent:
            self._check_may_begin()
        record = self._followed.follow(board)
        if self.has_ended:
            self._complete(record)
            self._state.erase_all()
            return {}
        new = self._owner.reply(board, lambda announced: self._vector(announced, record))
        self._check_owners(new, record)
        self._state.keep(new)
        self._complete(record)
        self._state.erase(self._owner.ended(board))
        return new

    @property
    def has_ended(self) -> bool:
        """Whether all sums were on the board of the latest reply."""
        return self._followed.has_ended

    def _check_owners(self, new: dict[str, bytes], record: Record) -> None:
        """Before a set of owners is signed for a sum without noise: it must be that of other sessions."""
        for name in new:
            if "/signed/" in name and record.announced(number := int(name[:2])).exact:
                ids, present = self._session.terms.ids, record.present(number).present
                self._state.require_same_owners(self._session.roster.study, [ids[index] for index in present])

    def _check_features(self, fit: Fit) -> None:
        names, agreed = self._rows.feature_names, fit.feature_names
        if self._rows.n_features != fit.n_features:
            raise SecureError(
                f"the rows must have the {fit.n_features} features of the roster, in its order, got "
                f"{_difference(names, agreed) or self._rows.n_features}; select and order the columns."
            )
        if names and agreed and names != agreed:
            place = next(
                i for i, (mine, other) in enumerate(zip(names, agreed, strict=True)) if mine != other
            )
            raise SecureError(
                f"the rows must have the features of the roster, in its order: number {place + 1} is "
                f"{agreed[place]!r:.80} there, and {names[place]!r:.80} in the rows; select and order "
                "the columns."
            )

    def _check_declared(self, member: Member) -> None:
        """Keys for more rows would not count, and their owner would not know."""
        if member.rows is not None and self._rows.n_rows > member.rows:
            raise SecureError(
                f"a member must have at most the rows it declared, and {member.id!r:.80} declared "
                f"{member.rows} and has {self._rows.n_rows}; nothing was sent. Declare them in a new roster."
            )

    def _check_may_begin(self) -> None:
        """Before anything leaves: the owner's policy, a budget for all sums, and rows within the bound."""
        self._check_policy()
        if self._privacy is not None and self._ledger is not None:
            self._ledger.check(0, None, self._privacy.mu, adjacency=self._privacy.adjacency)
        self._followed.fit.check_rows(self._rows.parts())

    def _check_policy(self) -> None:
        """Once per process, as rows are read for it; a policy may have come after the session began."""
        terms = self._session.terms
        if self._policy is not None and not self._is_allowed:
            rows: Any = self._rows if self._privacy is not None else self._rows.source
            self._policy.check_secure(
                rows, privacy=self._privacy, least=terms.least, colluding=terms.colluding
            )
            self._is_allowed = True

    def _vector(self, announced: Announced, record: Record) -> AnyArray:
        """The integers of the announced sum over the owner's rows; paid for when this returns."""
        fit = self._followed.fit
        self._check_announced(announced, record)
        self._check_policy()
        seed = hashlib.blake2b(str(announced.number).encode(), key=self._state.pairs_key).digest()
        parts = HashedParts(self._rows.parts())
        values = fit.vector(parts, np.random.default_rng(list(seed)))
        study = self._session.roster.study if announced.exact else None
        self._state.require_same_rows(parts.digest(), study)
        if self._ledger is not None and self._privacy is not None and fit.next is not None:
            self._ledger.debit(
                0,
                self._rows.n_rows,
                fit.next.name,
                fit.next.mu,
                adjacency=self._privacy.adjacency,
                release=debit_name(self._session.id, announced.number),
            )
        return values

    def _check_announced(self, announced: Announced, record: Record) -> None:
        """Refuse another sum than the next one of the fit, one with too little noise, or one that wraps."""
        needed = self._followed.fit.next
        assert needed is not None  # a study that has ended replies nothing
        lengths = [block.length for block in announced.blocks]
        if (announced.name, lengths) != (needed.name, [item for item, _ in needed.blocks]):
            raise SecureError(
                f"the sum announced must be the next one of the fit, {needed.name!r} of {needed.length} "
                f"numbers, got {announced.name!r:.80} of {sum(lengths)}: the coordinator has another roster, "
                "other totals or another version of fedpca. Nothing was sent."
            )
        for block, (_, sd), largest in zip(announced.blocks, needed.blocks, needed.largest, strict=True):
            if not sd * (1 - _SAME) <= block.sd <= sd * (1 + _LARGER):
                raise SecureError(
                    f"the noise of {announced.name!r} must have a standard deviation of {sd:g}, and "
                    f"{block.sd:g} was announced: the coordinator lies, or has another version of fedpca. "
                    "Nothing was sent."
                )
            most = largest + _TAIL * block.sd * sqrt(record.levels.variance(len(record.members.members), 0))
            if not most * 2.0**block.shift < _WORDS:
                raise SecureError(
                    f"{announced.name!r} of {record.rows} rows must fit into 64 bits, and needs "
                    f"{most * 2.0**block.shift:.3g}; nothing was sent. Let fewer rows take part."
                )
        if self._privacy is not None:
            levels = record.levels
            term = added_to_delta(levels, levels.sizes[-1], announced.blocks, self._privacy.epsilon)
            require_negligible(term, self._privacy.delta)

    def _complete(self, record: Record) -> None:
        """Note in the ledger which sums came out."""
        if self._ledger is None:
            return
        names = {
            debit_name(self._session.id, number)
            for number in range(record.n_totals)
            if self._owner.index in record.present(number).present
        }
        for entry in self._ledger.entries:
            if entry.release in names and not entry.completed:
                self._ledger.complete(entry)


@dataclass(frozen=True)
class _Announcement:
    """The next sum of a fit, as it is announced."""

    name: str
    blocks: tuple[tuple[int, float], ...]


class CoordinatorStudy:
    """The coordinator's part in a session: all that it publishes follows from the board.

    Args:
        roster: that all members have agreed on.
        session: as it was opened.
        fit: that of the roster.

    Attributes:
        coordinator: it knows whom it waits for, and which messages do not count.
        fit: it has the model, once all totals are on the board.
    """

    def __init__(self, roster: Roster, session: bytes, fit: Fit) -> None:
        self.coordinator = Coordinator(roster, session)
        self.terms = self.coordinator.terms
        self.fit = fit
        self._session = self.coordinator.session
        self._followed = Followed(self._session, fit)

    def advance(self, board: Board, *, closing: bool = False) -> dict[str, bytes]:
        """What to publish next; nothing while it waits, or after the last total.

        Args:
            board: all messages.
            closing: go on with those who are there, if they are enough.

        Raises:
            SecureError: the board was changed, or a member lied.
        """
        self._followed.follow(board)
        return self.coordinator.next(board, closing=closing, announce=self._announced)

    @property
    def has_ended(self) -> bool:
        """Whether all totals were on the board when it was asked last."""
        return self._followed.has_ended

    def model(self, board: Board) -> Subspace:
        """The model of all totals, with its certificate."""
        return self._followed.model(self._followed.follow(board))

    def release(self, board: Board) -> Summary:
        """What the model is taken from, with the same certificate: it merges with others."""
        return self._followed.release(self._followed.follow(board))

    def _announced(self) -> _Announcement | None:
        needed = self.fit.next
        if needed is None:
            return None
        return _Announcement(needed.name, tuple((length, _rounded_up(sd)) for length, sd in needed.blocks))


def _difference(names: tuple[str, ...] | None, agreed: tuple[str, ...] | None) -> str:
    """The first name that differs, is missing or is one too many, in words; "" if none is, or has names."""
    for place, (name, expected) in enumerate(zip(names or (), agreed or (), strict=False), 1):
        if name != expected:
            return f"{name!r:.80} in place of {expected!r:.80} as column {place}"
    n_names, n_agreed = len(names or ()), len(agreed or ())
    if names and agreed and n_names < n_agreed:
        return f"{n_names}, without {agreed[n_names]!r:.80}"
    if names and agreed and n_names > n_agreed:
        return f"{n_names}, with {names[n_agreed]!r:.80}"
    return ""


def _rounded_up(sd: float) -> float:
    """To 24 bits: owners accept what is a little larger, whatever their machines round differently."""
    mantissa, exponent = frexp(sd)
    return ldexp(ceil(mantissa * 2**24 * (1 - _SAME / 10)) / 2**24, exponent)
