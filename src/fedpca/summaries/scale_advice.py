"""What to say about the scale of features: one that dominates all others, and some that do not vary."""

from collections.abc import Sequence

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.summaries.feature_names import feature_labels
from fedpca.summaries.subspace import Subspace

_DOMINANT = 0.95  # of the variance


def dominant_feature(subspace: Subspace, energies: Array | None, names: Sequence[str] | None) -> str:
    """The warning of one feature with nearly all of the variance, or "".

    Args:
        subspace: of centered rows that were not divided by any scale.
        energies: sum of squares of each feature about its mean, shape (d,); None if only the directions of
            the subspace are known. What these explain of a feature is the least that it can have.
        names: of the features.

    >>> tall = np.array([[1.0, 100.0], [2.0, 900.0], [1.5, 400.0]])
    >>> dominant_feature(Subspace.from_rows(tall), None, ["height", "income"])[:46]
    'income has 100.0% of the variance of all 2 fea'
    """
    if subspace.n_features < 2 or not subspace.total > 0:
        return ""
    if energies is None:
        energies = np.sum((subspace.singular_values[:, None] * subspace.components) ** 2, axis=0)
    largest = int(np.argmax(energies))
    share = float(energies[largest]) / subspace.total
    if not share > _DOMINANT or np.count_nonzero(energies) < 2:
        return ""
    label = feature_labels(np.arange(subspace.n_features) == largest, names)
    return (
        f"{label} has {min(share, 1.0):.1%} of the variance of all {subspace.n_features} features: the "
        "components describe little else. scale='std' (--scale std) divides every feature by its standard "
        "deviation."
    )


def no_scale(left_out: AnyArray | None, names: Sequence[str] | None) -> str:
    """The warning of features whose scale was not found privately, or "".

    >>> text = no_scale(np.array([False, True]), ["height", "year"])
    >>> text[:76]
    'left out, because no scale was found under privacy: year, 1 of 2 features. I'
    """
    if left_out is None or not left_out.any():
        return ""
    count = int(np.count_nonzero(left_out))
    varies = "It hardly varies, has" if count == 1 else "They hardly vary, have"
    return (
        f"left out, because no scale was found under privacy: {feature_labels(left_out, names)}, "
        f"{count} of {len(left_out)} features. {varies} one value in most rows, or there are too few rows. "
        "Shares of the variance are those of the other features."
    )


def constant_features(constant: AnyArray | None, names: Sequence[str] | None, where: str = "") -> str:
    """The warning of features that are to be scaled but do not vary `where`, or "".

    >>> constant_features(np.array([False, True]), ["height", "year"])
    'year does not vary: it is not scaled.'
    """
    if constant is None or not constant.any():
        return ""
    label = feature_labels(constant, names)
    if np.count_nonzero(constant) == 1:
        return f"{label} does not vary{where}: it is not scaled."
    return f"{label} do not vary{where}: they are not scaled."
