"""Accounting: what the entries of a ledger cost every record. Pure and exact; linear, but for a sort.

Costs are compared as rational numbers, and rounded up when they become floats.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isqrt, nextafter

from fedpca.privacy.calibration import Adjacency


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


def total_mu(entries: Iterable[Entry]) -> float:
    """The largest cost of any record, as that of one Gaussian release, rounded up.

    Releases of disjoint records cost each record one of them; of the same records, all of them; and those
    that were cancelled, nothing.

    >>> from dataclasses import replace
    >>> entry = Entry("a", 0, 10, "gram", 3.0, "", "replace-one")
    >>> total_mu([entry, replace(entry, start=10, stop=20)]), total_mu([entry, replace(entry, mu=4.0)])
    (3.0, 5.0)
    """
    return _root(_largest_square(entries))


def is_affordable(entries: Iterable[Entry], budget: float) -> bool:
    """Whether no record pays more than a budget of mu: to the last bit."""
    return _largest_square(entries) <= Fraction(budget) ** 2


def mu_left(entries: Iterable[Entry], budget: float) -> float:
    """What every record can still pay of a budget of mu, rounded down."""
    left = Fraction(budget) ** 2 - _largest_square(entries)
    if left <= 0:
        return 0.0
    root = _root(left)
    return root if Fraction(root) ** 2 == left else nextafter(root, 0.0)


def composed(mus: Iterable[float]) -> float:
    """The mu of several Gaussian releases of the same record: the root of the sum of squares, rounded up.

    >>> composed([3.0, 4.0])
    5.0
    """
    return _root(sum((Fraction(mu) ** 2 for mu in mus), Fraction(0)))


def _largest_square(entries: Iterable[Entry]) -> Fraction:
    """The largest sum of mu² over the releases that contain a record."""
    changes: defaultdict[int, Fraction] = defaultdict(Fraction)  # of the sum, from one record to the next
    for entry in entries:
        if not entry.cancelled:
            square = Fraction(entry.mu) ** 2
            changes[entry.start] += square
            if entry.stop is not None:
                changes[entry.stop] -= square
    largest = square = Fraction(0)
    for record in sorted(changes):
        square += changes[record]
        largest = max(largest, square)
    return largest


def _root(square: Fraction) -> float:
    """The smallest float whose square is no less."""
    if not square:
        return 0.0
    up, down = square.numerator, square.denominator
    bits = max(0, 64 + (down.bit_length() - up.bit_length()) // 2)
    root = float(Fraction(isqrt((up << 2 * bits) // down), 1 << bits))
    while Fraction(root) ** 2 < square:
        root = nextafter(root, inf)
    while Fraction(below := nextafter(root, 0.0)) ** 2 >= square:
        root = below
    return root
