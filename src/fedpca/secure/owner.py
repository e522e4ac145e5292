"""An owner in a session: what it answers to a board, kept before it leaves.

The same board and the same state give the same bytes. An owner checks that the sum announced is the next one
of its own model, with no less noise, adds up its rows, pays, masks, and writes down what it sends.
"""

import hashlib
from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import numpy as np

from fedpca._typing import JSON
from fedpca.disclosure.policy import Policy
from fedpca.errors import SecureError
from fedpca.privacy.accounting import Entry
from fedpca.privacy.exit import Debit, Guard, leave
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.settings import Privacy
from fedpca.secure import masks, noise_shares, shamir, wire
from fedpca.secure.aliasing import added_to_delta, require_negligible
from fedpca.secure.board import CheckedBoard
from fedpca.secure.masks import Words
from fedpca.secure.messages import KINDS, Announced, Board, NoiseBlock, board_name, owner_of
from fedpca.secure.owner_secrets import seed_hash
from fedpca.secure.owner_state import OwnerState
from fedpca.secure.progress import LARGER, SAME, Progress
from fedpca.secure.proofs import debit_name
from fedpca.secure.rows import HashedParts, OwnerRows
from fedpca.secure.session import Session
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Roster

_BITS = 62  # of the entries of an owner, shifted; noise and the sum have room beside them
_TAIL = 10.0  # standard deviations of the noise of all owners: beyond them with probability 2e-23
_WORDS = 2.0**63

_Answer = tuple[str, int | None, Callable[[], tuple[JSON, bytes]]]
"""A message to send: kind, number of the sum, and what makes its own fields and its payload."""


def member_facts(roster: Roster, key: SigningKey) -> dict[str, Any]:
    """Whose state it is: two members with the same secrets would add the same noise."""
    return {"the member": roster.member_of(key.public).id}


class Owner:
    """One owner in one session.

    Args:
        progress: the session, and the model of what all have agreed on; the owner has one of its own.
        key: the owner's, of the roster.
        rows: the owner's.
        state: what it keeps of the session: its secrets, and all that it has sent, which is never made again.
        privacy: the settings of the model, with its ledger; None without noise.
        ledger: what pays; None without privacy.
        policy: of the owner, checked before anything leaves; None checks nothing.

    Raises:
        SecureError: the session was opened in the future, or the rows are not those of the study.
    """

    def __init__(
        self,
        progress: Progress,
        key: SigningKey,
        rows: OwnerRows,
        state: OwnerState,
        *,
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
        policy: Policy | None = None,
    ) -> None:
        if (privacy is None) != (ledger is None):
            raise ValueError("privacy must come with the ledger that pays, and a ledger with privacy.")
        self.session, self.terms = progress.session, progress.session.terms
        self.session.check_clock()
        self.index = self.session.index_of(key)
        self._progress, self._key, self._rows, self._state = progress, key, rows, state
        self._privacy, self._ledger, self._policy = privacy, ledger, policy
        self._is_allowed = False
        self._received: dict[int, list[tuple[bytes, bytes]]] = {}  # shares of seed and key, by dealer and sum
        self._received_for = ""  # the digest of the members who dealt them
        self._check_features()
        self._check_declared()
        facts = member_facts(self.session.roster, key) | {"the number of rows": rows.n_rows}
        state.begin(facts, progress.fit.most_sums)

    def reply(self, board: Board) -> dict[str, bytes]:
        """Everything that this owner can send now and has not sent: kept before it is returned.

        Args:
            board: messages by name; those of `relevant` are enough.

        Raises:
            SecureError: the coordinator lies, a member does, or this owner's state is lost. Nothing is sent.
            BudgetExceeded: the ledger cannot pay for the study; nothing is sent.
            PolicyViolation: the owner's policy does not allow it; nothing is sent.
        """
        sent = self._state.sent
        if not sent:
            self._check_may_begin()
        shown = self._progress.follow(board)
        if self._progress.has_ended:
            self._complete(shown)
            self._state.erase_all()
            return {}
        require_known(self.index, sent, board)
        new: dict[str, bytes] = {}
        for kind, number, make in self._answers(shown):
            name, field = board_name(kind, self.index, number), KINDS[kind].answers
            answered = {field: shown.answered(KINDS[kind], number).digest} if field else {}
            if name not in sent:
                fields, payload = make()
                new[name] = self.session.sign(self._key, kind, self.index, number, fields | answered, payload)
            elif field and wire.header(sent[name])[0].get(field) != answered[field]:
                raise SecureError(
                    f"an owner answers once, and this one sent {name} about another {field} than the "
                    "coordinator shows now; answer nothing more, and ask the coordinator."
                )
        self._check_owners(new, shown)
        self._state.keep(new)
        self._complete(shown)
        self._state.erase(self._ended(shown))
        return new

    @property
    def has_ended(self) -> bool:
        """Whether all sums were on the board of the latest reply."""
        return self._progress.has_ended

    def _ended(self, board: CheckedBoard) -> list[int]:
        """Sums whose secrets are not needed any more."""
        if not self._has_sent("shares"):
            return []
        return [
            number
            for number, item in enumerate(self._state.secrets.sums)
            if item is not None
            and (
                self._has_sent("opened", number)
                or self._has_sent("refused", number)
                or board.has("total", number=number)
            )
        ]

    # --- what to send, in order ---

    def _answers(self, board: CheckedBoard) -> Iterator[_Answer]:
        """Messages in their order, as far as the board goes."""
        yield "keys", None, self._keys
        if not board.has("keyring") or self.index not in board.keyring:
            return
        self._require_named(board, "keyring")
        yield "shares", None, lambda: self._shares(board)
        if not board.has("members") or self.index not in board.members:
            return
        self._require_named(board, "members")
        members = board.message("members").digest
        if self._received_for != members:
            self._received, self._received_for = self._unsealed(board), members
        yield "agreed", None, lambda: ({}, b"")
        if not self._enough(board, "agreed"):
            return
        for number in range(board.n_totals + 1):
            yield from self._answers_of_sum(board, number)

    def _answers_of_sum(self, board: CheckedBoard, number: int) -> Iterator[_Answer]:
        if not board.has("announced", number=number) or self._has_sent("refused", number):
            return
        board.announced(number)
        done = board.has("total", number=number)
        late = board.has("present", number=number)
        required = board.required(number)
        if self._has_sent("masked", number) or not (
            late or (required is not None and self.index not in required)
        ):
            yield "masked", number, lambda: self._masked(board, number)
        if not late:
            return
        if self.index in board.present(number):
            self._require_named(board, "present", number)
            if self._has_sent("signed", number) or not done:
                yield "signed", number, lambda: ({}, b"")
        if self._has_sent("opened", number) or (not done and self._enough(board, "signed", number)):
            yield "opened", number, lambda: self._opened(board, number)

    # --- how it is made ---

    def _keys(self) -> tuple[JSON, bytes]:
        secrets, sums = self._state.secrets, []
        for number in range(len(secrets.sums)):
            own = secrets.of_sum(number)
            anchor = noise_shares.element_after(own.surplus, noise_shares.anchor_steps(self.terms))
            sums.append(
                {
                    "key": masks.public_key(own.key).hex(),
                    "seed": seed_hash(own.seed).hex(),
                    "surplus": anchor.hex(),
                }
            )
        return {
            "rows": self._rows.n_rows,
            "enc": masks.public_key(secrets.sealing_key).hex(),
            "sums": sums,
        }, b""

    def _shares(self, board: CheckedBoard) -> tuple[JSON, bytes]:
        receivers, secrets = board.keyring, self._state.secrets
        sums = [secrets.of_sum(number) for number in range(len(secrets.sums))]
        if board.n_sums != len(sums):
            raise SecureError(
                f"all members must have keys for the same number of sums, and this one has {len(sums)}, the "
                f"others {board.n_sums}; compare versions and rosters, and open another session."
            )
        dealt = [own.shares(receivers, self.terms.threshold) for own in sums]  # by sum and receiver
        sealed = {}
        for place, receiver in enumerate(receivers):
            if receiver != self.index:
                contents = b"".join(share for of_sum in dealt for share in of_sum[place])
                sealed[str(receiver)] = masks.seal(
                    self._seal_key(board, self.index, receiver), contents
                ).hex()
        commitments = b"".join(
            shamir.commitment(pair[which])
            for by_receiver in dealt
            for which in (0, 1)
            for pair in by_receiver
        )
        return {"sealed": sealed}, commitments

    def _seal_key(self, board: CheckedBoard, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self.index else sender
        private, public = self._state.secrets.sealing_key, board.message("keys", other)["enc"]
        return masks.seal_key(private, public, self.session.salt, sender, receiver)

    def _unsealed(self, board: CheckedBoard) -> dict[int, list[tuple[bytes, bytes]]]:
        """This owner's shares of seed and key, of every other member and sum, as committed to."""
        place, found = board.keyring.index(self.index), {}
        for dealer in board.members:
            if dealer == self.index:
                continue
            sealed = board.message("shares", dealer)["sealed"][self.index]
            contents = masks.unseal(self._seal_key(board, dealer, self.index), sealed) or b""
            pieces = [contents[i : i + shamir.SHARE] for i in range(0, len(contents), shamir.SHARE)]
            pairs = list(zip(pieces[::2], pieces[1::2], strict=True))
            if not pairs or not all(
                shamir.is_committed(pair[which], board.commitment(dealer, number, which, place))
                for number, pair in enumerate(pairs)
                for which in (0, 1)
            ):
                raise SecureError(
                    "shares must be below the prime, and those that their dealer committed to, and "
                    f"{board.names([dealer])} dealt others to this member; let the coordinator open another "
                    "session without it."
                )
            found[dealer] = pairs
        return found

    def _masked(self, board: CheckedBoard, number: int) -> tuple[JSON, bytes]:
        announced, own = board.announced(number), self._state.secrets.of_sum(number)
        context = bytes.fromhex(announced.digest)
        keys = [(masks.self_key(own.seed, self.session.salt, context, self.index), True)]
        for other in board.members:
            if other != self.index:
                public = board.keys_of(other)[number].key
                key = masks.pair_key(own.key, public, self.session.salt, context, self.index, other)
                keys.append((key, self.index < other))

        def noised(words: Words, _: Entry | None = None) -> Words:
            words += noise_shares.noise(announced.blocks, board.levels, own.surplus, 0)
            masks.add_masks(words, keys)
            return words

        words = self._let_out(announced, board, noised)  # the last thing to be refused
        return {"rows": self._rows.n_rows}, words.astype("<u8", copy=False).tobytes()

    def _opened(self, board: CheckedBoard, number: int) -> tuple[JSON, bytes]:
        present, own = board.present(number), self._state.secrets.of_sum(number)
        [mine] = own.shares([self.index], self.terms.threshold)
        seeds, keys = {}, {}
        for member in board.members:
            of_seed, of_key = mine if member == self.index else self._received[member][number]
            if member in present:  # one of the two, never both
                seeds[str(member)] = of_seed.hex()
            else:
                keys[str(member)] = of_key.hex()
        surplus = None
        if self.index in present:
            first = board.levels.first_surplus(len(present))
            surplus = "" if first is None else noise_shares.element_after(own.surplus, first).hex()
        return {"seeds": seeds, "keys": keys, "surplus": surplus}, b""

    # --- the sum of this owner's rows ---

    def _let_out(
        self, announced: Announced, board: CheckedBoard, noised: Callable[[Words, Entry | None], Words]
    ) -> Words:
        """The announced sum over the owner's rows, noised and masked, once it is paid for."""
        fit = self._progress.fit
        self._check_announced(announced, board)
        self._check_policy()
        seed = hashlib.blake2b(str(announced.number).encode(), key=self._state.pairs_key).digest()
        parts = HashedParts(self._rows.parts())
        words = shifted(fit.vector(parts, np.random.default_rng(list(seed))), announced.blocks)
        study = self.session.roster.study if announced.lacks_noise else None
        self._state.require_same_rows(parts.digest(), study)
        if self._ledger is None or self._privacy is None or fit.next is None:
            return noised(words, None)
        name, adjacency = debit_name(self.session.id, announced.number), self._privacy.adjacency
        return leave(
            words,
            noised,
            guard=Guard(),  # interrupted, it is made again: the same, from the secrets that are kept
            ledger=self._ledger,
            debit=Debit(0, self._rows.n_rows, fit.next.name, fit.next.mu, adjacency, name),
            completes=False,  # until the total is out
        )

    def _check_announced(self, announced: Announced, board: CheckedBoard) -> None:
        """Refuse another sum than the next one of the fit, one with too little noise, or one that wraps."""
        needed = self._progress.fit.next
        assert needed is not None  # a study that has ended replies nothing
        lengths = [block.length for block in announced.blocks]
        if (announced.name, lengths) != (needed.name, [item for item, _ in needed.blocks]):
            raise SecureError(
                f"the sum announced must be the next one of the fit, {needed.name!r} of {needed.length} "
                f"numbers, got {announced.name!r:.80} of {sum(lengths)}: the coordinator has another roster, "
                "other totals or another version of fedpca. Nothing was sent."
            )
        for block, (_, sd), largest in zip(announced.blocks, needed.blocks, needed.largest, strict=True):
            if not sd * (1 - SAME) <= block.sd <= sd * (1 + LARGER):
                raise SecureError(
                    f"the noise of {announced.name!r} must have a standard deviation of {sd:g}, and "
                    f"{block.sd:g} was announced: the coordinator lies, or has another version of fedpca. "
                    "Nothing was sent."
                )
            most = largest + _TAIL * block.sd * sqrt(board.levels.variance(len(board.members), 0))
            if not most * 2.0**block.shift < _WORDS:
                raise SecureError(
                    f"{announced.name!r} of {board.rows} rows must fit into 64 bits, and needs "
                    f"{most * 2.0**block.shift:.3g}; nothing was sent. Let fewer rows take part."
                )
        if self._privacy is not None:
            levels = board.levels
            term = added_to_delta(levels, levels.sizes[-1], announced.blocks, self._privacy.epsilon)
            require_negligible(term, self._privacy.delta)

    def _complete(self, board: CheckedBoard) -> None:
        """Note in the ledger which sums came out."""
        if self._ledger is None:
            return
        names = {
            debit_name(self.session.id, number)
            for number in range(board.n_totals)
            if self.index in board.present(number)
        }
        for entry in self._ledger.entries:
            if entry.release in names and not entry.completed:
                self._ledger.complete(entry)

    # --- what must hold ---

    def _check_features(self) -> None:
        fit = self._progress.fit
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

    def _check_declared(self) -> None:
        """Keys for more rows would not count, and their owner would not know."""
        member = self.session.roster.members[self.terms.ids[self.index]]
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
        self._progress.fit.check_rows(self._rows.parts())

    def _check_policy(self) -> None:
        """Once per process, as rows are read for it; a policy may have come after the session began."""
        if self._policy is not None and not self._is_allowed:
            rows: Any = self._rows.n_rows if self._privacy is not None else self._rows.source
            self._policy.check_secure(
                rows, privacy=self._privacy, least=self.terms.least, colluding=self.terms.colluding
            )
            self._is_allowed = True

    def _check_owners(self, new: dict[str, bytes], board: CheckedBoard) -> None:
        """Before a set of owners is signed for a sum without noise: it must be that of other sessions."""
        for name in new:
            if "/signed/" in name and board.announced(number := int(name[:2])).lacks_noise:
                owners = [self.terms.ids[index] for index in board.present(number)]
                self._state.require_same_owners(self.session.roster.study, owners)

    def _has_sent(self, kind: str, number: int | None = None) -> bool:
        return board_name(kind, self.index, number) in self._state.sent

    def _enough(self, board: CheckedBoard, kind: str, number: int | None = None) -> bool:
        """Whether so many members signed this that nobody can have enough signatures on anything else."""
        same, other = board.signers(kind, number)
        if kind == "agreed" or (number is not None and self.index in board.present(number)):
            same, other = same | {self.index}, other - {self.index}  # it is about to
        if len(same) >= self.terms.threshold:
            return True
        if len(board.members) - len(other) < self.terms.threshold:  # few liars must not stop others
            raise SecureError(
                f"at least {self.terms.threshold} members must sign the same {KINDS[kind].answers}, and "
                f"{board.names(sorted(other))} signed another than the coordinator shows here; the "
                "coordinator lies, or they do: answer nothing more, and ask them."
            )
        return False

    def _require_named(self, board: CheckedBoard, listing: str, number: int | None = None) -> None:
        """Refuse that the coordinator names another message of this owner than the one it has sent."""
        field, kinds = KINDS[listing].lists
        stated = board.message(listing, number=number)[field][self.index]
        for kind, digest in zip(kinds, stated, strict=True):
            name = board_name(kind, self.index, number)
            if name not in self._state.sent or wire.digest(self._state.sent[name]) != digest:
                raise SecureError(
                    f"the coordinator must name what this owner has sent, and names another {name}; answer "
                    "nothing more, and ask the coordinator."
                )


def refusal(
    session: Session, key: SigningKey, state: OwnerState, number: int, board: Board
) -> dict[str, bytes]:
    """The message that an owner has not opened a sum, and never will, kept before it is returned.

    Args:
        session: that the sum is of.
        key: the owner's.
        state: what it keeps of the session.
        number: of the sum.
        board: it must have nothing of this owner that it does not know.

    Raises:
        SecureError: it has opened the sum, or its state is lost.
    """
    index = session.index_of(key)
    require_known(index, state.sent, board)
    if (opened := board_name("opened", index, number)) in state.sent:
        raise SecureError(
            f"only an owner that has not opened a sum can refuse it, and {opened} was sent; the sum may "
            "be known, and its debit stays."
        )
    name = board_name("refused", index, number)
    if name in state.sent:
        return {}
    new = {name: session.sign(key, "refused", index, number, {})}
    state.keep(new)
    return new


def require_known(index: int, sent: Board, board: Board) -> None:
    """Refuse a board with messages of an owner that it does not know: it would answer twice."""
    for name in board:
        if owner_of(name) != index or sent.get(name) == board[name]:
            continue
        rule = "an owner must know all it has sent in a session"
        if name in sent:
            raise SecureError(
                f"{rule}, and {name} is not what it sent; ask who changed it, and remove it: it is sent "
                "again then."
            )
        raise SecureError(
            f"{rule}, and {name} is on the board, and not in its state; take the state that it was sent "
            "with; if that is lost, wait for another session; else ask who wrote it, and remove it."
        )


def shifted(values: Any, blocks: tuple[NoiseBlock, ...]) -> Words:
    """Integers times 2^shift, modulo 2^64; SecureError for anything that could wrap around."""
    values = np.asarray(values)
    length = sum(block.length for block in blocks)
    if values.shape != (length,) or values.dtype.kind not in "fiu":
        raise SecureError(f"a sum of {length} entries needs as many integers, got shape {values.shape}.")
    words = np.empty(length, dtype=np.int64)
    start = 0
    for block in blocks:
        part = values[start : start + block.length]
        limit = 2.0 ** (_BITS - block.shift)
        if not (np.abs(part.astype(np.float64)) < limit).all() or (part != np.rint(part)).any():
            raise SecureError(
                f"entries of a sum must be whole numbers below 2^{_BITS - block.shift}, so that it does not "
                "wrap around, and some are not; take a smaller bound, or fewer rows."
            )
        words[start : start + block.length] = part.astype(np.int64) << block.shift
        start += block.length
    return words.view(np.uint64)


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
