"""The paper's bounds on noisy masks, on streams and on merging, corrected where they are wrong.

Those on noise say what is impossible: whatever is computed from a noisy matrix, some dataset has its first
component found no better than this. How many rows are enough in practice is what `fedpca.plan` estimates.
"""

from collections.abc import Sequence
from math import exp, expm1, inf, log, log1p, pi, sqrt

import numpy as np
from scipy.optimize import minimize_scalar

from fedpca._typing import Array
from fedpca.paper.noise import paper_omega
from fedpca.privacy.calibration import analytic_sigma
from fedpca.privacy.rules import check_epsilon_delta
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace


def utility_bound(omega: float, n_features: int) -> float:
    """The most that E|<v1, v1_hat>| can be, for the worst dataset, under a mask of standard deviation omega.

    Lemma 8: of about e^((d - 1) ln 1/sqrt(1 - phi²)) / 8 directions with cosines of at most phi, n copies of
    one make a dataset, and Fano's inequality bounds how well its direction can be distinguished from others.
    The bound is the smallest over phi. It never falls below 3/4, however large the noise.

    The printed result stands once its proof is mended: the divergence of two Gaussians has the inverse of
    their covariance (Lemma 6) and must be at most gamma, not at least (Lemma 7); the logarithm of K, not K,
    is what has to exceed 1/omega² + ln 2; phi ends at 1, where none is printed; and the distance has to be
    that of directions up to sign: absolute cosines are bounded. The mask is called symmetric but counted as
    d² independent entries: the bound holds for both, and for a symmetrized one, as none diverges by more than
    1/omega².

    Args:
        omega: of the noise on (1/n) sum x x^T: of every entry, or on the diagonal if it is symmetrized.
        n_features: d, at least 2.

    >>> utility_bound(0.1, n_features=784)
    0.9705
    """
    validation.integer(n_features, "n_features", at_least=2)
    if not omega > 0:
        raise ValueError(f"omega is a standard deviation and must be above 0, got omega={omega}.")
    divergence = 1 / omega / omega  # no square overflows
    freedom = n_features - 1

    def bound(phi: float) -> float:
        log_directions = -freedom / 2 * log1p(-(phi**2)) - log(8)
        return 1 - (1 - phi) / 4 * (1 - (divergence + log(2)) / log_directions) ** 2

    smallest = max(
        1 / sqrt(2 * pi * n_features),  # there are so many directions
        sqrt(-expm1(-2 * log(8 * n_features) / freedom)),  # at least d of them
        sqrt(-expm1(-(2 * divergence + log(256)) / freedom)),  # enough for Fano's inequality to say something
    )
    if smallest > 1 - 1e-12:
        return 1.0
    tolerance = {"xatol": 1e-9 * (1 - smallest)}
    # There is one minimum: the derivative of the logarithm of 1 - bound changes its sign once.
    return float(minimize_scalar(bound, bounds=(smallest, 1), method="bounded", options=tolerance).fun)


def rows_for_utility(utility: float, epsilon: float, delta: float, n_features: int) -> int:
    """The fewest rows at which the paper's omega does not rule out an expected cosine of `utility`.

    With fewer, some dataset's first component is found worse. Necessary, not sufficient. In the paper's
    algorithm these are the rows of a batch.

    >>> rows_for_utility(0.99, epsilon=1.0, delta=1e-5, n_features=784)
    339622
    """
    _check(utility, epsilon, delta, n_features)
    return _fewest_rows(utility, paper_omega(epsilon, delta, n_features, 1), n_features)


def analytic_rows_for_utility(utility: float, epsilon: float, delta: float, n_features: int) -> int:
    """The same with the analytic calibration: it grows as sqrt(d), not as d sqrt(d).

    >>> analytic_rows_for_utility(0.99, epsilon=1.0, delta=1e-5, n_features=784)
    83
    """
    _check(utility, epsilon, delta, n_features)
    return _fewest_rows(utility, analytic_sigma(epsilon, delta), n_features)


def sample_complexity(utility: float, epsilon: float, delta: float, n_features: int) -> float:
    """The rate at which the rows that the paper's omega needs grow, up to a constant (Lemma 9).

    d^(3/2) sqrt(ln(d/delta)) / epsilon times 1 - 16 (1 - utility), and zero for utilities up to 15/16. As in
    `rows_for_utility` so many are necessary; the Lemma breaks off before it says so.

    What is printed, with C2 = 16, is what follows, though not as printed. With phi such that the fraction in
    the bound is 1/2, the bound gives 4 sqrt(1 - utility) >= sqrt(1 - phi), that is 1 - 16 (1 - utility) <=
    phi; it holds for every phi, so that the proof's first line has a maximum, not a minimum, over phi. Then
    phi² is of the order of 1 / (d omega²), and omega², not omega, of that of d² ln(d/delta) / (epsilon n)².
    So it is the square of 1 - 16 (1 - utility) that n² epsilon² / (d³ ln(d/delta)) bounds. The paper leaves
    that square out, then takes the root as if it were there.

    >>> round(sample_complexity(0.99, epsilon=1.0, delta=1e-5, n_features=784))
    78617
    """
    _check(utility, epsilon, delta, n_features)
    rate = n_features**1.5 * sqrt(log(n_features / delta)) / epsilon
    return rate * max(0.0, 1 - 16 * (1 - utility))


def moses_error_bound(
    variances: Array, rank: int, block_rows: int, n_rows: int, *, alpha: float = 1.0, p: float = 2.0
) -> float:
    """Theorem 1: what the mean squared error of a block stream of Gaussian rows exceeds rarely.

    The stream keeps `rank` directions after each block, as `StreamingPCA(tracker="block", oversample=0)`
    does, and its error is ||Y - Y_hat||² / n. The bound holds up to a constant that the theorem leaves open,
    *except* with the probability of `moses_failure_bound`; the paper prints "with probability at most",
    which says the opposite.

    It is true and loose. With rho² the variance outside the first r directions, the residual, it is at least
    298 times the smaller of rho² lambda_1 / lambda_r and r lambda_1 + rho², for the best p, and it grows with
    the stream as (n / b)^(p eta² - 1), while the error itself stays near rho². The second of the two is
    never below the total variance, which no error exceeds; so the bound says something only where rho² is a
    small part of that. If the rows have rank r it is 0: the stream is exact.

    Args:
        variances: eigenvalues of the covariance of the rows, in any order, shape (d,).
        rank: r; the r-th largest variance must be positive.
        block_rows: b, at least alpha p^(1/3) r / (p^(1/6) - 1)², which is 84 r for p = 2.
        n_rows: the paper's tau, at least p eta² b, where eta is lambda_1 / lambda_r + sqrt(2 alpha rho² /
            (p^(1/3) lambda_r)).
        alpha: from 1 to sqrt(n / ln n): the larger, the surer.
        p: above 1.

    >>> round(moses_error_bound([1.0, 1.0, 1e-3, 1e-3], rank=2, block_rows=200, n_rows=10_000), 2)
    37.89
    """
    variances = _descending(variances, rank)
    _check_moses(rank, n_rows, alpha)
    if not p > 1:
        raise ValueError(f"p must be above 1, got p={p}.")
    largest, last, residual = variances[0], variances[rank - 1], float(variances[rank:].sum())
    eta = largest / last + sqrt(2 * alpha * residual / (p ** (1 / 3) * last))
    fewest = alpha * p ** (1 / 3) * rank / (p ** (1 / 6) - 1) ** 2
    if not block_rows >= fewest:
        raise ValueError(
            f"block_rows must be at least {fewest:.0f} for rank={rank}, alpha={alpha} and p={p}, "
            f"got block_rows={block_rows}."
        )
    power = p * eta**2
    if not n_rows >= power * block_rows:
        raise ValueError(
            f"n_rows must be at least p eta² block_rows = {power * block_rows:.0f}, got n_rows={n_rows}."
        )
    smaller = min(largest / last * residual, rank * largest + residual)
    if smaller == 0:
        return 0.0
    front = alpha * p ** (1 / 3) / (p ** (1 / 3) - 1) ** 2 * smaller
    exponent = log(front) + power * log(4) + (power - 1) * log(n_rows / (power * block_rows))
    return exp(exponent) if exponent < 700 else inf


def moses_risk_bound(
    variances: Array, rank: int, block_rows: int, n_rows: int, *, alpha: float = 1.0, p: float = 2.0
) -> float:
    """Theorem 1 for rows not seen yet: the expected squared distance from the directions of the stream.

    `moses_error_bound` and alpha (d - r) lambda_1 sqrt(ln n / n), with the same conditions and probability.

    >>> seen, new = (
    ...     bound([1.0, 1.0, 1e-3, 1e-3], rank=2, block_rows=200, n_rows=10_000)
    ...     for bound in (moses_error_bound, moses_risk_bound)
    ... )
    >>> round(new - seen, 4)
    0.0607
    """
    seen = moses_error_bound(variances, rank, block_rows, n_rows, alpha=alpha, p=p)
    unseen = (len(variances) - rank) * float(np.max(variances)) * sqrt(log(n_rows) / n_rows)
    return seen + alpha * unseen


def moses_failure_bound(rank: int, n_rows: int, *, alpha: float = 1.0, c: float = 1.0) -> float:
    """The probability with which the bounds of Theorem 1 may fail: n^(-c alpha²) + e^(-c alpha r).

    c is a constant that the theorem leaves open. Printed as the probability with which they hold.

    >>> round(moses_failure_bound(rank=5, n_rows=10_000), 4)
    0.0068
    """
    _check_moses(rank, n_rows, alpha)
    if not 0 < c < inf:
        raise ValueError(f"c is a constant above 0, got c={c}.")
    return min(1.0, n_rows ** (-c * alpha**2) + exp(-c * alpha * rank))


def energy_sum(summaries: Sequence[Subspace]) -> float:
    """What Lemma 3 calls the global error: sigma_r / (sigma_1 + ... + sigma_r), summed over the clients.

    It is no bound on any error. The ratio compares the directions that a client *kept*; the error is what it
    left out. Rows times ten have ten times the error and the same sum. Rows of rank r have no error, and a
    sum of up to 1 / r per client. Rows with the same r leading singular values have the same sum, however
    large the others are. It is what AdjustRank (`EnergyBand`) watches. Bounds on the error are
    `merge_error_bound` and, without the rows, the energy `Subspace.discarded` of the merged summary.

    >>> flat = [Subspace.from_rows(np.eye(4)[:2] * size, center=False) for size in (1.0, 1000.0)]
    >>> [energy_sum([client]) for client in flat], [client.discarded for client in flat]
    ([0.5, 0.5], [0.0, 0.0])
    """
    values = [summary.singular_values for summary in summaries if summary.rank]
    return float(sum(kept[-1] / kept.sum() for kept in values))


def merge_distance_bound(tail: float, noise: float = 0.0) -> float:
    """The most that a summary merged at once can be away from the rows, as a Frobenius norm.

    Clients send their r best directions, times singular values; noise is added to what they send; the r best
    directions of that are kept. The distance is ||U S - Y B||_F for the best rotation B (Theorem 2), or
    without noise ||(Z)_r - Y||_F where clients send rows of rank r (Lemma 11). With tau = sqrt(tail) and psi
    the norm of the noise it is at most sqrt(2) tau + (1 + sqrt(2)) psi. Both are true as printed, with 3 tau
    and 3 sqrt(2) tau + (1 + sqrt(2)) psi.

    The reason for the smaller factor: what clients leave out is orthogonal to what they send, row by row, so
    that their squares add up. Each is at most `tail`: tails of parts sum to at most that of the whole, and
    what is sent is never more than there was. With noise, the part left out at the root is at most tau + psi,
    its product with the first at most tau psi, and psi itself comes on top. Without noise it is sharp: it is
    the root of `merge_error_bound(2, tail)`.

    Args:
        tail: of the energy of all rows together, what lies outside their r leading directions.
        noise: Frobenius norm of what is added to the summaries, the paper's Psi.

    >>> round(merge_distance_bound(tail=4.0), 3), round(merge_distance_bound(tail=4.0, noise=1.0), 3)
    (2.828, 5.243)
    """
    _check_tail(tail)
    if not 0 <= noise < inf:
        raise ValueError(f"noise is a norm and must be a finite number of at least 0, got noise={noise}.")
    return sqrt(2 * tail) + (1 + sqrt(2)) * noise


def merge_error_bound(depth: int, tail: float) -> float:
    """The most variance that merging up a tree can cost: `depth` times what the directions kept leave out.

    Let clients and nodes keep k directions or more. With C the energy (squared deviations from the mean,
    summed) that the first r <= k components of the model capture of all rows, and B the most that r
    directions can, B - C is at most this. Any fanout, trees of uneven depth, centered rows or not; clients
    must summarize exactly, as `Subspace.from_rows` does. It is sharp: some trees lose all of it but for a
    share as small as one likes.

    The reason: what children hand up is never more than what there was, and the means only add to it. So a
    node discards at most what its own rows have outside their k best directions. Nodes of equal height have
    no rows in common, and such tails of parts sum to at most the tail of the whole: `tail` is lost once for
    clients and once for each height of nodes. What the root discards is not among its first r components.

    The paper's last theorem, where all keep r, bounds the distance of the model to the rows, ||U S - Y B||_F
    for the best rotation B, by (1 + sqrt(2))^(depth + 1) - 1 times ||Y - Y_r||_F. The square of that distance
    is at most the energy discarded, by the root too: `merge_error_bound(depth + 1, tail)`. So the factor is
    sqrt(depth + 1), 2.6 and not 477 at depth 6. What is printed is true, if needlessly weak: even its own
    proof gives 2^(depth + 1) - 1, with the triangle inequality in place of Weyl's. But its induction has Y_d,
    which is Y, where it means Y_r, and the number of columns where it means the fanout; and the lower bound
    it announces is missing.

    Args:
        depth: merges on the longest way from a client to the model; 1 when all are merged at once.
        tail: of the energy of all rows together, what lies outside their k leading directions.

    >>> from fedpca import merge_tree
    >>> rows = np.random.default_rng(0).normal(size=(80, 6)) * [9, 8, 7, 1, 1, 1]
    >>> tail = Subspace.from_rows(rows).truncate(3).discarded
    >>> hospitals = [Subspace.from_rows(part, rank=3) for part in np.array_split(rows, 8)]
    >>> together = merge_tree(hospitals, rank=3, fanout=2)
    >>> together.discarded <= merge_error_bound(3 + 1, tail)
    True
    """
    validation.integer(depth, "depth", at_least=0)
    _check_tail(tail)
    return depth * tail


def shortfall_bound(summary: Subspace, n_components: int) -> float:
    """The most that 1 - captured / best possible variance can be, for the first components of a summary.

    Known without the rows, whatever tree, stream or cluster the summary comes from: it never keeps more than
    there was, so no `n_components` directions can capture more than its own and all of its `discarded`
    together. The more directions a summary has beyond these, the more it says.

    >>> rows = np.random.default_rng(0).normal(size=(80, 6)) * [9, 8, 7, 1, 1, 1]
    >>> round(shortfall_bound(Subspace.from_rows(rows, rank=5), n_components=3), 3)
    0.005
    """
    n_components = validation.integer(n_components, "n_components", at_least=1)
    if summary.certificate is not None:
        raise ValueError(
            "the noise of a private summary may exceed what it left out; plan() estimates its error."
        )
    captured = float(np.square(summary.singular_values[:n_components]).sum())
    return summary.discarded / (captured + summary.discarded) if summary.discarded else 0.0


def _fewest_rows(utility: float, sigma: float, n_features: int) -> int:
    """The smallest n at which noise of standard deviation sigma / n does not rule out the utility."""
    too_few, enough = 0, 1
    while utility_bound(sigma / enough, n_features) < utility:
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if utility_bound(sigma / middle, n_features) < utility:
            too_few = middle
        else:
            enough = middle
    return enough


def _check(utility: float, epsilon: float, delta: float, n_features: int) -> None:
    if not 0 < utility < 1:
        raise ValueError(f"utility is an expected cosine and must lie in (0, 1), got utility={utility}.")
    check_epsilon_delta(epsilon, delta)
    validation.integer(n_features, "n_features", at_least=2)


def _check_tail(tail: float) -> None:
    if not 0 <= tail < inf:
        raise ValueError(f"tail is an energy and must be a finite number of at least 0, got tail={tail}.")


def _check_moses(rank: int, n_rows: int, alpha: float) -> None:
    validation.integer(rank, "rank", at_least=1)
    validation.integer(n_rows, "n_rows", at_least=2)
    largest = sqrt(n_rows / log(n_rows))
    if not 1 <= alpha <= largest:
        raise ValueError(f"alpha must lie between 1 and sqrt(n / ln n) = {largest:.3g}, got alpha={alpha}.")


def _descending(variances: Array, rank: int) -> Array:
    """The variances, largest first, if there are `rank` positive ones."""
    values = np.sort(np.asarray(variances, dtype=np.float64).ravel())[::-1]
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(f"variances must be finite numbers of at least 0, got variances={variances}.")
    if not np.count_nonzero(values) >= validation.integer(rank, "rank", at_least=1):
        raise ValueError(
            f"variances need at least rank={rank} positive ones, got {np.count_nonzero(values)}; "
            "take a smaller rank."
        )
    return values
