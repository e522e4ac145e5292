"""Features of summaries, by name: what all have, and a summary of some features."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedpca._typing import AnyArray
from fedpca._util.text import join_names
from fedpca.backend import ops
from fedpca.summaries.about import About
from fedpca.summaries.algebra import rounding_floor, without_negative_eigenvalues
from fedpca.summaries.certificate import noise_edge
from fedpca.summaries.feature_names import SHOWN, Names, quoted
from fedpca.summaries.linalg import leading_singular_pairs, with_fixed_signs
from fedpca.summaries.moments import Moments
from fedpca.summaries.parts import check_observed
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.summary import Summary

FeatureRule = Literal["same", "intersection"]


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
