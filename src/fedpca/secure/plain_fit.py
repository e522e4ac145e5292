"""PlainFit: exact moments of all owners' rows in fixed point, for a coordinator that sees only sums.

Two sums. The first, of entries and their squares in units of a public bound, tells the mean and the spread of
every feature. The second is of products of standardized rows: the sum of z_j z_k over n rows is at most n, so
that as many bits as a word of 64 has left are those of the rows, however different the features are.

The first total may be false. Then products wrap around, modulo 2^62. An owner that refused them, or clipped
its rows, would answer a question about its own rows alone.
"""

from collections.abc import Iterable, Iterator
from math import ceil, inf, log2

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.errors import SecureError
from fedpca.privacy.clipping import MAX_ROWS
from fedpca.secure.fit import Sum, Total
from fedpca.summaries import validation
from fedpca.summaries.about import About
from fedpca.summaries.certificate import SecureSum
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import FixedRank
from fedpca.summaries.scaling import ScaleLike, Scaling, check_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.view import SummaryView

_BITS = 62  # of a total: signed, and a factor of two
# Bits of products that rows do not use: rounding the mean and the spread of the first sum may make products
# larger. Errors of a scatter are 4e-9 of it; with 2 bits 1e-9, with 12 bits 3e-8 (`benchmarks.secure`, fixed
# point).
_RESERVE = 6
# Bits of a part of a standardized entry: the last part may have 19 and a sign, so that a product has 38, and
# sums over the rows of a batch 52: they are exact in float64, which has 53.
_LIMB = 18
_MAX_FEATURES = 4096
_BATCH_ROWS = 2**14  # products of limbs, summed over these, are exact in float64


class PlainFit:
    """The two sums of a model without privacy: nobody learns more than the moments of all rows.

    A missing entry counts as the mean of those that are known, or as zero where no mean is subtracted.

    Args:
        largest: no entry of a row is larger than this in size: a public number.
        n_features: d.
        rank: how many components are wanted.
        center: whether the mean is subtracted.
        scale: what features are divided by: "std", "binomial", one public number per feature, or None.
        feature_names: one per feature, or None.

    Attributes:
        constant: with "std" or "binomial", which features do not vary, shape (d,), when all sums are taken.
    """

    most_sums = 2

    def __init__(
        self,
        largest: float,
        n_features: int,
        rank: int,
        *,
        center: bool = True,
        scale: ScaleLike = None,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        if not validation.is_real(largest) or not 1e-70 < largest < 1e70:
            raise ValueError(
                f"largest must be a positive number that no entry of a row exceeds, got {largest!r:.80}."
            )
        if n_features > _MAX_FEATURES:
            raise ValueError(
                f"secure sums without privacy are of n_features² products, of at most {_MAX_FEATURES} "
                f"features, got {n_features}; select fewer columns."
            )
        self._largest = float(largest)
        self.n_features = n_features
        self.feature_names = feature_names
        self._rank = validation.rank(rank, n_features)
        self._centered = center
        self._scale = check_scale(scale, n_features, feature_names)
        self._rows = 0
        self._taken: list[SecureSum] = []
        self._known: Array | None = None  # of the first sum: the share of rows that know each feature
        self._mean: Array | None = None
        self._spread: Array | None = None
        self._view: SummaryView | None = None
        self.constant: AnyArray | None = None

    @property
    def most_words(self) -> int:
        """The length of the longest sum."""
        return max(3 * self.n_features, self.n_features * (self.n_features + 3) // 2)

    def begin(self, rows: int, noise: float) -> None:
        """Let the sums begin; see `Fit`."""
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"secure sums must be of 1 to {MAX_ROWS} rows of all owners, got {rows}.")
        self._rows = rows

    @property
    def next(self) -> Sum | None:
        """The next sum; None when all are taken."""
        if not self._rows:
            raise ValueError("the sums must begin first: call begin.")
        d = self.n_features
        if self._mean is None:
            limits = (1.0, self._unit, self._unit)
            largest = tuple(self._rows * limit for limit in limits)
            return Sum("sums", ((d, 0.0),) * 3, 0.0, largest, tuple(d**0.5 * limit for limit in limits))
        if self._view is None:
            products = d * (d + 1) // 2
            largest = (2.0**_BITS,) * 2
            return Sum("products", ((products, 0.0), (d, 0.0)), 0.0, largest, (inf, inf))
        return None

    @property
    def _unit(self) -> float:
        """Of an entry of size one in the first sum."""
        return 2.0 ** (_BITS - ceil(log2(self._rows)))

    @property
    def _step(self) -> float:
        """Of a standardized entry of size one in the second."""
        return 2.0 ** ((_BITS - _RESERVE - ceil(log2(self._rows))) // 2)

    @property
    def _fine_step(self) -> float:
        """The same, where entries and not products are summed."""
        return 2.0 ** (_BITS - _RESERVE - ceil(log2(self._rows)))

    @property
    def taken(self) -> tuple[SecureSum, ...]:
        """Who took part in the sums so far."""
        return tuple(self._taken)

    def check_rows(self, parts: Iterable[Array]) -> None:
        """Refuse, by ValueError, rows with an entry above the bound; see `Fit`."""
        for _ in self._relative(parts):
            pass

    def vector(self, parts: Iterable[Array], random: np.random.Generator) -> AnyArray:
        """The integers of the next sum over an owner's rows; see `Fit`."""
        return self._sums(parts) if self._mean is None else self._products(parts)

    def _relative(self, parts: Iterable[Array]) -> Iterator[tuple[Array, AnyArray]]:
        """Rows in units of the bound, zero for missing entries, and which are known."""
        for part in parts:
            for start in range(0, len(part), _BATCH_ROWS):
                rows = np.asarray(part[start : start + _BATCH_ROWS], dtype=np.float64)
                known = ~np.isnan(rows)
                rows = np.where(known, rows, 0.0)
                if (found := float(np.abs(rows).max(initial=0.0))) > self._largest:
                    raise ValueError(
                        f"no entry of a row may be larger than largest={self._largest:g}, and one has "
                        f"size {found:g}; nothing was sent. Agree on a larger bound, or clip the rows."
                    )
                yield rows / self._largest, known

    def _sums(self, parts: Iterable[Array]) -> AnyArray:
        total = np.zeros((3, self.n_features), dtype=np.int64)
        for rows, known in self._relative(parts):
            total[0] += known.sum(axis=0)
            total[1] += np.rint(rows * self._unit).astype(np.int64).sum(axis=0)
            total[2] += np.rint(rows**2 * self._unit).astype(np.int64).sum(axis=0)
        return total.ravel()

    def _products(self, parts: Iterable[Array]) -> AnyArray:
        """Modulo 2^62: with a true total before, all of them are small. Never refused; see above."""
        assert self._mean is not None
        assert self._spread is not None
        limbs = _n_limbs(self._step * float(np.max((1 + np.abs(self._mean)) / self._spread)))
        products = np.zeros((self.n_features, self.n_features), dtype=np.int64)
        total = np.zeros(self.n_features, dtype=np.int64)
        for rows, known in self._relative(parts):
            standardized = np.where(known, (rows - self._mean) / self._spread, 0.0)
            fine = np.fmod(np.rint(standardized * self._fine_step), 2.0**_BITS)
            total += fine.astype(np.int64).sum(axis=0)
            products += _gram(np.rint(standardized * self._step), limbs)
        found = np.concatenate([*(products[i, i:] for i in range(self.n_features)), total])
        half = 1 << (_BITS - 1)
        return ((found + half) & (2 * half - 1)) - half

    def add(self, total: Total) -> None:
        """Take the total of the next sum, and go on."""
        if (announced := self.next) is None:
            raise ValueError("all sums were taken already.")
        announced.check(total, self._rows)
        if self._mean is None:
            self._standardize(total)
        else:
            self._finish(total)
        self._taken.append(SecureSum(announced.name, tuple(total.owners), total.rows, float(total.noise)))

    def _standardize(self, total: Total) -> None:
        """What the second sum subtracts from rows and divides them by."""
        known, sums, squares = total.values.reshape(3, self.n_features)
        most = known * self._unit * (1 + 1e-9)  # no entry is larger than 1
        if (known < 0).any() or (known > total.rows).any() or (squares < 0).any():
            raise _impossible("sums")
        if (np.abs(sums) > most).any() or (squares > most).any():
            raise _impossible("sums")
        count = np.maximum(known, 1.0)
        mean = sums / count / self._unit if self._centered else np.zeros(self.n_features)
        variance = squares / count / self._unit - mean**2
        # A variance is known up to the last digit of the sum or of float64. Below 64 times that, rounding is
        # too much of it; above, the squares of n standardized entries add up to at most n (1 + 1/64).
        spread = np.sqrt(np.maximum(variance, 64.0 * (1 / self._unit + np.finfo(np.float64).eps)))
        self._known, self._mean, self._spread = known / total.rows, mean, spread

    def _finish(self, total: Total) -> None:
        assert self._mean is not None
        assert self._spread is not None
        assert self._known is not None
        d, n = self.n_features, total.rows
        scatter, start = np.zeros((d, d)), 0
        for i in range(d):
            stop = start + d - i
            scatter[i, i:] = scatter[i:, i] = total.values[start:stop]
            start = stop
        scatter /= self._step**2
        diagonal = np.diag(scatter)
        limit = np.sqrt(np.maximum(diagonal, 0.0))
        if (diagonal < 0).any() or (np.abs(scatter) > (1 + 1e-9) * np.outer(limit, limit)).any():
            raise _impossible("products")
        unit = self._spread * self._largest
        offset = total.values[start:] / self._fine_step / n  # not zero where other owners are in this sum
        if self._centered:
            scatter -= n * np.outer(offset, offset)
        scatter *= np.outer(unit, unit)
        np.fill_diagonal(scatter, np.maximum(np.diag(scatter), 0.0))
        unknown = self._known == 0
        scatter[unknown] = scatter[:, unknown] = 0.0
        shift = np.where(unknown, 0.0, unit * offset)
        mean = np.where(unknown, 0.0, self._mean * self._largest + shift)
        observed = np.where(unknown, 0.0, float(n)) if unknown.any() else None
        rule, scaling = self._scale if isinstance(self._scale, str) else None, None
        if rule is not None:
            known = self._known * n
            count = np.maximum(known, 1.0)
            variance = np.diag(scatter) / count
            if not self._centered:
                mean = mean * (n / count)
                variance = np.maximum(variance - mean**2, 0.0)
            scaling = Scaling(known, mean, variance)
            self.constant = scaling.constant
        mean = mean if self._centered else np.zeros(d)
        moments = Moments(
            n,
            mean,
            scatter,
            self._centered,
            observed,
            about=About(self.feature_names, rule, scaling=scaling),
        )
        if isinstance(self._scale, np.ndarray):
            moments = moments.divided(self._scale).with_about(scale=self._scale)
        self._view = SummaryView(moments, FixedRank(self._rank), "auto", np.float64)

    @property
    def view(self) -> SummaryView:
        """The model, and how many of its directions are shown."""
        if self._view is None:
            raise ValueError("there is no model yet: the sums are not complete.")
        return self._view

    @property
    def model(self) -> Subspace:
        """The directions that are shown."""
        return self.view.summary().truncate(max(self.view.n_components(), 1))


def _n_limbs(largest: float) -> int:
    """How many limbs numbers up to this size need. It follows from public numbers, as the time it takes."""
    return 1 + (largest > 2.0 ** (_LIMB + 1)) + (largest > 2.0 ** (2 * _LIMB + 1))


def _gram(points: Array, limbs: int) -> AnyArray:
    """The products of columns of integers, summed over the rows of a batch, modulo 2^64.

    >>> points = np.array([[2.0**52 - 1, -3.0]])
    >>> _gram(points, 3)[0, 1] == -3 * (2**52 - 1)
    np.True_
    """
    parts = []
    for _ in range(limbs - 1):
        upper = np.rint(points * 2.0**-_LIMB)
        parts.append(points - upper * 2.0**_LIMB)
        points = upper
    parts.append(points)
    total = np.zeros((points.shape[1],) * 2, dtype=np.int64)
    for i, left in enumerate(parts):
        for j in range(i, limbs):
            if (shift := _LIMB * (i + j)) < 64:
                product = (left.T @ parts[j]).astype(np.int64)
                total += (product if i == j else product + product.T) << shift
    return total


def _impossible(name: str) -> SecureError:
    return SecureError(
        f"the total of {name!r} is not one of rows: an owner has sent other numbers than those of its rows. "
        "Find out who, and begin the study anew without it."
    )
