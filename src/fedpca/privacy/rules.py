"""The rules that settings, ledger, plan and theory share, each with one error."""

from typing import Any

from fedpca.summaries import validation


def check_epsilon_delta(epsilon: Any, delta: Any) -> tuple[float, float]:
    """Epsilon and delta as floats, of a release, a budget or a bound."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not validation.is_real(value):
            raise TypeError(f"{name} must be a number, got {name}={value!r}.")
    if not 0 < epsilon <= 1e9:
        raise ValueError(f"epsilon must be above 0, and at most 1e9, got epsilon={epsilon}.")
    if not 0 < delta < 1:
        raise ValueError(
            f"delta must lie in (0, 1), far below one over the number of rows, got delta={delta}."
        )
    return float(epsilon), float(delta)


def check_delta_for_rows(delta: float, n_rows: int) -> None:
    """The one rule that depends on the number of rows."""
    if delta * n_rows >= 1:
        raise ValueError(
            f"delta must be below one over the number of rows, 1/{n_rows}, got delta={delta:g}: it would "
            f"allow whole rows to be published. Choose at most {0.1 / n_rows:.1g}."
        )
