"""Summary: either kind of summary."""

from collections.abc import Iterable

from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace

Summary = Subspace | Moments


def all_moments(summaries: Iterable[Summary]) -> bool:
    """Whether all are moments: merged without a rank they stay moments, and lose nothing."""
    return all(isinstance(summary, Moments) for summary in summaries)
