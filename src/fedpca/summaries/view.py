"""Answer: a summary that is told, and how many of its directions are shown."""

from typing import Any

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import certificate as certificates
from fedpca.summaries.linalg import mean_dominates, oversampled_rank, with_fixed_signs
from fedpca.summaries.merging import Summary
from fedpca.summaries.moments import Moments, shrink_eigenvalues
from fedpca.summaries.rank import RankRule, fixed_point
from fedpca.summaries.subspace import Subspace


class Answer:
    """What an estimator shows of a summary that came from elsewhere: a release, or a merge.

    Args:
        told: the summary.
        rule: how many directions are shown; None for those that rise above the noise, or all without any.
        oversample: directions carried beyond those.
        dtype: of the components.
    """

    is_fitted = True

    def __init__(self, told: Summary, rule: RankRule | None, oversample: int | str, dtype: Any) -> None:
        self.told = told
        self.rule = rule
        self.oversample = oversample
        self.dtype = np.dtype(dtype)
        self._summary: Subspace | None = None

    def summary(self) -> Subspace:
        """The leading directions."""
        if self._summary is None:
            subspace = self.told.subspace() if isinstance(self.told, Moments) else self.told
            wanted = self._wanted(subspace)
            more = oversampled_rank(wanted) if self.oversample == "auto" else wanted + int(self.oversample)
            keep = min(max(more, 1), subspace.n_features)
            components = with_fixed_signs(subspace.components[:keep]).astype(self.dtype, copy=False)
            self._summary = Subspace.unchecked(
                components,
                subspace.singular_values[:keep],
                subspace.mean,
                subspace.count,
                subspace.total,
                subspace.centered,
                subspace.feature_names,
                subspace.certificate,
            )
        return self._summary

    def shown(self) -> int:
        """How many directions of the summary are the answer."""
        summary = self.summary()
        return min(self._wanted(summary), summary.rank)

    def _wanted(self, subspace: Subspace) -> int:
        n_features = subspace.n_features
        if self.rule is None:
            # Noise alone passes its edge by this much once in a thousand times (Tracy, Widom 1996).
            edge = certificates.noise_edge(subspace.certificate)
            highest = np.array([edge * (1 + 1.7 * n_features ** (-2 / 3))])
            risen = subspace.singular_values**2 > shrink_eigenvalues(highest, edge)
            return max(1, int(np.count_nonzero(risen)))
        start = self.rule.start(n_features)
        rank = fixed_point(self.rule, start, n_features, subspace.singular_values, subspace.total)
        return self.rule.shown(rank, subspace.singular_values, subspace.total)

    def feature_variances(self) -> Array | None:
        """Not known."""
        return None

    def mean_dominates(self, mean: Array, spread: float) -> bool:
        """Whether products of rows would lose too many digits to a mean this large."""
        return mean_dominates(mean, spread, self.dtype)
