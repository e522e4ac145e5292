"""omega and T: how much noise the paper (Lemma 2) and its predecessors add, as printed and corrected.

All are far above what is needed, `fedpca.privacy.calibration.analytic_sigma`. Rows are in the unit ball.
"""

from math import log, pi, sqrt

from fedpca.privacy.calibration import analytic_sigma


def paper_omega(epsilon: float, delta: float, n_features: int, n_rows: int) -> float:
    """The paper's omega as printed (Lemma 2): standard deviation of i.i.d. noise on (1/n) sum x x^T.

    It is larger than needed: an l1 bound of 2d stands where the Frobenius norm, sqrt(2), would do. With the
    paper's delta = 0.05, for epsilon = 4 and 0.1, and 20 and 784 features, these times:

    >>> settings = [(d, epsilon) for d in (20, 784) for epsilon in (4.0, 0.1)]
    >>> [round(paper_omega(e, 0.05, d, 1) / analytic_sigma(e, 0.05)) for d, e in settings]
    [105, 507, 5646, 27431]

    Its proof also takes 4 for the squared sensitivity 2, a one-sided tail, drops P(G in S) and solves its
    quadratic wrongly (4d for 2d), errors that together require more noise, not less. `n_rows` is the batch.

    >>> round(paper_omega(1.0, 1e-5, 784, 1))
    21693
    """
    tail = sqrt(2 * log(n_features**2 / (delta * sqrt(2 * pi))))
    return (4 * n_features / epsilon * tail + sqrt(2 / epsilon)) / n_rows


def repaired_omega(epsilon: float, delta: float, n_features: int, n_rows: int) -> float:
    """The paper's omega with its proof repaired: two-sided tail and the right root of its quadratic.

    The root of 2 epsilon w^2 - (4 d t / n) w - 4 / n^2 = 0 with t = sqrt(2 ln(2 d^2 / (delta sqrt(2 pi)))):
    about half of what is printed, still far above `analytic_sigma`.

    >>> round(repaired_omega(1.0, 1e-5, 784, 1))
    11002
    """
    tail = n_features * sqrt(2 * log(2 * n_features**2 / (delta * sqrt(2 * pi))))
    return (tail + sqrt(tail**2 + 2 * epsilon)) / (epsilon * n_rows)


def mod_sulq_beta(epsilon: float, delta: float, n_features: int, n_rows: int) -> float:
    """MOD-SuLQ's beta (Chaudhuri, Sarwate, Sinha 2012), the paper's equation 6.

    Standard deviation of a symmetric mask, i.i.d. on and above the diagonal, on (1/n) sum x x^T.

    >>> round(mod_sulq_beta(1.0, 1e-5, 784, 1))
    5352
    """
    tail = sqrt(2 * log((n_features**2 + n_features) / (2 * delta * sqrt(2 * pi))))
    return ((n_features + 1) / epsilon * tail + 1 / sqrt(epsilon)) / n_rows


def sulq_rate(epsilon: float, delta: float, n_features: int, n_rows: int) -> float:
    """SuLQ's standard deviation (Blum et al. 2005) as the paper quotes it, for comparison only."""
    return sqrt(8.0) * n_features * log(n_features / delta) / (n_rows * epsilon)


def minimum_batch(epsilon: float, delta: float, n_features: int, omega: float) -> float:
    """The paper's T (Lemma 2, part 2), corrected: rows a batch needs for its omega to be at most `omega`.

    As printed the bracket is inverted, and T = 0.03 rows would be private at d=20 and omega=0.1.

    >>> round(minimum_batch(1.0, 0.05, 20, omega=0.1))
    3228
    """
    return paper_omega(epsilon, delta, n_features, 1) / omega


def minimum_batch_as_printed(epsilon: float, delta: float, n_features: int, omega: float) -> float:
    """The paper's T (Lemma 2, part 2), as printed.

    >>> minimum_batch_as_printed(1.0, 0.05, 20, omega=0.1)
    0.03098
    """
    return 1 / (omega * paper_omega(epsilon, delta, n_features, 1))


def analytic_minimum_batch(epsilon: float, delta: float, omega: float) -> float:
    """The same with the analytic calibration: rows for which noise `omega` on the mean of x x^T is enough.

    >>> round(analytic_minimum_batch(1.0, 0.05, omega=0.1))
    19
    """
    return analytic_sigma(epsilon, delta) / omega
