"""Certificates: what is promised about a released summary, as plain JSON facts that travel with it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import hypot
from typing import Any

FORMAT = "fedpca certificate 1"


def checked(certificate: Any) -> dict[str, Any] | None:
    """A copy of a certificate; None stays None."""
    if certificate is None:
        return None
    if not isinstance(certificate, Mapping):
        raise TypeError(f"certificate must be a mapping or None, got {certificate!r}.")
    return deepcopy(dict(certificate))


def noise_edge(certificate: Mapping[str, Any] | None) -> float:
    """The largest eigenvalue that noise alone gives a released scatter; 0 where there is no noise."""
    edge = (certificate or {}).get("noise_edge")
    return float(edge) if isinstance(edge, int | float) else 0.0


def combine(
    certificates: Sequence[Mapping[str, Any] | None], weights: Sequence[float], *, summed: bool
) -> dict[str, Any] | None:
    """The certificate of a merge of releases: None unless every part has one.

    Different owners' records are different records, so a record shows in the releases of one owner and costs
    what these cost together: the merge promises the weakest of the promises. Releases with one ledger are of
    one owner. What is done to releases is free. It does not matter in which tree they were merged.

    Args:
        certificates: of the parts.
        weights: by which the parts' scatters were multiplied.
        summed: whether scatters were added up, and their independent noises with them.

    >>> a = {"private": True, "epsilon": 1.0, "delta": 1e-6, "mu": 0.2, "noise_edge": 3.0, "stream": "a"}
    >>> b = a | {"epsilon": 2.0, "noise_edge": 4.0, "stream": "b"}
    >>> merged = combined([a, b], [1.0, 1.0], summed=True)
    >>> merged["epsilon"], merged["noise_edge"], merged["merged"]
    (2.0, 5.0, 2)
    """
    parts = [certificate for certificate in certificates if certificate is not None]
    if len(parts) < len(certificates):
        return None
    if len(parts) == 1:
        return dict(parts[0])
    releases = [release for place, part in enumerate(parts) for release in _releases(part, place)]
    _refuse_repeated(releases)
    facts: dict[str, Any] = {"format": FORMAT, "merged": len(releases)}
    facts["private"] = all(part.get("private") is True for part in parts)
    facts["warnings"] = sorted({text for part in parts for text in part.get("warnings", ())})
    costs = [_cost(owner) for owner in _by_owner(releases)]
    for name, column in zip(("epsilon", "delta", "mu"), zip(*costs, strict=True), strict=True):
        facts[name] = max(column)
    facts["bound"] = _bound(parts)
    for name in ("unit", "adjacency", "mechanism", "sampler", "center"):
        found = {text for part in parts if name in part for text in str(part[name]).split(" | ")}
        facts[name] = " | ".join(sorted(found))
    if summed:
        edges = [weight * noise_edge(part) for part, weight in zip(parts, weights, strict=True)]
        facts["noise_edge"] = hypot(*edges)
    facts["assumes"] = "no record lies with two owners; one that does pays for each"
    facts["releases"] = releases
    return facts


def _bound(parts: Sequence[Mapping[str, Any]]) -> float | list[float] | None:
    """The bound of all parts, or a list of those they have."""
    said = [part.get("bound") for part in parts]
    each = [bound for one in said for bound in (one if isinstance(one, list) else [one])]
    found = sorted({bound for bound in each if isinstance(bound, int | float)})
    return found[0] if len(found) == 1 else found or None


def _releases(part: Mapping[str, Any], place: int) -> list[dict[str, Any]]:
    """The releases behind a certificate, each with its owner's ledger and what it cost."""
    if "releases" in part:
        return [dict(release) for release in part["releases"]]
    ledger = part.get("ledger")
    ledger = ledger if isinstance(ledger, Mapping) else {}
    names = ("release", "stream", "records", "time", "epsilon", "delta", "mu")
    facts = {name: part[name] for name in names if name in part}
    spent = {"spent": ledger.get("spent"), "spent_delta": ledger.get("delta")}
    return [facts | {"ledger": ledger.get("id")} | spent]


def _refuse_repeated(releases: Sequence[Mapping[str, Any]]) -> None:
    streams = [release["stream"] for release in releases if release.get("stream")]
    if len(set(streams)) < len(streams):
        raise ValueError(
            "the same private stream is merged twice: rows and noise of its reports would count twice. "
            "Merge only the latest report of each."
        )


def _by_owner(releases: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Releases by ledger; those without one are taken to be of different owners."""
    owners: dict[str, list[Mapping[str, Any]]] = {}
    for place, release in enumerate(releases):
        owners.setdefault(str(release.get("ledger") or f"release {place}"), []).append(release)
    return list(owners.values())


def _cost(releases: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Epsilon, delta and mu of what one owner released: of several, all that its ledger has spent."""
    mu = hypot(*(_number(release, "mu") for release in releases))
    if len(releases) == 1:
        return _number(releases[0], "epsilon"), _number(releases[0], "delta"), mu
    last = max(releases, key=lambda release: _number(release, "spent"))
    return _number(last, "spent"), _number(last, "spent_delta"), mu


def _number(release: Mapping[str, Any], name: str) -> float:
    value = release.get(name)
    if not isinstance(value, int | float):
        raise ValueError(f"the certificate of a release must say {name}, got {value!r}; release it again.")
    return float(value)


def summary_line(certificate: Mapping[str, Any] | None) -> str:
    """What `repr` shows of a certificate.

    >>> summary_line({"private": True, "epsilon": 1.0, "delta": 1e-6})
    ', private: epsilon=1, delta=1e-06'
    >>> summary_line({"private": True, "epsilon": "a stranger's word"})
    ', private: epsilon=?'
    >>> summary_line({"private": False}), summary_line(None)
    (', NOT private', '')
    """
    if certificate is None:
        return ""
    if certificate.get("private") is not True:
        return ", NOT private"
    promise = [f"{name}={_shown(certificate[name])}" for name in ("epsilon", "delta") if name in certificate]
    doubts = ", UNSAFE" if certificate.get("warnings") else ""
    return (f", private: {', '.join(promise)}" if promise else ", private") + doubts


def _shown(value: Any) -> str:
    try:
        return f"{value:g}"
    except (TypeError, ValueError, OverflowError):  # whatever a stranger's file says: repr must not fail
        return "?"
