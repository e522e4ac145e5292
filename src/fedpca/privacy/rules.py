"""The rules that settings, ledger, plan and theory share, each with one error."""

import warnings

from fedpca.summaries import validation

_LARGE_EPSILON = 10.0
# Calibration was compared with 80 digits down to these; far below, mu is 0.
_LEAST_EPSILON, _LEAST_DELTA = 1e-30, 1e-60


def check_epsilon_delta(epsilon: object, delta: object) -> tuple[float, float]:
    """Epsilon and delta as floats, of a release, a budget or a bound."""
    epsilon, delta = _number("epsilon", epsilon), _number("delta", delta)
    if not _LEAST_EPSILON <= epsilon <= 1e9:
        raise ValueError(f"epsilon must lie between {_LEAST_EPSILON:g} and 1e9, got epsilon={epsilon}.")
    if not _LEAST_DELTA <= delta < 1:
        raise ValueError(
            f"delta must lie in [{_LEAST_DELTA:g}, 1), far below one over the number of rows, "
            f"got delta={delta}."
        )
    return float(epsilon), float(delta)


def _number(name: str, value: object) -> float:
    if not validation.is_real(value):
        raise TypeError(f"{name} must be a number, got {name}={value!r}.")
    return value


def check_delta_for_rows(delta: float, n_rows: int) -> None:
    """The one rule that depends on the number of rows."""
    if delta * n_rows >= 1:
        raise ValueError(
            f"delta must be below one over the number of rows, 1/{n_rows}, got delta={delta:g}: it would "
            f"allow whole rows to be published. Choose at most {0.1 / n_rows:.1g}."
        )


def warn_of_weak_settings(epsilon: float, delta: float, n_rows: int, *, stacklevel: int) -> None:
    """What plan and fit both warn of: a delta or an epsilon that promises little."""
    if delta * n_rows > 0.1:
        warnings.warn(
            f"delta={delta:g} is above a tenth of one over the number of rows, {n_rows}; "
            f"{0.1 / n_rows:.1g} or less is advised.",
            stacklevel=stacklevel + 1,
        )
    if epsilon > _LARGE_EPSILON:
        warnings.warn(
            f"epsilon={epsilon:g} promises hardly anything to a single record; {_LARGE_EPSILON:g} or less, "
            "and about 1 for a public release, is advised.",
            stacklevel=stacklevel + 1,
        )
