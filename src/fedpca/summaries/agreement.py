"""Agreement: what summaries must have in common to be merged, and what the merge is then about."""

from collections.abc import Sequence

import numpy as np

from fedpca._typing import Array
from fedpca.summaries.about import About
from fedpca.summaries.base import BaseSummary
from fedpca.summaries.certificate_merging import combine
from fedpca.summaries.feature_names import difference
from fedpca.summaries.scaling import Scaling, different_scales, same_scale
from fedpca.summaries.summary import Summary, all_moments

# Centers of "sphere" releases that are the same but for rounding in float32 and in files: 8 times its eps.
_SAME_CENTER = 1e-6


def merged_about(summaries: Sequence[Summary]) -> About:
    """Names, scale, scaling and certificate of a merge; raises for summaries that do not merge."""
    names = check_compatible(summaries)
    some = [summary for summary in summaries if summary.count] or summaries[:1]
    scale, scaling, is_sum = some[0].scale, None, all_moments(summaries)
    if any(summary.scaling is not None for summary in some):
        scaling = Scaling.merge(summary.scaling_of_rows() for summary in some)  # type: ignore[union-attr]
    return About(names, scale, combine([part.certificate for part in summaries], summed=is_sum), scaling)


def check_compatible(
    summaries: Sequence[Summary], option: str = "features='intersection'"
) -> tuple[str, ...] | None:
    """Reject summaries that do not merge; return the feature names, if any summary has them.

    `option` is how the caller asks for the features that all have.
    """
    require_summaries(summaries)
    first = summaries[0]
    names = next((summary.feature_names for summary in summaries if summary.feature_names), None)
    for summary in summaries:
        if names and summary.feature_names and summary.feature_names != names:
            raise ValueError(difference(names, summary.feature_names, option))
        if summary.n_features != first.n_features:
            raise ValueError(
                f"summaries must have the same features, got {first.n_features} and {summary.n_features}; "
                f"select the same columns, or name them and leave out what not all have with {option}."
            )
        if summary.centered != first.centered:
            raise ValueError(
                "centered and uncentered summaries do not merge; build all with the same `center`, or the "
                "same kind of Privacy(center=...)."
            )
    with_rows = [summary for summary in summaries if summary.count]
    check_scales(with_rows)
    check_spheres(with_rows)
    return names


def require_summaries(summaries: Sequence[Summary]) -> None:
    """Reject what is no summary, and none at all."""
    if not summaries:
        raise ValueError("merge needs at least one summary, got none.")
    for summary in summaries:
        if not isinstance(summary, BaseSummary):
            remedy = "; pass its subspace_" if hasattr(summary, "subspace_") else ""
            raise TypeError(f"only Subspace and Moments merge, got {type(summary).__name__}{remedy}.")


def check_scales(summaries: Sequence[Summary]) -> None:
    """Reject summaries of rows that were not divided by the same scale."""
    for summary in summaries[1:]:
        if not same_scale(summaries[0].scale, summary.scale):
            raise ValueError(different_scales(summaries[0].scale, summary.scale))


def check_spheres(summaries: Sequence[Summary]) -> None:
    """Reject private releases of rows scaled to length one about different centers.

    Their scatters have no length, and the distance of their centers has: nothing says how they add up.
    """
    spheres = [part for part in summaries if part.certificate and part.certificate.clipping == "sphere"]
    for part in spheres[1:]:
        check_same_center(spheres[0].mean, part.mean)


def check_same_center(ours: Array, theirs: Array) -> None:
    """Reject two centers of rows scaled to length one that differ by more than rounding."""
    distance = float(np.linalg.norm(theirs - ours))
    if distance > _SAME_CENTER * float(np.linalg.norm(ours)):
        raise ValueError(
            f"private releases of rows scaled to length one must have the same center, and these are "
            f"{distance:.3g} apart; let all owners take the private steps together, or give all the same "
            "center, or a bound."
        )
