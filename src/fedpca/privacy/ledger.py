"""The ledger: which records every release contains, and the cost of each record so far."""

import json
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from math import inf, sqrt
from pathlib import Path
from typing import Any, Protocol, get_args

from fedpca._typing import JSON
from fedpca._util.files import append_json_line, create_exclusive, file_lock, json_lines
from fedpca.errors import BudgetExceeded
from fedpca.privacy.calibration import Adjacency, epsilon_of, mu_of
from fedpca.privacy.ledger_chain import Chain, check_chain, sealed, unsealed
from fedpca.privacy.rules import check_epsilon_delta
from fedpca.summaries import validation
from fedpca.trust.keys import PublicKey, SigningKey

_FORMAT = "fedpca ledger 1"


@dataclass(frozen=True)
class Entry:
    """One debit: a Gaussian release of records start ... stop - 1 that costs each of them `mu`.

    Attributes:
        release: its name, a random one if the caller has none.
        start, stop: the records it contains, counted as they came; a `stop` of None means all that follow.
        mechanism: its name.
        mu: its Gaussian-DP parameter.
        time: when it was debited, UTC.
        adjacency: what one record more or less means to it.
        completed: whether the release came out. A debit without it counts all the same.
        proof: that the release cannot contain these records, as JSON; "" if there is none. A debit with one
            is cancelled: its line is kept, and it does not count.
    """

    release: str
    start: int
    stop: int | None
    mechanism: str
    mu: float
    time: str
    adjacency: Adjacency
    completed: bool = False
    proof: str = ""

    @property
    def cancelled(self) -> bool:
        """Whether it does not count: by its proof nothing of these records came out, or ever will."""
        return bool(self.proof)


class Proof(Protocol):
    """That a debited release does not contain its owner's records, and never will.

    Those of secure sums are in `fedpca.secure.proofs`, and are checked when they are made.
    """

    @property
    def release(self) -> str:
        """The release that it is about."""

    def to_json(self) -> JSON:
        """All that is needed to check it again."""


class Ledger:
    """The privacy budget of one owner's records, and what was spent of it, in memory or in a file.

    A debit is on disk before the noise of its release is drawn. So a crash at any moment can leave a debit
    without a release, never a release without its debit. Records count from 0 in every new estimator:
    releases of two estimators with the same ledger are taken to be about the same records, which can
    over-count but never under-count. Keep one ledger for each set of people (or things) rows are about.
    All debits have the adjacency of the first: a guarantee for records taken out costs more for records
    replaced, so the two do not add up.

    Args:
        path: a file, created if it does not exist; None keeps the ledger in memory.
        epsilon, delta: the budget of every record over all releases, fixed when the file is created.
        key: signs every line from now on, a `SigningKey`: then a file that was edited by hand, or of which
            lines in the middle were removed, is refused, and so is a debit without a key.

    >>> ledger = Ledger(epsilon=1.0, delta=1e-5)
    >>> ledger.spent(1e-5), ledger.left(1e-5)
    (0.0, 1.0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        key: SigningKey | None = None,
    ) -> None:
        if path is None and key is not None:
            raise ValueError("a ledger in memory cannot be signed; name a file.")
        self.path = None if path is None else Path(path).absolute()
        self._key = key
        self._chain = Chain()  # of the lines that were checked
        self._entries: list[Entry] = []  # of a ledger in memory
        self._lock = threading.RLock()
        self._planned = False
        given = None if epsilon is None and delta is None else check_epsilon_delta(epsilon, delta)
        if self.path is None or not self.path.exists():
            if given is None:
                where = "a ledger in memory" if self.path is None else f"the new ledger {self.path}"
                raise ValueError(f"{where} needs a budget: epsilon and delta.")
            self.id, self._budget = secrets.token_hex(8), given
            if self.path is not None:
                self._create()
        if self.path is not None:
            self.id, self._budget, _ = self._read()
            if given not in (None, self._budget):
                raise ValueError(
                    f"{self.path} was made for epsilon={self.epsilon:g}, delta={self.delta:g}, not "
                    f"epsilon={epsilon!r}, delta={delta!r}; open it without them, or name another file."
                )

    @classmethod
    def planned(
        cls,
        path: str | os.PathLike[str],
        epsilon: float,
        delta: float,
        *,
        key: SigningKey | None = None,
    ) -> "Ledger":
        """A ledger whose file, if there is none, is created with the first debit.

        So a fit that is refused before it spends anything fixes no budget.
        """
        ledger = cls(epsilon=epsilon, delta=delta)
        ledger.path, ledger._planned, ledger._key = Path(path).absolute(), True, key
        ledger._require_folder()
        ledger._adopt()
        return ledger

    def _adopt(self) -> None:
        """Go by the file, once there is one: another process may have created it."""
        if self._planned and self.path is not None and self.path.exists():
            self.id, self._budget, _ = self._read()
            self._planned = False

    @property
    def epsilon(self) -> float:
        """The budget's epsilon."""
        return self._budget[0]

    @property
    def delta(self) -> float:
        """The budget's delta."""
        return self._budget[1]

    @property
    def entries(self) -> list[Entry]:
        """All debits so far, oldest first, cancelled ones included."""
        self._adopt()
        return list(self._entries) if self.path is None or self._planned else self._read()[2]

    @property
    def signed_by(self) -> tuple[PublicKey, ...]:
        """The keys that signed lines of the file, the last one last; none if nobody did.

        Every line is checked whenever the file is read. Who signs one agrees to all lines before it. There is
        more than one key only if a lost one was replaced.
        """
        return () if self.path is None or self._planned or not self._read() else self._chain.keys

    @property
    def unsigned_lines(self) -> int:
        """How many lines of a ledger in a file come before the first that is signed: all, if none is.

        Of a ledger that was always kept with a key, there are none, unless somebody took signatures away.
        """
        return 0 if self.path is None or self._planned or not self._read() else self._chain.unsigned

    @property
    def mu(self) -> float:
        """The cost of the most expensive record so far, as that of one Gaussian release."""
        return total_mu(self.entries)

    def spent(self, delta: float | None = None) -> float:
        """The cost of the most expensive record so far: epsilon at `delta`, the budget's own by default."""
        return epsilon_of(self.mu, self.delta if delta is None else delta)

    def left(self, delta: float | None = None) -> float:
        """The epsilon that one more release of all records could still cost, at `delta`."""
        return self._left(self.mu, self.delta if delta is None else delta)

    def _left(self, spent: float, delta: float) -> float:
        return epsilon_of(sqrt(max(mu_of(*self._budget) ** 2 - spent**2, 0.0)), delta)

    def debit(
        self,
        start: int,
        stop: int | None,
        mechanism: str,
        mu: float,
        *,
        adjacency: Adjacency = "replace-one",
        release: str | None = None,
    ) -> Entry:
        """Write a release down before it is made; BudgetExceeded if some record could not pay for it.

        Args:
            start, stop: the records it contains.
            mechanism: its name.
            mu: its Gaussian-DP parameter.
            adjacency: what one record more or less means to it.
            release: its name, a random one by default. A release of this name that is there already, with
                the same contents, is not debited again: so a process that was killed can repeat its debit.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        name = secrets.token_hex(8) if release is None else validation.child_name(release, "release")
        entry = Entry(name, start, stop, mechanism, mu, time, adjacency)
        self._adopt()
        if self._planned:
            self._check(entry)
            self._begin()
        with self._locked():
            known = self._find(name)
            if known is not None:
                _check_repeated(known, entry)
                self._flush()
                return known
            self._check(entry)
            record = asdict(entry)
            del record["proof"]
            self._append({"event": "debit", **record})
            self._entries.append(entry)
        return entry

    def _find(self, release: str) -> Entry | None:
        """The debit of this name, for one who may write to the ledger."""
        entries = self.entries
        self._require_key(self._chain)
        return next((entry for entry in entries if entry.release == release), None)

    def check(self, start: int, stop: int | None, mu: float, *, adjacency: Adjacency = "replace-one") -> None:
        """BudgetExceeded if such a release could not be paid for now; nothing is written."""
        self._check(Entry("", start, stop, "", mu, "", adjacency))

    def _check(self, entry: Entry) -> None:
        _check_entry(entry)
        entries = self.entries
        self._require_key(self._chain)
        if entries and entry.adjacency != entries[0].adjacency:
            raise ValueError(
                f"all releases of a ledger must have the adjacency of its first, {entries[0].adjacency!r}, "
                f"got adjacency={entry.adjacency!r}: their costs do not add up. Use "
                f"{entries[0].adjacency!r}, or the ledger of other people."
            )
        after = total_mu([*entries, entry])
        if after > mu_of(*self._budget) * (1 + 1e-9):
            raise BudgetExceeded(self._refusal(entries, after))

    def complete(self, entry: Entry) -> None:
        """Note that a debited release came out."""
        with self._locked():
            known = self._find(entry.release)
            if known is not None and known.completed:
                return
            if known is not None and known.cancelled:
                raise ValueError(f"the release {entry.release} was cancelled, and cannot have come out.")
            self._append({"event": "completed", "release": entry.release})
            self._change(entry.release, completed=True)

    def cancel(self, release: str, proof: Proof) -> Entry:
        """Take a debit back: the proof shows that its release has nothing of these records, and never will.

        The line of the debit is kept, and the proof is written beside it. Cancelling again changes nothing.

        Args:
            release: the name of the release.
            proof: from `fedpca.secure.proofs`, which checks it.

        Raises:
            ValueError: nothing of this name was debited, it came out, or the proof is of another release.
        """
        if proof.release != release:
            raise ValueError(
                f"the proof must be about the release {release!r:.80}, and is about {proof.release!r:.80}."
            )
        with self._locked():
            known = self._find(release)
            if known is None:
                raise ValueError(f"this ledger has no debit of the release {release!r:.80} to cancel.")
            if known.completed:
                raise ValueError(f"the release {release!r:.80} came out; its debit cannot be cancelled.")
            if known.cancelled:
                return known
            text = json.dumps(proof.to_json(), sort_keys=True, allow_nan=False)
            self._append({"event": "cancelled", "release": release, "proof": text})
            self._change(release, proof=text)
        return replace(known, proof=text)

    def _change(self, release: str, **changes: Any) -> None:
        """Change a debit of a ledger in memory."""
        self._entries = [
            replace(known, **changes) if known.release == release else known for known in self._entries
        ]

    def _refusal(self, entries: Sequence[Entry], after: float) -> str:
        epsilon, delta = self._budget
        spent = total_mu(entries)
        text = (
            f"the release would cost some record epsilon={epsilon_of(after, delta):.4g} at delta={delta:g}; "
            f"its budget is epsilon={epsilon:g}, of which epsilon={self._left(spent, delta):.4g} is left "
            f"(mu: {after:.4g}, budget {mu_of(epsilon, delta):.4g}, spent {spent:.4g}). Nothing was released."
            " Ask for no more than is left; rows about other people belong in a ledger of their own."
        )
        lost = [known.release for known in entries if not known.completed and not known.cancelled]
        if lost:
            text += f" Debited but never completed, and counted: {', '.join(lost)}."
        return text

    # --- the file: one JSON object per line, appended, flushed to disk ---

    def _require_folder(self) -> None:
        assert self.path is not None
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot create the ledger {self.path}: no folder {self.path.parent}.")

    def _begin(self) -> None:
        """Create the file of a planned ledger, unless another process has."""
        with self._lock:
            self._adopt()
            if self._planned:
                self._create()
                self._adopt()

    def _create(self) -> None:
        """Create the file with its first line, the budget, whole or not at all; never over another file."""
        assert self.path is not None
        self._require_folder()
        head = {"format": _FORMAT, "id": self.id, "epsilon": self.epsilon, "delta": self.delta}
        if self._key is not None:
            head = sealed(head, Chain(), self._key)
        with self._file_lock():  # where there are no hard links, creation alone is not exclusive
            create_exclusive(self.path, json.dumps(head).encode() + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, over processes and threads."""
        if self.path is None:
            with self._lock:
                yield
            return
        with self._file_lock():
            if not self.path.exists():
                raise FileNotFoundError(f"the ledger {self.path} no longer exists; restore it from a backup.")
            yield

    def _file_lock(self) -> AbstractContextManager[None]:
        """A file of its own: the ledger may be replaced, by a restore or an editor, and its lock with it."""
        assert self.path is not None
        return file_lock(self.path.with_name(f"{self.path.name}.lock"))

    def _append(self, record: JSON) -> None:
        # A line torn by a crash was never acted upon: no noise is drawn before its debit is on disk.
        if self.path is None:
            return
        chain = check_chain(json_lines(self.path.read_bytes()), self._chain)
        self._require_key(chain)
        append_json_line(self.path, record if self._key is None else sealed(record, chain, self._key))

    def _flush(self) -> None:
        """Make sure that a line of a writer that was killed survives a crash of the machine, too."""
        if self.path is not None:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def _require_key(self, chain: Chain) -> None:
        """Refuse to write to a signed ledger without a key: nobody could tell who did."""
        if chain.keys and self._key is None:
            raise ValueError(
                f"the ledger {self.path} is signed, and only a key may write to it; open it with "
                "Ledger(path, key=SigningKey.load(...)), on the command line with --roster and --key."
            )

    def _read(self) -> tuple[str, tuple[float, float], list[Entry]]:
        assert self.path is not None
        lines = json_lines(self.path.read_bytes())
        entries: dict[str, Entry] = {}
        try:
            chain = check_chain(lines, self._chain)
            head = _parsed(lines[0])
            if head["format"] != _FORMAT:
                raise ValueError(f"unknown format {head['format']!r}")
            budget = check_epsilon_delta(head["epsilon"], head["delta"])
            for line in lines[1:]:
                record = unsealed(_parsed(line))
                match record.pop("event"):
                    case "completed":
                        entries[record["release"]] = replace(entries[record["release"]], completed=True)
                    case "cancelled":
                        entry = replace(entries[record["release"]], proof=str(record["proof"]))
                        entries[record["release"]] = entry
                    case "debit":
                        entry = Entry(**record)
                        _check_entry(entry)
                        if entry.release in entries:
                            raise ValueError(f"{entry.release} was debited twice")
                        entries[entry.release] = entry
                    case other:
                        raise ValueError(f"unknown event {other!r}")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is not a ledger, or is damaged ({error!r}); restore it from a backup: without "
                "it nobody knows what was spent."
            ) from error
        self._chain = chain
        return str(head["id"]), budget, list(entries.values())

    def __copy__(self) -> "Ledger":
        return self  # an account, not a value: a copy would spend the same budget again

    def __deepcopy__(self, memo: object) -> "Ledger":
        return self

    def __reduce__(self) -> tuple[object, ...]:
        if self.path is None:
            raise TypeError(
                "a ledger in memory cannot be pickled: its copies would spend apart; name a file."
            )
        if self._key is not None:
            raise TypeError("a ledger with a key cannot be pickled: keys stay in their files.")
        if self._planned:
            return Ledger.planned, (self.path, self.epsilon, self.delta)
        return Ledger, (self.path,)

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        entries = self.entries
        cancelled = sum(entry.cancelled for entry in entries)
        without = f"{cancelled} of them cancelled, " if cancelled else ""
        return (
            f"Ledger({where}: {len(entries)} releases, {without}epsilon={self.spent():.4g} of "
            f"{self.epsilon:g} spent at delta={self.delta:g})"
        )


def _parsed(line: bytes) -> JSON:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number")

    record: JSON = json.loads(line, parse_constant=refuse)
    return record


def _check_entry(entry: Entry) -> None:
    stop = inf if entry.stop is None else entry.stop
    numbers = (entry.start, entry.mu, stop)
    if not all(map(validation.is_real, numbers)) or not (0 <= entry.mu < inf and 0 <= entry.start <= stop):
        raise ValueError(
            f"a debit needs a finite mu of at least 0 and records 0 <= start <= stop, got {entry}."
        )
    if entry.adjacency not in get_args(Adjacency):
        raise ValueError(
            f"adjacency must be one of {', '.join(get_args(Adjacency))}, got {entry.adjacency!r:.80}."
        )


def _check_repeated(known: Entry, entry: Entry) -> None:
    """Refuse a debit under a name that stands for something else."""
    if known.cancelled:
        raise ValueError(
            f"the debit of the release {entry.release!r:.80} was cancelled, and is not made again; begin "
            "another release, with a name of its own."
        )
    for name in ("start", "stop", "mechanism", "mu", "adjacency"):
        if getattr(known, name) != getattr(entry, name):
            raise ValueError(
                f"a repeated debit must be the same, and {name} of the release {entry.release!r:.80} was "
                f"{getattr(known, name)!r:.80}, not {getattr(entry, name)!r:.80}; use another name."
            )


def total_mu(entries: Sequence[Entry]) -> float:
    """The largest cost of any record: the root of the sum of mu² over the releases that contain it.

    Releases of disjoint records cost each record one of them; of the same records, all of them; and those
    that were cancelled, nothing.

    >>> entry = Entry("a", 0, 10, "gram", 0.3, "", "replace-one")
    >>> total_mu([entry, replace(entry, start=10, stop=20)]), total_mu([entry, replace(entry, start=5)])
    (0.3, 0.42426)
    """
    counted = [entry for entry in entries if not entry.cancelled]
    starts = {entry.start for entry in counted}
    return max((sqrt(sum(e.mu**2 for e in counted if _holds(e, record))) for record in starts), default=0.0)


def _holds(entry: Entry, record: int) -> bool:
    return entry.start <= record < (inf if entry.stop is None else entry.stop)
