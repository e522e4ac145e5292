"""What a release shows about its own settings: a bound that does not fit.

Everything here is computed from what was released, so that it costs nothing and may be shown to anybody.
"""

import numpy as np

from fedpca.summaries.summary import Summary

_SHORT = 1 / 3  # of the bound: rows this short need nine times as many


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
