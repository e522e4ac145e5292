"""SummaryView: what an estimator shows of a summary that came from elsewhere."""

import numpy as np

from fedpca._typing import Array, DType, DTypeLike
from fedpca.summaries.algebra import shrink_eigenvalues
from fedpca.summaries.certificate import noise_edge
from fedpca.summaries.linalg import mean_dominates
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import Oversample, RankRule, fixed_point, oversampled_rank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


class SummaryView:
    """A summary from a release or a merge, and how many of its directions are shown.

    Args:
        summary: the summary.
        rule: how many directions are shown; None for those that rise above the noise, or all without any.
        oversample: directions carried beyond those.
        dtype: of the components.
    """

    is_fitted = True

    def __init__(
        self, summary: Summary, rule: RankRule | None, oversample: Oversample, dtype: DTypeLike
    ) -> None:
        self.whole = summary
        self.rule = rule
        self.oversample = oversample
        self.dtype: DType = np.dtype(dtype)
        self._summary: Subspace | None = None

    def summary(self) -> Subspace:
        """The leading directions."""
        if self._summary is None:
            subspace = self.whole.subspace()
            carried = oversampled_rank(self._wanted(subspace), self.oversample)
            carried = min(max(carried, 1), subspace.n_features)
            self._summary = subspace.truncate(carried).with_fixed_signs().astype(self.dtype)
        return self._summary

    def n_components(self) -> int:
        """How many directions of the summary are shown."""
        summary = self.summary()
        return min(self._wanted(summary), summary.rank)

    def _wanted(self, subspace: Subspace) -> int:
        n_features = subspace.n_features
        if self.rule is None:
            # Noise alone passes its edge by this much once in a thousand times (Tracy, Widom 1996).
            edge = noise_edge(subspace.certificate)
            highest = np.array([edge * (1 + 1.7 * n_features ** (-2 / 3))])
            risen = subspace.singular_values**2 > shrink_eigenvalues(highest, edge)
            return max(1, int(np.count_nonzero(risen)))
        start = self.rule.start(n_features)
        rank = fixed_point(self.rule, start, n_features, subspace.singular_values, subspace.total)
        return self.rule.n_components(rank, subspace.singular_values, subspace.total)

    def feature_variances(self) -> Array | None:
        """Variance of each feature, shape (d,), if the summary is of moments that are not private."""
        if not isinstance(self.whole, Moments) or self.whole.certificate or not self.whole.count:
            return None
        return np.diag(self.whole.scatter) / self.whole.count

    def mean_dominates(self, mean: Array, spread: float) -> bool:
        """Whether products of rows would lose too many digits to a mean this large."""
        return mean_dominates(mean, spread, self.dtype)
