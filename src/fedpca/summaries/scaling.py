"""Scaling: observed weight, mean and variance of every feature; what rows are divided by before a PCA."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

import numpy as np
from scipy import sparse

from fedpca._typing import JSON, AnyArray, Array, ArrayLike, DeviceArray, RowsLike
from fedpca._util.text import feature_label, join_names
from fedpca.backend import backend_of, batch_slices, ops
from fedpca.errors import NonFiniteError
from fedpca.parallel import map_parts
from fedpca.summaries import validation
from fedpca.summaries.algebra import pooled
from fedpca.summaries.feature_names import difference
from fedpca.summaries.frozen import Frozen

ScaleRule = Literal["std", "binomial"]
"""By what features are divided: their standard deviation, or, counts of an allele, sqrt(2 p (1 - p))."""

ScaleLike = ScaleRule | ArrayLike | None
"""A scale as a user gives it: a rule, a positive number per feature, or None for rows as they are."""

Scale = Array | ScaleRule | None
"""A checked scale."""

_CHUNK_ENTRIES = 2**19
_MAX_PARTS = 64  # chunks pooled at once
_PART_ENTRIES, _MAX_SHARED = 2**18, 16  # of a part of rows that a thread works on, and how many parts
_FEW = 8  # features at a time of rows that are stored column by column
_FAR = 100.0  # squared distance of a mean, in variances, at which squares about it lose digits
_MAX_PASSES = 3  # the first finds a mean, the second what rounding left of it
_ROUNDED = 1e-9  # a mean of 2 in float64 is off by n eps at most: of counts, in a million rows, by 5e-10
_TINY = float(np.finfo(np.float64).tiny)
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False, repr=False)
class Scaling(Frozen):
    """Observed weight, mean and variance of every feature: 3 d numbers that merge exactly, in any order.

    Of rows with missing entries it is that of the observed ones. Owners who merge theirs can divide their
    rows by one scale, that of all rows together, before a PCA. It is not private.

    Attributes:
        observed: number of observed entries of each feature, or the sum of their weights, shape (d,).
        mean: of the observed entries, shape (d,); 0 where there are none.
        variance: of the observed entries, with divisor `observed`, shape (d,); 0 where there are none.
        feature_names: one per feature, or None.

    >>> north, south = Scaling.from_rows([[1.0, 700.0], [3.0, 900.0]]), Scaling.from_rows([[8.0, np.nan]])
    >>> both = Scaling.merge([north, south])
    >>> both.observed, both.mean, both.scale("std").round(3)
    (array([3., 2.]), array([  4., 800.]), array([  2.944, 100.   ]))
    """

    observed: Array
    mean: Array
    variance: Array
    feature_names: tuple[str, ...] | None = None

    kind = "scaling"

    def __post_init__(self) -> None:
        names = ("observed", "mean", "variance")
        arrays = {name: np.array(getattr(self, name), dtype=np.float64) for name in names}
        shape = arrays["mean"].shape
        if len(shape) != 1 or not shape[0] or any(array.shape != shape for array in arrays.values()):
            shapes = ", ".join(str(array.shape) for array in arrays.values())
            raise ValueError(f"observed, mean and variance must have one number per feature, got {shapes}.")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("observed, mean and variance must be finite.")
        if (arrays["observed"] < 0).any() or (arrays["variance"] < 0).any():
            raise ValueError("observed and variance must not be negative.")
        unknown = arrays["observed"] == 0
        if arrays["mean"][unknown].any() or arrays["variance"][unknown].any():
            raise ValueError("mean and variance must be 0 for features without an observed entry.")
        with np.errstate(over="ignore"):
            largest = float(np.max(arrays["observed"] * (arrays["variance"] + arrays["mean"] ** 2)))
        if not largest < ops.max_energy():
            raise ValueError(f"sums of squares must stay below {ops.max_energy():.1e}; rescale the features.")
        self._freeze(arrays | {"feature_names": validation.feature_names(self.feature_names, shape[0])})

    @classmethod
    def from_rows(cls, rows: RowsLike, *, sample_weight: ArrayLike | None = None) -> Self:
        """The scaling of rows, shape (n, d): dense or sparse, data frames or arrays on a device.

        NaN marks a missing entry; a weight counts repetitions of its row. Accurate for means far from zero.
        """
        names = validation.names_of(rows)
        if not backend_of(rows).on_device:
            rows = _host_rows(rows)
        else:
            rows = validation.device_rows(rows)
        weights = validation.sample_weight(sample_weight, rows.shape[0])
        return cls.of_checked(rows, weights, names)

    @classmethod
    def of_checked(
        cls,
        rows: RowsLike,
        weights: Array | None = None,
        names: tuple[str, ...] | None = None,
        about: Array | None = None,
    ) -> Self:
        """`from_rows` of an array of any backend, or CSR, of real numbers that can be squared in float64.

        Numbers near the means, shape (d,), save time.
        """
        near = np.zeros(rows.shape[1]) if about is None else about

        def statistics(part: slice) -> _Statistics:
            found = [_nothing(rows.shape[1])]
            for each in _chunks(rows[part, :], None if weights is None else weights[part], near):
                found.append(each)
                if len(found) == _MAX_PARTS:
                    found = [_pooled(found)]
            return _pooled(found)

        n_parts = rows.size // _PART_ENTRIES if isinstance(rows, np.ndarray) else 1
        parts = map_parts(statistics, ops.even_cuts(rows.shape[0], min(max(n_parts, 1), _MAX_SHARED)))
        return cls(*(parts[0] if len(parts) == 1 else _pooled(parts)), names)

    @classmethod
    def empty(cls, n_features: int, feature_names: Iterable[str] | None = None) -> Self:
        """The scaling of no rows: merging with it changes nothing."""
        names = None if feature_names is None else tuple(feature_names)
        return cls(*_nothing(n_features), names)

    @classmethod
    def merge(cls, scalings: Iterable["Scaling"], *, option: str = "") -> Self:
        """The scaling of all rows behind others, at least one, of the same features.

        `option` is how the caller asks for the features that all have, if there is a way.
        """
        if isinstance(scalings, Scaling):
            raise TypeError("scalings must be a list of them: Scaling.merge([a, b]), not a.merge(b).")
        scalings = list(scalings)
        if not scalings:
            raise ValueError("merge needs at least one Scaling, got none.")
        first = scalings[0]
        names = next((each.feature_names for each in scalings if each.feature_names), None)
        for each in scalings:
            if option and names and each.feature_names and each.feature_names != names:
                raise ValueError(difference(names, each.feature_names, option))
            if each.n_features != first.n_features:
                raise ValueError(
                    f"scalings must have the same features, got {first.n_features} and {each.n_features}."
                )
            validation.same_names(names, each.feature_names)
        return cls(*_pooled([(each.observed, each.mean, each.variance) for each in scalings]), names)

    @property
    def n_features(self) -> int:
        return len(self.mean)

    @property
    def constant(self) -> AnyArray:
        """Which features have been observed but do not vary, to rounding, shape (d,), bool."""
        # As scikit-learn has it: sums of n numbers of this size round by no more. Sums here round less, and
        # beyond a million rows, or below a few, the number of rows is not what counts.
        n = np.clip(self.observed, 16.0, 2.0**20)
        rounding = n * _EPS * self.variance + (n * _EPS * self.mean) ** 2
        constant: AnyArray = (self.observed > 0) & (self.variance <= rounding)
        return constant

    def scale(self, rule: ScaleRule) -> Array:
        """What to divide rows by, shape (d,); 1 for a feature that is constant, or not observed at all.

        Args:
            rule: "std" for the standard deviation, or "binomial" for sqrt(2 p (1 - p)) with p half the mean:
                the deviation of counts of an allele, 0, 1 or 2, as genetics expects it.
        """
        if rule not in get_args(ScaleRule):
            raise ValueError(f"a rule of scaling must be 'std' or 'binomial', got {rule!r:.80}.")
        variance = self.variance
        if rule == "binomial":
            outside = (self.mean < -_ROUNDED) | (self.mean > 2 + _ROUNDED)
            if outside.any():
                i = int(np.flatnonzero(outside)[0])
                name = feature_label(i, self.feature_names)
                raise ValueError(
                    f"binomial scale needs counts of an allele, means from 0 to 2, but that of {name!r:.200} "
                    f"is {self.mean[i]:.4g}; use 'std' for other features."
                )
            share = np.clip(self.mean / 2, 0.0, 1.0)
            variance = 2 * share * (1 - share)
        return np.sqrt(np.where(self.constant | (variance == 0), 1.0, variance))

    def weighted(self, weight: float) -> Self:
        """The scaling of the same rows, each with its weight times this one."""
        return type(self)(self.observed * weight, self.mean, self.variance, self.feature_names)

    def with_names(self, feature_names: Iterable[str] | None) -> Self:
        """The same scaling with these feature names."""
        return type(self)(self.observed, self.mean, self.variance, feature_names)  # type: ignore[arg-type]

    def with_columns(self, columns: AnyArray) -> Self:
        """The scaling of these of its features, in this order, without names."""
        return type(self)(self.observed[columns], self.mean[columns], self.variance[columns])

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays, by name."""
        return {"observed": self.observed, "mean": self.mean, "variance": self.variance}

    @property
    def metadata(self) -> JSON:
        """Everything but the arrays, as JSON has it."""
        return {"feature_names": self.feature_names}

    @classmethod
    def _of_contents(cls, arrays: Mapping[str, Array], metadata: JSON) -> Self:
        return cls(arrays["observed"], arrays["mean"], arrays["variance"], metadata["feature_names"])

    def __repr__(self) -> str:
        rows = float(self.observed.max())
        constant = int(np.count_nonzero(self.constant))
        more = f", constant={constant}" if constant else ""
        return f"Scaling(n_features={self.n_features}, observed={rows:g}{more})"


def check_scale(scale: object, n_features: int, names: tuple[str, ...] | None = None) -> Scale:
    """A scale, checked: None, a rule, or a read-only array with a positive number per feature."""
    rule = "scale must be None, 'std', 'binomial' or one positive number per feature"
    if scale is None:
        return None
    if isinstance(scale, str):
        if scale not in get_args(ScaleRule):
            raise ValueError(f"{rule}, got {scale!r:.80}.")
        return cast("ScaleRule", scale)
    if isinstance(scale, Scaling):
        raise TypeError("scale must be numbers, got a Scaling: pass its scale('std').")
    try:
        values = np.array(scale, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{rule}, got {scale!r:.80}.") from error
    if values.shape != (n_features,):
        raise ValueError(
            f"scale must have one positive number per feature, {n_features}, got shape {values.shape}."
        )
    bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
    if len(bad):
        shown = [feature_label(i, names) for i in bad.tolist()]
        raise ValueError(
            f"scale must be positive and finite, got {values[bad[0]]:g} for {join_names(shown)}; "
            "use 1 for a feature that is not to be scaled."
        )
    values.flags.writeable = False
    return values


def same_scale(ours: Scale, theirs: Scale) -> bool:
    """Whether two scales are the same, to rounding."""
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        # Numbers written with 10 digits are the same; a scale that is off by 1e-9 moves variances by 2e-9.
        return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, rtol=1e-9, atol=0.0))
    return type(ours) is type(theirs) and not isinstance(ours, np.ndarray) and ours == theirs


def different_scales(ours: Scale, theirs: Scale) -> str:
    """Why summaries do not merge, and what to do.

    >>> print(different_scales(None, "std"))
    summaries must have the same scale, got none and 'std'; fit all with the same scale.
    """
    remedy = "fit all with the same scale"
    if isinstance(ours, np.ndarray) or isinstance(theirs, np.ndarray):
        remedy = "fit all with the same numbers, such as those of a Scaling merged from all owners"
    both = isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray)
    others = "other numbers" if both else in_words(theirs)
    return f"summaries must have the same scale, got {in_words(ours)} and {others}; {remedy}."


def in_words(scale: Scale) -> str:
    """A scale in a message."""
    if isinstance(scale, np.ndarray):
        return "numbers"
    return "none" if scale is None else repr(scale)


def divided(rows: RowsLike, scale: Array) -> RowsLike:
    """Rows, dense or CSR, of any backend, divided by a scale of shape (d,), in their working dtype."""
    backend = backend_of(rows)
    dtype = ops.working_dtype(backend.numpy_dtype(rows))
    with np.errstate(over="ignore"):
        divisor = scale.astype(dtype)
    if not (np.isfinite(divisor) & (divisor > 0)).all():
        raise ValueError(f"scale must lie within the range of {dtype}, the dtype of the rows; pass float64.")
    if sparse.issparse(rows):
        quotients = rows.data.astype(dtype, copy=False) / divisor[rows.indices]
        return sparse.csr_array((quotients, rows.indices, rows.indptr), shape=rows.shape)
    if isinstance(rows, np.ndarray):
        return np.divide(rows, divisor, dtype=dtype)  # converts small parts at a time
    return backend.asarray(rows, dtype) / backend.asarray(divisor, dtype)


# --- statistics of rows: observed, mean and variance, each of shape (d,) ---

_Statistics = tuple[Array, Array, Array]


def _nothing(n_features: int) -> _Statistics:
    return np.zeros(n_features), np.zeros(n_features), np.zeros(n_features)


def _host_rows(rows: RowsLike) -> RowsLike:
    """Rows as an array or CSR of real numbers that can be squared."""
    if sparse.issparse(rows):
        rows = sparse.csr_array(rows)
        validation.real_dtype(rows.dtype)
        validation.has_nan(rows.data, np.float64)
        return rows
    validation.require_table(rows)
    rows = np.asarray(validation.objects_as_numbers(rows))
    if rows.ndim != 2 or not rows.shape[1]:
        raise ValueError(f"rows must be a table of shape (n_rows, n_features), got shape {rows.shape}.")
    validation.real_dtype(rows.dtype)
    validation.has_nan(rows, np.float64)
    return rows


def _chunks(rows: RowsLike, weights: Array | None, about: Array) -> Iterator[_Statistics]:
    """The statistics of rows, a chunk at a time; computed fastest `about` numbers near the means."""
    n_rows, n_features = rows.shape
    backend = backend_of(rows)
    if sparse.issparse(rows):
        size = max(1024, 2 * _CHUNK_ENTRIES // n_features)
    elif backend.on_device:
        size = max(1, backend.chunk_entries // n_features)
    else:
        size = max(32, _CHUNK_ENTRIES // min(n_features, _width(rows)))
    for part in batch_slices(n_rows, size):
        own = None if weights is None else weights[part]
        if sparse.issparse(rows):
            yield _of_sparse(rows[part], own)
            continue
        found = _of_dense(rows[part, :], own, about)
        about = np.where(found[0] > 0, found[1], about)
        yield found


def _width(rows: AnyArray) -> int:
    """How many features of dense rows to work on at a time: few, if rows are stored column by column."""
    return _FEW if rows.flags.f_contiguous and not rows.flags.c_contiguous else rows.shape[1]


def _of_dense(rows: DeviceArray, weights: Array | None, about: Array) -> _Statistics:
    backend = backend_of(rows)
    if weights is None:
        weights = backend.zeros((rows.shape[0],), np.float64) + 1
    else:
        weights = backend.asarray(weights, np.float64)
    width = rows.shape[1]
    if isinstance(rows, np.ndarray) and rows.strides[0] < rows.strides[1]:
        width = _FEW
    parts = [_of_features(rows[:, some], weights, about[some]) for some in batch_slices(rows.shape[1], width)]
    if len(parts) == 1:
        return parts[0]
    observed, mean, variance = (np.concatenate(values) for values in zip(*parts, strict=True))
    return observed, mean, variance


def _of_features(rows: DeviceArray, weights: DeviceArray, about: Array) -> _Statistics:
    """The statistics of dense rows, in one pass, or in more where a mean is far from `about`."""
    backend = backend_of(rows)
    xp = backend.xp
    rows = backend.asarray(rows, np.float64)
    observed: Array = np.full(rows.shape[1], float(xp.sum(weights)))
    for _ in range(_MAX_PASSES):
        deviations = rows - backend.asarray(about, np.float64)
        (sums,) = backend.to_numpy(weights @ deviations)
        if np.isnan(sums).any():
            gaps = xp.isnan(rows)
            deviations[gaps] = 0.0
            counts = backend.asarray(~gaps, np.float64)
            observed, sums = backend.to_numpy(weights @ counts, weights @ deviations)
        deviations *= deviations
        (squares,) = backend.to_numpy(weights @ deviations)
        if not np.isfinite(squares).all():
            raise NonFiniteError(
                "Input X contains infinity, or values too large to square: entries must be finite (NaN marks "
                "a missing one); drop or clip them."
            )
        divisor = np.where(observed > 0, observed, _TINY)
        step = sums / divisor
        mean, variance = about + step, np.maximum(squares / divisor - step**2, 0.0)
        if not (step**2 > _FAR * variance + (8 * _EPS * mean) ** 2).any():
            break
        about = mean
    return observed, np.where(observed > 0, mean, 0.0), variance


def _of_sparse(rows: sparse.csr_array, weights: Array | None) -> _Statistics:
    """The same of CSR rows: entries that are not stored are zero."""
    n_rows, n_features = rows.shape
    weights = np.ones(n_rows) if weights is None else weights
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    columns, values = rows.indices, rows.data.astype(np.float64)
    own = np.repeat(weights, np.diff(rows.indptr))

    def summed(terms: Array) -> Array:
        return np.bincount(columns, terms, n_features).astype(np.float64, copy=False)

    gaps = np.isnan(values)
    own, values = np.where(gaps, 0.0, own), np.where(gaps, 0.0, values)
    absent = np.bincount(columns, minlength=n_features) - n_rows < 0  # some entry is not stored: zero
    zeros = np.where(absent, weights.sum() - summed(np.repeat(weights, np.diff(rows.indptr))), 0.0)
    zeros = np.maximum(zeros, 0.0)
    observed = zeros + summed(own)
    divisor = np.where(observed > 0, observed, _TINY)
    mean = summed(own * values) / divisor
    deviations = np.where(gaps, 0.0, values - mean[columns])
    step = (summed(own * deviations) - zeros * mean) / divisor
    variance = (summed(own * deviations**2) + zeros * mean**2) / divisor
    return observed, np.where(observed > 0, mean + step, 0.0), np.maximum(variance - step**2, 0.0)


def _pooled(parts: Iterable[_Statistics]) -> _Statistics:
    """The statistics of all parts together."""
    observed, mean, variance = (np.array(values) for values in zip(*parts, strict=True))
    total, mean, offsets = pooled(observed, mean)
    squares = np.sum(observed * variance + offsets**2, axis=0)
    return total, mean, squares / np.where(total > 0, total, _TINY)
