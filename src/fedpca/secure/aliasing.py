"""What a sum of rounded Gaussians adds to delta, beyond the Gaussian of their total variance.

Owners round their shares of the noise one by one. Their sum is that Gaussian, blurred by uniforms and
rounded, but for a factor of every probability next to one; the proof is in
docs/explanation/privacy-proofs.md. Parts of standard deviation 4 add about 1e-68 per entry.
"""

from collections.abc import Sequence
from math import exp, expm1, isfinite, log1p, pi

_LARGEST_SHARE = 1e-3  # of delta


def aliasing(sds: Sequence[float], entries: int, epsilon: float) -> float:
    """How much a sum of independent rounded Gaussians adds to delta. Terms of several sums add up.

    Args:
        sds: standard deviations of the parts that one entry of the sum has from honest owners, in units of
            what they are rounded to, which is 1.
        entries: how many entries the sum has.
        epsilon: that of the promise.

    >>> aliasing([0.8, 0.8, 0.8], entries=1, epsilon=0.0)
    0.0041
    >>> 1e-70 < aliasing([4.0] * 9, entries=1, epsilon=1.0) < 1e-67
    True
    >>> aliasing([100.0], entries=10**6, epsilon=1.0)
    0.0
    """
    if not sds or not all(isfinite(sd) and sd > 1e-9 for sd in sds):
        raise ValueError(f"standard deviations must be numbers above 1e-9, got {list(sds)!r:.80}.")
    largest, *others = sorted(sds, reverse=True)
    variance, logarithm = largest**2, 0.0
    for sd in others:
        logarithm += log1p(_ratio(variance * (sd**2 / (variance + sd**2))))
        variance += sd**2
    distance = expm1(logarithm) / 2 if logarithm < 1 else 1.0
    return (1 + exp(epsilon)) * min(1.0, entries * distance)


def require_negligible(term: float, delta: float) -> None:
    """Refuse what would take more than a thousandth of delta.

    >>> require_negligible(1e-60, delta=1e-6)
    >>> require_negligible(1e-8, delta=1e-6)
    Traceback (most recent call last):
    ValueError: noise shares must be so large that rounding them adds at most 0.001 of delta=1e-06, and it
    adds 1e-08; raise the shift of the sum.
    """
    if not term <= _LARGEST_SHARE * delta:
        raise ValueError(
            f"noise shares must be so large that rounding them adds at most {_LARGEST_SHARE:g} of "
            f"delta={delta:g}, and it adds {term:g}; raise the shift of the sum."
        )


def _ratio(harmonic: float) -> float:
    """At least 2 sum over k = 1, 2, ... of exp(-2 pi² k² harmonic), since k² >= 3 k - 2."""
    exponent = -2 * pi**2 * harmonic
    return -2 * exp(exponent) / expm1(3 * exponent)
