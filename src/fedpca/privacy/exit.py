"""The exit: the only place where noise is drawn and paid for. Guard, debit, draw, complete, in this order.

Whatever is computed from rows leaves through `leave`. `Exit` draws the noise of one owner from a key; owners
of secure sums draw theirs in shares, in `fedpca.secure.noise_shares`.
"""

import hashlib
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar, get_args

from fedpca._typing import AnyArray, Array
from fedpca._util.locks import process
from fedpca.privacy.accounting import Entry
from fedpca.privacy.calibration import Adjacency
from fedpca.privacy.certify import Receipt
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.noise import ExactNoise
from fedpca.privacy.sums import Purpose, Sum

# Entries drawn at once: all arrays of a draw have 4 MB together, where those of 4096 features at once would
# have half a gigabyte; at 4 ms a piece calls cost nothing (`benchmarks.private_noise`).
_PIECE = 2**16
_Exact = TypeVar("_Exact", bound=AnyArray)
_Result = TypeVar("_Result")


class Guard:
    """One thread at a time, in the one process that has the key; batches and releases whole or never.

    Two processes or threads with one key would add the same noise to different rows, and the difference of
    the results would reveal the rows.
    """

    def __init__(self) -> None:
        self._failure = ""  # of an earlier batch or release
        self._process = process()
        self._lock = threading.RLock()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """No other thread, and no fork."""
        if self._process != process():
            raise RuntimeError(
                "this process is a fork; call release() in the process that ingested the rows."
            )
        with self._lock:
            yield

    @contextmanager
    def whole(self, step: str) -> Iterator[None]:
        """A step interrupted half-way ends the stream: taken again, rows would count twice, or noise would.

        The stream counts as broken from the start of the step until it ends well, so that no exception, at
        whatever line, comes too early or too late.
        """
        around, self._failure = self._failure, f"{step} was interrupted"
        yield
        self._failure = around

    def check_intact(self, during: str = "") -> None:
        """Refuse to go on after a step that was interrupted.

        Args:
            during: the step that this is a part of, checked when it began.
        """
        if self._failure and self._failure != f"{during} was interrupted":
            raise RuntimeError(
                f"{self._failure}: some of its rows or its noise may have been used already; fit anew, so "
                "that none is used twice."
            )


class Debit(NamedTuple):
    """What a sum costs whom.

    Attributes:
        start, stop: the records that are in it; a `stop` of None means all that follow.
        name: of the sum.
        mu: what it costs each of them.
        adjacency: what one record more or less means to it.
        release: the name of the debit, random by default. One of this name is not made again.
    """

    start: int
    stop: int | None
    name: str
    mu: float
    adjacency: Adjacency
    release: str | None = None


def leave(
    exact: _Exact,
    noised: Callable[[_Exact, Entry], _Result],
    *,
    guard: Guard,
    ledger: Ledger,
    debit: Debit | Entry,
    during: str = "",
    completes: bool = True,
) -> _Result:
    """Let a sum over rows out.

    Args:
        exact: the sum without noise. It is used up: what is left of it may have noise on it.
        noised: draws the noise and gives what leaves. Interrupted in it, no sum leaves this owner again.
        guard: of the rows.
        ledger: what pays, before anything is drawn.
        debit: what is paid, or the entry that has paid for this sum already, with others.
        during: the step of the guard that this is a part of, checked when it began.
        completes: whether the sum is out when this returns. If not, somebody notes it later.

    Raises:
        BudgetExceeded: the ledger cannot pay; nothing was drawn, and everything is as before.
    """
    with guard.exclusive():
        guard.check_intact(during)
        entry = debit if isinstance(debit, Entry) else _debited(ledger, debit)
        with guard.whole(f"the noise of {entry.mechanism!r}"):
            left = noised(exact, entry)
        if completes:
            _complete(ledger, entry)
    return left


def _debited(ledger: Ledger, debit: Debit) -> Entry:
    start, stop, name, mu, adjacency, release = debit
    return ledger.debit(start, stop, name, mu, adjacency=adjacency, release=release)


def _complete(ledger: Ledger, entry: Entry) -> None:
    """Note that it came out. Without that the debit counts all the same."""
    try:
        ledger.complete(entry)
    except OSError as error:
        warnings.warn(f"the ledger could not note that the release came out: {error}", stacklevel=5)


class Exit:
    """The exit of one owner's rows: every sum gets noise from a key, each noise once.

    Args:
        ledger: what pays.
        adjacency: of all sums.
        key: 32 secret bytes that all noise follows from; every purpose has a key of its own.
        bound_to: called when the first noise of a purpose is drawn; the noise follows from what it returns,
            too, such as a digest of the rows, which are summed by then. None: it follows from the key alone.

    Attributes:
        guard: of the rows.
        sampler: how draws are made, for the certificate.
    """

    sampler = ExactNoise.sampler

    def __init__(
        self,
        ledger: Ledger,
        adjacency: Adjacency,
        key: bytes,
        *,
        bound_to: Callable[[], bytes] | None = None,
    ) -> None:
        if len(key) != 32:
            raise ValueError(f"key must have 32 bytes, got {len(key)}.")
        self.guard = Guard()
        self._ledger = ledger
        self._adjacency = adjacency
        self._bound_to = bound_to
        self._keys = {purpose: _derived(key, purpose.encode()) for purpose in get_args(Purpose)}
        self._drawn: set[tuple[Purpose, int]] = set()

    def receipt(self, entry: Entry, records: int, stream: str) -> Receipt:
        """What the certificate of a release states: of so many records that have paid, in a stream."""
        return Receipt(self.sampler, records, self._ledger.state(), entry.release, stream, entry.time)

    @property
    def has_keys(self) -> bool:
        """Whether anything more can leave."""
        return bool(self._keys)

    def is_open(self, purpose: Purpose) -> bool:
        """Whether there is a key for this purpose."""
        return purpose in self._keys

    def forget(self, *purposes: Purpose) -> None:
        """Drop keys: nothing more leaves for these purposes."""
        for purpose in purposes:
            self._keys.pop(purpose, None)

    def let_out(
        self,
        announced: Sum,
        exact: Array,
        records: tuple[int, int | None],
        take: Callable[[Array, Entry], _Result],
        *,
        paid: Entry | None = None,
        during: str = "",
    ) -> _Result:
        """The sum with noise of its deviations, debited before.

        Args:
            announced: the sum.
            exact: its integers; used up.
            records: start and stop of those in it.
            take: makes what leaves of the noisy sum and the debit.
            paid: the debit that has paid for it already.
            during: see `leave`.
        """
        label = announced.purpose, announced.number
        if announced.purpose not in self._keys or label in self._drawn:
            raise RuntimeError(
                f"the noise of {announced.name!r} is drawn once, and was: an earlier call was interrupted, "
                "or its result is lost; fit anew."
            )

        def noised(exact: Array, entry: Entry) -> _Result:
            self._drawn.add(label)
            self._add_noise(announced, exact)
            return take(exact, entry)

        debit = Debit(*records, announced.name, announced.mu, self._adjacency)
        return leave(exact, noised, guard=self.guard, ledger=self._ledger, debit=paid or debit, during=during)

    def _add_noise(self, announced: Sum, exact: Array) -> None:
        key = self._keys[announced.purpose]
        source = ExactNoise(key if self._bound_to is None else _derived(key, self._bound_to()))
        after = announced.number + 1
        numbers, start = range(after - len(announced.weights), after), 0
        for index, block in enumerate(announced.blocks):
            for piece, first in enumerate(range(0, block.length, _PIECE)):
                length = min(_PIECE, block.length - first)
                labels = [(each, index, piece) for each in numbers]
                drawn = source.weighted(labels, announced.weights, length, block.sd)
                exact[start + first :][:length] += drawn
            start += block.length


def _derived(key: bytes, of: bytes) -> bytes:
    return hashlib.blake2b(of, key=key, digest_size=32).digest()
