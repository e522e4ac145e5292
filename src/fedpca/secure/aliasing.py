"""What a sum of rounded Gaussians adds to delta, beyond the Gaussian of their total variance.

Owners round their shares of the noise one by one. Their sum is that Gaussian, blurred by uniforms and
rounded, but for a factor of every probability next to one; the proof is in
docs/explanation/privacy-proofs.md. Parts of standard deviation 4 add about 1e-68 per entry.
"""

from collections.abc import Iterable, Sequence
from math import exp, expm1, inf, isfinite, log, log1p, pi

from fedpca.secure.messages import NoiseBlock
from fedpca.secure.noise_shares import Levels

_LARGEST_SHARE = 1e-3  # of delta
_LEAST = 1e-300  # below it float64 loses digits, and sums are taken in logarithms
_MOST = 700.0  # logarithms of numbers that float64 holds are below 709.7


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
    >>> aliasing([100.0, 100.0], entries=10, epsilon=1000.0)
    0.0
    """
    if not sds or not all(isfinite(sd) and sd > 1e-9 for sd in sds):
        raise ValueError(f"standard deviations must be numbers above 1e-9, got {list(sds)!r:.80}.")
    largest, *others = sorted(sds, reverse=True)
    variance, ratios = largest**2, list[float]()  # as logarithms
    for sd in others:
        ratios.append(_ratio(variance * (sd**2 / (variance + sd**2))))
        variance += sd**2
    if not ratios:
        return 0.0
    chance = min(0.0, log(entries) + _distance(ratios))
    if epsilon < _MOST and chance > -_MOST:
        return (1 + exp(epsilon)) * exp(chance)
    together = log1p(exp(-epsilon)) + epsilon + chance
    return exp(together) if together < _MOST else inf


def added_to_delta(levels: Levels, present: int, blocks: Iterable[NoiseBlock], epsilon: float) -> float:
    """What rounding the parts of honest owners adds to delta, in a sum of so many owners."""
    kept = levels.reached(present) + 1
    return sum(
        aliasing(
            levels.sds(block.sd, block.shift)[:kept] * (present - levels.colluding), block.length, epsilon
        )
        for block in blocks
        if block.sd > 0
    )


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
    """The logarithm of at least 2 sum over k = 1, 2, ... of exp(-2 pi² k² harmonic), since k² >= 3 k - 2."""
    exponent = -2 * pi**2 * harmonic
    return log(2) + exponent - log(-expm1(3 * exponent))


def _distance(ratios: Sequence[float]) -> float:
    """The logarithm of (product of 1 + exp(ratio)) / 2 - 1/2, and at most 0."""
    product = sum(log1p(exp(ratio)) for ratio in ratios)
    if product >= 1:
        return 0.0
    if product > _LEAST:
        return log(expm1(product) / 2)
    largest = max(ratios)
    return largest + log(sum(exp(ratio - largest) for ratio in ratios) / 2)
