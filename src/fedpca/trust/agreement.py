"""Agreement: the settings that owners share, in one spelling, and the one comparison of them.

A roster states them, and so do the config of a run, the settings of an owner's privacy, rows, and summaries
with their certificates.
"""

from collections.abc import Callable, Collection, Mapping
from math import isclose, isfinite
from typing import Any

from fedpca._typing import JSON
from fedpca._util.text import join_names
from fedpca.summaries import validation
from fedpca.summaries.summary import Summary

Names = tuple[str, ...] | None

_SCALES = ("std", "binomial", "none")
_NUMBERS = "numbers"  # what rows were divided by, found by a rule before
_ROUNDING = 1e-9  # of a bound, relative: it is computed again from sums in another order


def _number(name: str, value: object) -> int:
    return validation.integer(value, name, at_least=1)


def _names(name: str, value: object) -> list[str]:
    names = list(value) if isinstance(value, list | tuple) else []
    if not names or not all(isinstance(item, str) for item in names) or len(set(names)) < len(names):
        raise ValueError(f"{name} must be a list of different names, got {value!r:.80}.")
    return [validation.child_name(item, "a feature's name") for item in names]


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r:.80}.")
    return value


def _scale(name: str, value: object) -> str:
    if value not in _SCALES:
        raise ValueError(f"{name} must be one of {', '.join(_SCALES)}, got {value!r:.80}.")
    return str(value)


def _size(name: str, value: object) -> float:
    try:
        if validation.is_real(value) and isfinite(value) and value > 0:
            return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        pass
    raise ValueError(f"{name} must be a number above 0, got {value!r:.80}.")


def _word(name: str, value: object) -> str:
    return validation.child_name(value, name)


def _bound(name: str, value: object) -> float | str:
    return _word(name, value) if isinstance(value, str) else _size(name, value)


_PROMISE: dict[str, Callable[[str, object], object]] = {
    "epsilon": _size,
    "delta": _size,
    "bound": _bound,
    "adjacency": _word,
    "mechanism": _word,
}
_KNOWN: dict[str, Callable[[str, object], object]] = {
    "rank": _number,
    "features": _names,
    "n_features": _number,
    "center": _flag,
    "scale": _scale,
    **_PROMISE,
    "colluding": _number,
    "least": _number,
    "largest": _size,
}
PROMISE = tuple(_PROMISE)
"""The settings of a private release that owners share."""


def checked(settings: Mapping[str, object], where: str = "[settings]") -> JSON:
    """Settings in one order and of one type each; ValueError for what is none, or does not go together."""
    refuse_unknown(settings, _KNOWN, where)
    found = {name: check(name, settings[name]) for name, check in _KNOWN.items() if name in settings}

    def alone(*names: str, without: str) -> str:
        return next((name for name in names if name in found and without not in found), "")

    if "features" in found and "n_features" in found:
        raise ValueError(f"{where} must have features or n_features, not both.")
    if alone("epsilon", without="delta") or alone("delta", without="epsilon"):
        raise ValueError(f"{where} must have epsilon and delta, or neither.")
    if name := alone(*PROMISE, without="epsilon"):
        raise ValueError(f"{where} with {name} must have epsilon and delta.")
    if name := alone("least", "largest", without="colluding"):
        raise ValueError(f"{where} with {name} must have colluding, of a study with secure sums.")
    if "largest" in found and "epsilon" in found:
        raise ValueError(f"{where} must have epsilon and delta, or largest without privacy, not both.")
    return found


def refuse_unknown(found: Mapping[str, object], known: Collection[str], what: str) -> None:
    """ValueError for a name that is not known."""
    if unknown := sorted(set(found) - set(known)):
        names = join_names([repr(key)[:80] for key in unknown])
        raise ValueError(f"{what} must have only {', '.join(known)}, got {names}.")


def of_rows(n_features: int, names: Names) -> JSON:
    """What rows state."""
    return {"features": names and list(names), "n_features": n_features}


def of_fit(n_features: int, names: Names, center: bool, scale: object) -> JSON:
    """What a fit states; its scale is a rule, numbers or None."""
    rule = scale if isinstance(scale, str) else "none" if scale is None else _NUMBERS
    return of_rows(n_features, names) | {"center": center, "scale": rule}


def of_summary(summary: Summary) -> JSON:
    """What a summary and its certificate state."""
    found = of_fit(summary.n_features, summary.feature_names, summary.centered, summary.scale)
    certificate = summary.certificate
    if certificate is None:
        return found
    return found | {"mechanism": certificate.mechanism, "bound": certificate.bound}


def of_privacy(privacy: Any) -> JSON:
    """What the settings of an owner's privacy state; None of each without."""
    found = {name: getattr(privacy, name, None) for name in PROMISE}
    center = getattr(privacy, "center", None)
    found["center"] = center is not None
    return found | {"centering": "public" if isinstance(center, tuple) else center or "none"}


def require_agreed(
    agreed: Mapping[str, Any],
    found: Mapping[str, Any],
    where: str,
    remedy: str,
    *,
    at_most: Collection[str] = (),
    error: type[ValueError] = ValueError,
) -> None:
    """Refuse settings that are not the agreed ones; what only one of the two states is not compared.

    Args:
        agreed: what was agreed on.
        found: what is stated by something else.
        where: was it agreed on, as "the roster".
        remedy: what to do.
        at_most: names of which smaller numbers are agreed on, too; where a word was agreed on, anything is.
        error: what is raised.
    """
    for name in (name for name in agreed if name in found):
        value, given = agreed[name], found[name]
        if name in at_most:
            if isinstance(value, str) or (not isinstance(given, str | None) and given <= value):
                continue
        elif _same(name, value, given):
            continue
        limit = "at most " if name in at_most else ""
        stated = f"{len(value)} names in their order" if isinstance(value, list) else _shown(value)
        got = "others" if isinstance(given, list) else _shown(given)
        raise error(f"{name} must be {limit}{stated}, as in {where}, got {got}; {remedy}.")


def _shown(value: object) -> str:
    return "none" if value is None else f"{value!r:.80}"


def _same(name: str, value: Any, given: Any) -> bool:
    if name == "scale" and given == _NUMBERS:
        return bool(value != "none")
    if name == "bound" and isinstance(value, float) and given is not None:
        bounds = given if isinstance(given, tuple) else (given,)
        return all(not isinstance(each, str) and isclose(each, value, rel_tol=_ROUNDING) for each in bounds)
    return isinstance(value, bool) is isinstance(given, bool) and bool(value == given)
