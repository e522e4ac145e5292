"""What a release shows about its own settings: a bound or a center that does not fit.

Everything here is computed from what was released, so that it costs nothing and may be shown to anybody.
"""

import numpy as np

from fedpca._typing import Array
from fedpca.summaries.moments import Moments
from fedpca.summaries.summary import Summary

_SHORT = 1 / 3  # of the bound: rows this short need nine times as many
_FAR = (
    0.9  # of the bound, between the center and the mean of clipped rows: nearly all lie beyond, on one side
)
_STEP = 0.5  # of the bound: a last step this long may have stopped short
_ALONG = 0.4  # of bound², the mean square of rows along that step, had it stopped short, and somewhat more
_ALONG_OF_FEW = 0.6  # divided by d: clipped rows have 1 / d of bound² along a direction wherever they lie


def bound_warning(released: Summary, bound: float, margin: float) -> str:
    """A warning if rows are far shorter than the bound, else "".

    Args:
        margin: by how much noise may have lowered the released total.
    """
    longest = np.sqrt((max(released.total, 0.0) + margin) / released.count)
    if longest >= _SHORT * bound or not longest:
        return ""
    typical = np.sqrt(max(released.total, 0.0) / released.count)
    length = f"about {typical:.2g}" if released.total > margin else f"at most about {longest:.2g}"
    return (
        f"bound={bound:g} is far too large: the release shows that a typical row is {length} long, and noise "
        f"grows with bound². A bound of {longest:.2g} needs {(bound / longest) ** 2:.0f} times fewer rows."
    )


def center_warning(
    released: Summary, center: Array, last_step: Array, bound: float, direction_sd: float, min_rows: int
) -> str:
    """A warning if a private center missed the mean, else "".

    Args:
        center: about which rows were clipped.
        last_step: by which it was last moved.
        direction_sd: standard deviation of the noise of the release along any one direction.
        min_rows: of fewer rows a released mean is mostly noise.
    """
    length = float(np.linalg.norm(last_step))
    missed = released.count >= min_rows and float(np.linalg.norm(released.mean - center)) > _FAR * bound
    if not missed and length > _STEP * bound:
        along = _energy(released, last_step / length) - 2 * direction_sd
        share = min(_ALONG + _ALONG_OF_FEW / len(center), _FAR)
        missed = along > share * released.count * bound**2
    if not missed:
        return ""
    return (
        "center='private' failed to locate the mean; the components are unusable. The mean must lie "
        f"within about two bounds of zero, bound={bound:g}, and there must be rows enough to outweigh the "
        "noise. Subtract public values from the rows first, or give a public center."
    )


def _energy(released: Summary, direction: Array) -> float:
    """Of the rows along a unit vector, about the mean."""
    if isinstance(released, Moments):
        return float(direction @ released.scatter @ direction)
    return float(released.singular_values**2 @ (released.components @ direction) ** 2)
