"""Features of summaries, by name: what all have, and summaries of these features alone."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedpca._typing import AnyArray
from fedpca._util.text import join_names
from fedpca.backend import ops
from fedpca.summaries.about import About
from fedpca.summaries.agreement import require_summaries
from fedpca.summaries.algebra import rounding_floor, without_negative_eigenvalues
from fedpca.summaries.base import check_observed
from fedpca.summaries.certificate import noise_edge
from fedpca.summaries.feature_names import SHOWN, Names, quoted
from fedpca.summaries.linalg import leading_singular_pairs, with_fixed_signs
from fedpca.summaries.moments import Moments
from fedpca.summaries.patchwork import merge_patches
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

FeatureRule = Literal["same", "intersection"]

_MAX_OWNERS = 4  # named in a warning


@dataclass(frozen=True)
class LeftOut:
    """Features of a summary that a merge left out.

    Attributes:
        features: their names.
        share: their share of the variance of the summary.

    >>> print(LeftOut(("dose", "ward"), 0.125))
    dose, ward (12.5% of its variance)
    """

    features: Names
    share: float

    def __str__(self) -> str:
        return f"{join_names(self.features, SHOWN)} ({self.share:.1%} of its variance)"


def check_rule(features: object) -> bool:
    """Whether features that not all have are left out; rejects what is not a rule."""
    if features not in ("same", "intersection"):
        raise ValueError(f"features must be 'same' or 'intersection', got features={features!r}.")
    return features == "intersection"


def require_names(names: Names | None, whose: str) -> Names:
    """Names to match features by: every feature has one of its own."""
    if names is None:
        raise ValueError(
            f"features are matched by name, and those of {whose} have none; fit rows whose columns have "
            "names."
        )
    twice, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise ValueError(
            f"features are matched by name, and {whose} has {twice!r:.80} twice; rename one of them."
        )
    return names


def common_names(summaries: Sequence[Summary | Scaling], owners: Sequence[str]) -> Names:
    """The features that all summaries, or scalings, have, in the order of the first."""
    named = [
        require_names(summary.feature_names, owner) for summary, owner in zip(summaries, owners, strict=True)
    ]
    common = set(named[0])
    for names, owner in zip(named, owners, strict=True):
        common &= set(names)
        if not common:
            raise ValueError(
                f"no feature is in all summaries: {owner} has {quoted(names)}, and none of those that all "
                "before it have; leave it out, or rename its columns."
            )
    return tuple(name for name in named[0] if name in common)


def columns_of(names: Names, wanted: Names) -> AnyArray:
    """Where the wanted features are among the names, all of which are known to be there."""
    positions = {name: i for i, name in enumerate(names)}
    return np.array([positions[name] for name in wanted])


def left_out(before: Summary, after: Summary) -> LeftOut | None:
    """What a summary has lost of its features, which have names; None if nothing."""
    assert before.feature_names is not None
    kept = set(after.feature_names or ())
    names = tuple(name for name in before.feature_names if name not in kept)
    if not names:
        return None
    if isinstance(before.scale, str):  # of the rows as they are divided
        before, after = before.subspace(), after.subspace()
    share = 1 - after.total / before.total if before.total > 0 else 0.0
    return LeftOut(names, min(max(share, 0.0), 1.0))  # noise may make it anything


def with_columns(part: Summary, columns: AnyArray, names: Names | None) -> Summary:
    """The summary, which has no parts, of these of its features, in this order.

    Exact for moments. Of a subspace, what truncation lost is taken to be spread evenly over the features that
    its rows know. Of a private one, only directions above the noise of what remains are kept.
    """
    changes: dict[str, Any] = {
        "mean": part.mean[columns],
        "observed": None if part.observed is None else part.observed[columns],
    }
    changes["observed"] = check_observed(changes["observed"], part.count, len(columns))
    certificate = None
    if part.certificate is not None:
        certificate = part.certificate.of_features(len(columns), part.n_features)
    changes["about"] = About(names, certificate=certificate)
    if isinstance(part, Moments):
        scatter = part.scatter[np.ix_(columns, columns)]
        if part.certificate is None:  # rounding of large features may show among small ones
            scatter = without_negative_eigenvalues(scatter)
        return replace(part, scatter=scatter, **changes)
    if len(columns) == part.n_features:
        return replace(part, components=part.components[:, columns], **changes)
    floor = rounding_floor(part.total, part.count, changes["mean"], part.components.dtype)
    if part.certificate is not None:
        if part.certificate.noise_edge is None:
            raise ValueError(
                "features of a private subspace cannot be left out, because its certificate does not state "
                "the edge of its noise; leave out the columns before the release, or release with the "
                "mechanism gram."
            )
        # Directions above the edge of noise come out of its removal above the half of it.
        floor = max(floor, float(np.sqrt(noise_edge(certificate) / 2)))
    rows = part.singular_values[:, None] * part.components[:, columns]
    components, singular_values = leading_singular_pairs(rows, floor=floor)
    share = np.count_nonzero(part.known[columns]) / max(part.n_known, 1)
    return replace(
        part,
        components=with_fixed_signs(components).astype(part.components.dtype, copy=False),
        singular_values=singular_values,
        total=ops.energy(rows) + part.discarded * share,
        **changes,
    )


def of_rule(summaries: list[Summary], features: object) -> list[Summary]:
    """The summaries to merge; a warning says what was left out of them."""
    if not check_rule(features):
        return summaries
    owners = [f"summary {i}" for i in range(len(summaries))]
    summaries, lost = intersect(summaries, owners)
    if text := left_out_warning(dict(zip(owners, lost, strict=True))):
        warnings.warn(text, stacklevel=3)
    return summaries


def intersect(
    summaries: Sequence[Summary], owners: Sequence[str]
) -> tuple[list[Summary], list[LeftOut | None]]:
    """The summaries of the features that all have, in the order of the first; what each has lost.

    Args:
        summaries: with feature names.
        owners: what to call each in an error.
    """
    require_summaries(summaries)
    names = common_names(summaries, owners)
    chosen = []
    for summary, owner in zip(summaries, owners, strict=True):
        try:
            chosen.append(select(summary, names))
        except ValueError as error:
            raise ValueError(f"{owner}: {error}") from error
    return chosen, [left_out(before, after) for before, after in zip(summaries, chosen, strict=True)]


def select(summary: Summary, names: Names) -> Summary:
    """The summary of these of its features, in this order; it must have them all.

    >>> moments = Moments(9, [1.0, 2.0], [[4.0, 1.0], [1.0, 3.0]], about=About(("age", "dose")))
    >>> select(moments, ("dose",)).scatter
    array([[3.]])
    """
    if summary.feature_names == names:
        return summary
    assert summary.feature_names is not None
    columns = columns_of(summary.feature_names, names)
    scale = summary.scale[columns] if isinstance(summary.scale, np.ndarray) else summary.scale
    if scale is not None:
        scaling = summary.scaling and summary.scaling.with_columns(columns)
        return select(summary.with_about(scale=None), names).with_about(scale=scale, scaling=scaling)
    if not summary.parts:
        return with_columns(summary, columns, names)
    leaves = [with_columns(part, columns, None) for part in summary.parts]
    rank = min(summary.rank or 1, len(names)) if isinstance(summary, Subspace) else None
    return merge_patches(leaves, rank, About(names))


def left_out_warning(lost: Mapping[str, LeftOut | None]) -> str:
    """What was left out of whose features, or ""."""
    texts = [f"{owner}: {what}" for owner, what in lost.items() if what is not None]
    if not texts:
        return ""
    more = f"; and of {len(texts) - _MAX_OWNERS} more" if len(texts) > _MAX_OWNERS else ""
    return f"left out features that not all have, of {'; of '.join(texts[:_MAX_OWNERS])}{more}."
