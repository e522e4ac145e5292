"""The ledger: which records every release contains, and the cost of each record so far."""

import errno
import json
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from io import FileIO
from math import inf
from pathlib import Path
from typing import Protocol, get_args

from fedpca._typing import JSON
from fedpca._util.files import append_json_line, create_exclusive, json_lines
from fedpca._util.locks import file_lock, open_file, process
from fedpca._util.text import sanitize
from fedpca.errors import BudgetExceeded
from fedpca.privacy.accounting import Entry, is_affordable, mu_left, total_mu
from fedpca.privacy.calibration import Adjacency, epsilon_of, epsilon_within, mu_of
from fedpca.privacy.ledger_chain import Chain, check_chain, sealed, unsealed
from fedpca.privacy.rules import check_epsilon_delta
from fedpca.summaries import validation
from fedpca.summaries.certificate import IN_MEMORY, LedgerState
from fedpca.trust.keys import PublicKey, SigningKey

_FORMAT = "fedpca ledger 1"


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
    replaced, so the two do not add up. Costs are added up exactly. Who divides a budget of mu among n debits
    rounds the shares down, `mu / math.sqrt(n) * (1 - 1e-15)`: then all of them can be paid.

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
        self.path = None if path is None else Path(path).resolve()
        self._key = key
        self._chain = Chain()  # of the lines that were checked
        self._entries: list[Entry] = []  # of a ledger in memory
        self._lock = threading.RLock()  # of a ledger in memory
        self._process = process()
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
            self.id, self._budget = self._read()[:2]
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
        ledger.path, ledger._planned, ledger._key = Path(path).resolve(), True, key
        ledger._require_folder()
        ledger._adopt()
        return ledger

    def _adopt(self) -> None:
        """Go by the file, once there is one: another process may have created it."""
        if self._planned and self.path is not None and self.path.exists():
            self.id, self._budget = self._read()[:2]
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
        return self._spent(self.entries, delta)

    def _spent(self, entries: Sequence[Entry], delta: float | None = None) -> float:
        return epsilon_of(total_mu(entries), self.delta if delta is None else delta)

    def state(self) -> LedgerState:
        """How it stands now, for a certificate."""
        entries = self.entries
        return LedgerState(
            id=self.id,
            kept=IN_MEMORY if self.path is None else "in a file",
            epsilon=self.epsilon,
            delta=self.delta,
            spent=self._spent(entries),
            entries=None if self.path is None else len(entries),
        )

    def left(self, delta: float | None = None) -> float:
        """The epsilon that one more release of all records could still cost, at `delta`."""
        return self._left(self.entries, delta)

    def _left(self, entries: Sequence[Entry], delta: float | None = None) -> float:
        left = mu_left(entries, mu_of(*self._budget))
        return epsilon_within(left, self.delta if delta is None else delta)

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
            self._check(entry, [])
            self._begin()
        with self._locked() as ledger:
            known = ledger.find(name)
            if known is not None:
                _check_repeated(known, entry)
                ledger.flush()
                return known
            self._check(entry, ledger.entries)
            record = asdict(entry)
            del record["proof"]
            self._append(ledger, {"event": "debit", **record}, [*ledger.entries, entry])
        return entry

    def check(self, start: int, stop: int | None, mu: float, *, adjacency: Adjacency = "replace-one") -> None:
        """BudgetExceeded if such a release could not be paid for now; nothing is written."""
        entries = self.entries
        self._require_key(self._chain)
        self._check(Entry("", start, stop, "", mu, "", adjacency), entries)

    def _check(self, entry: Entry, entries: Sequence[Entry]) -> None:
        _check_entry(entry)
        if entries and entry.adjacency != entries[0].adjacency:
            raise ValueError(
                f"all releases of a ledger must have the adjacency of its first, {entries[0].adjacency!r}, "
                f"got adjacency={entry.adjacency!r}: their costs do not add up. Use "
                f"{entries[0].adjacency!r}, or the ledger of other people."
            )
        if not is_affordable([*entries, entry], mu_of(*self._budget)):
            raise BudgetExceeded(self._refusal(entries, total_mu([*entries, entry])))

    def complete(self, entry: Entry) -> None:
        """Note that a debited release came out."""
        with self._locked() as ledger:
            known = ledger.find(entry.release)
            if known is None:
                raise ValueError(
                    f"this ledger has no debit of the release {entry.release!r:.80} to complete."
                )
            if known.completed:
                return
            if known.cancelled:
                raise ValueError(f"the release {entry.release} was cancelled, and cannot have come out.")
            completed = replace(known, completed=True)
            self._append(
                ledger, {"event": "completed", "release": known.release}, ledger.with_entry(completed)
            )

    def cancel(self, release: str, proof: Proof) -> Entry:
        """Take a debit back: the proof shows that its release has nothing of these records, and never will.

        A ledger knows no roster, and believes the proof, like all that its owner writes in it; others check
        it with `fedpca roster verify`. The line of the debit is kept, and the proof is written beside it.
        Cancelling again changes nothing.

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
        with self._locked() as ledger:
            known = ledger.find(release)
            if known is None:
                raise ValueError(f"this ledger has no debit of the release {release!r:.80} to cancel.")
            if known.completed:
                raise ValueError(f"the release {release!r:.80} came out; its debit cannot be cancelled.")
            if known.cancelled:
                return known
            text = json.dumps(proof.to_json(), sort_keys=True, allow_nan=False)
            cancelled = replace(known, proof=text)
            record = {"event": "cancelled", "release": release, "proof": text}
            self._append(ledger, record, ledger.with_entry(cancelled))
        return cancelled

    def _refusal(self, entries: Sequence[Entry], after: float) -> str:
        epsilon, delta = self._budget
        spent = total_mu(entries)
        text = (
            f"the release would cost some record epsilon={epsilon_of(after, delta):.4g} at delta={delta:g}; "
            f"its budget is epsilon={epsilon:g}, of which epsilon={self._left(entries):.4g} is left "
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
        create_exclusive(self.path, json.dumps(head).encode() + b"\n")

    @contextmanager
    def _locked(self) -> Iterator["_Opened"]:
        """One writer at a time, over processes, threads, and names of the file."""
        if self.path is None:
            if self._process != process():
                raise RuntimeError(
                    "this process is a fork, and has a copy of a ledger in memory: each would spend all of "
                    "it; name a file, Ledger(path)."
                )
            with self._lock:
                yield _Opened(None, 0, Chain(), self._entries)
            return
        if not self.path.exists():
            raise FileNotFoundError(f"the ledger {self.path} no longer exists; restore it from a backup.")
        with file_lock(self.path, create=False) as file:
            contents = file.readall()
            _, _, entries, chain = self._parsed(contents)
            self._require_key(chain)
            yield _Opened(file, len(contents), chain, entries)

    def _append(self, ledger: "_Opened", record: JSON, entries: list[Entry]) -> None:
        """Write a line, after which the ledger has these entries.

        A line torn by a crash was never acted upon: no noise is drawn before its debit is on disk, alone
        behind all that the budget was checked with.
        """
        if ledger.file is None:
            self._entries = entries
            return
        if self._key is not None:
            record = sealed(record, ledger.chain, self._key)
        append_json_line(ledger.file, record, known=ledger.size)
        self._require_in_place(ledger.file)

    def _require_in_place(self, file: FileIO) -> None:
        """Refuse to go by a line of a file whose place another one has taken: by a restore, or a sync."""
        assert self.path is not None
        if not self.path.exists() or not os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
            raise OSError(
                errno.ESTALE,
                "the ledger was replaced while a debit was written to it; see that nothing else writes to "
                "it, and try again",
                str(self.path),
            )

    def _require_key(self, chain: Chain) -> None:
        """Refuse to write to a signed ledger without a key: nobody could tell who did."""
        if chain.keys and self._key is None:
            raise ValueError(
                f"the ledger {self.path} is signed, and only a key may write to it; open it with "
                "Ledger(path, key=SigningKey.load(...)), on the command line with --roster and --key."
            )

    def _read(self) -> tuple[str, tuple[float, float], list[Entry]]:
        assert self.path is not None
        with open_file(self.path, os.O_RDONLY) as file:
            id, budget, entries, self._chain = self._parsed(file.readall())
        return id, budget, entries

    def _parsed(self, contents: bytes) -> tuple[str, tuple[float, float], list[Entry], Chain]:
        """Id, budget, debits and chain of a ledger's file; ValueError if anything in it is wrong."""
        lines = json_lines(contents)
        entries: dict[str, Entry] = {}
        try:
            chain = check_chain(lines, self._chain)
            head = _record(lines[0])
            if head["format"] != _FORMAT:
                raise ValueError(f"unknown format {head['format']!r}")
            budget = check_epsilon_delta(head["epsilon"], head["delta"])
            for line in lines[1:]:
                record = unsealed(_record(line))
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
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            reason = sanitize(f"{type(error).__name__}: {error}", 200)  # not the whole of some other file
            raise ValueError(
                f"{self.path} is not a ledger, or is damaged ({reason}); restore it from a backup: without "
                "it nobody knows what was spent."
            ) from error
        return str(head["id"]), budget, list(entries.values()), chain

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
            f"Ledger({where}: {len(entries)} releases, {without}epsilon={self._spent(entries):.4g} of "
            f"{self.epsilon:g} spent at delta={self.delta:g})"
        )


@dataclass(frozen=True)
class _Opened:
    """A ledger while nobody else may write to it: what it has, all of which was read."""

    file: FileIO | None  # None in memory
    size: int  # bytes
    chain: Chain
    entries: list[Entry]

    def find(self, release: str) -> Entry | None:
        """The debit of this name."""
        return next((entry for entry in self.entries if entry.release == release), None)

    def with_entry(self, changed: Entry) -> list[Entry]:
        """The entries, with one changed."""
        return [changed if entry.release == changed.release else entry for entry in self.entries]

    def flush(self) -> None:
        """Make sure that a line of a writer that was killed survives a crash of the machine, too."""
        if self.file is not None:
            os.fsync(self.file.fileno())


def _record(line: bytes) -> JSON:
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
