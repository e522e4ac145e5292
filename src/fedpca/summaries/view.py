"""View: what an estimator shows; SummaryView: that of a summary that came from elsewhere."""

from typing import NamedTuple

import numpy as np

from fedpca._typing import Array, DType, DTypeLike
from fedpca.summaries.algebra import shrink_eigenvalues
from fedpca.summaries.certificate import Certificate, noise_edge
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import (
    FixedRank,
    Oversample,
    RankRule,
    VarianceShare,
    fixed_point,
    oversampled_rank,
)
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


class View(NamedTuple):
    """What an estimator shows of all rows.

    Attributes:
        subspace: all directions carried.
        n_components: how many of them are shown.
        variances: of the features of the rows, divided by any scale, shape (d,), where they are known.
    """

    subspace: Subspace
    n_components: int
    variances: Array | None

    @property
    def components(self) -> Array:
        """Those that are shown, shape (`n_components`, d)."""
        return self.subspace.components[: self.n_components]


class SummaryView:
    """A summary from a release or a merge, and how many of its directions are shown.

    Args:
        summary: the summary.
        rule: how many directions are shown; None for those that rise above the noise, or all without any.
        oversample: directions carried beyond those.
        dtype: of the components.
    """

    def __init__(
        self, summary: Summary, rule: RankRule | None, oversample: Oversample, dtype: DTypeLike
    ) -> None:
        self.whole = summary.standardized() if isinstance(summary, Moments) else summary
        self.rule = rule
        self.oversample = oversample
        self.dtype: DType = np.dtype(dtype)
        self._view: View | None = None

    def view(self) -> View:
        """What is shown of the summary."""
        if self._view is None:
            subspace = self._shown()
            self._view = View(subspace, min(self._wanted(subspace), subspace.rank), self._variances())
        return self._view

    def summary(self) -> Subspace:
        """The leading directions."""
        return self.view().subspace

    def n_components(self) -> int:
        """How many directions of the summary are shown."""
        return self.view().n_components

    def _shown(self) -> Subspace:
        return self._carried().with_fixed_signs()

    def _carried(self) -> Subspace:
        subspace = self.whole.subspace()
        carried = oversampled_rank(self._wanted(subspace), self.oversample)
        return subspace.truncate(min(max(carried, 1), subspace.n_features)).astype(self.dtype)

    def shortfall(self) -> str:
        """What is missing of the components asked for because it does not rise above noise, or ""."""
        if self.whole.certificate is None:
            return ""
        summary, shown = self.summary(), self.n_components()
        remedy = (
            "More rows (also of others, merged), a larger epsilon, a tighter bound or fewer features help."
        )
        if isinstance(self.rule, FixedRank) and shown < self.rule.rank:
            risen = f"only {shown} rise{'s' if shown == 1 else ''}" if shown else "none rises"
            return (
                f"n_components={self.rule.rank} was asked for, and {risen} above the noise; the others would "
                f"be noise, and are left out. {remedy}"
            )
        if isinstance(self.rule, VarianceShare):
            share = float(summary.explained_variance_ratio[:shown].sum())
            if share < self.rule.share * (1 - 1e-9):
                risen = "the 1 component above the noise explains"
                if shown != 1:
                    risen = f"the {shown} components above the noise explain"
                return (
                    f"{risen} {share:.1%} of the variance, less than "
                    f"the {self.rule.share:.1%} asked for; others would be noise, and are left out. {remedy}"
                )
        if not shown:
            return f"nothing rises above the noise: there are no components to show. {remedy}"
        return ""

    def _wanted(self, subspace: Subspace) -> int:
        n_features = subspace.n_features
        if isinstance(self.rule, FixedRank):
            return self.rule.rank
        if subspace.certificate is not None and subspace.certificate.evaluation is not None:
            return subspace.rank  # what was shown before
        # Noise alone passes its edge by this much once in a thousand times (Tracy, Widom 1996).
        edge = noise_edge(subspace.certificate)
        highest = np.array([edge * (1 + 1.7 * n_features ** (-2 / 3))])
        risen = int(np.count_nonzero(subspace.singular_values**2 > shrink_eigenvalues(highest, edge)))
        if self.rule is None:
            return risen
        start = self.rule.start(n_features)
        rank = fixed_point(self.rule, start, n_features, subspace.singular_values, subspace.total)
        return min(self.rule.n_components(rank, subspace.singular_values, subspace.total), risen)

    def evaluated(self, certificate: Certificate) -> "SummaryView":
        """The same view of a summary whose certificate states how good its components are."""
        whole: Summary = self.whole.with_about(certificate=certificate)
        if isinstance(whole, Subspace) and certificate.evaluation is not None:
            whole = whole.evaluated(certificate.evaluation)
        return SummaryView(whole, self.rule, self.oversample, self.dtype)

    def _variances(self) -> Array | None:
        """Variance of each feature of the rows, divided by any scale, if known: not of private moments."""
        if not isinstance(self.whole, Moments) or self.whole.certificate or not self.whole.count:
            return None
        return np.diag(self.whole.scatter) / self.whole.count
