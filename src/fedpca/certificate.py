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


def combined(
    certificates: Sequence[Mapping[str, Any] | None], weights: Sequence[float], *, summed: bool
) -> dict[str, Any] | None:
    """The certificate of a merge of releases: None unless every part has one.

    Different owners' records are different records, so a record shows in the parts of one owner and costs
    what these cost together: the merge promises the weakest of the promises. Parts with one ledger are of one
    owner; reports of one stream are covered by its one promise. What is done to releases is free.

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
    facts: dict[str, Any] = {"format": FORMAT, "merged": len(parts)}
    facts["private"] = all(part.get("private") is True for part in parts)
    facts["warnings"] = sorted({text for part in parts for text in part.get("warnings", ())})
    costs = [_cost(owner) for owner in _by_owner(parts)]
    for name, column in zip(("epsilon", "delta", "mu"), zip(*costs, strict=True), strict=True):
        facts[name] = max(column)
    for name in ("unit", "adjacency", "mechanism", "sampler"):
        facts[name] = " | ".join(sorted({str(part[name]) for part in parts if name in part}))
    streams = [part.get("stream") for part in parts]
    if summed and len(set(streams)) == len(streams):  # else the noises are not independent
        edges = [weight * noise_edge(part) for part, weight in zip(parts, weights, strict=True)]
        facts["noise_edge"] = hypot(*edges)
    facts["assumes"] = "no record lies with two owners; one that does pays for each"
    facts["releases"] = [release for part in parts for release in part.get("releases", [part.get("release")])]
    return facts


def _by_owner(parts: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Parts by ledger, one for each stream; parts without a ledger are taken to be of different owners."""
    owners: dict[str, dict[str, Mapping[str, Any]]] = {}
    for place, part in enumerate(parts):
        ledger = part.get("ledger")
        owner = str(ledger.get("id", place)) if isinstance(ledger, Mapping) else f"part {place}"
        owners.setdefault(owner, {})[str(part.get("stream", place))] = part
    return [list(streams.values()) for streams in owners.values()]


def _cost(streams: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Epsilon, delta and mu of what one owner released: of several streams, all that its ledger has spent."""
    mu = hypot(*(float(part["mu"]) for part in streams))
    if len(streams) == 1:
        return float(streams[0]["epsilon"]), float(streams[0]["delta"]), mu
    last = max((part["ledger"] for part in streams), key=lambda ledger: float(ledger["spent"]))
    return float(last["spent"]), float(last["delta"]), mu


def summary_line(certificate: Mapping[str, Any] | None) -> str:
    """What `repr` shows of a certificate.

    >>> summary_line({"private": True, "epsilon": 1.0, "delta": 1e-6})
    ', private: epsilon=1, delta=1e-06'
    >>> summary_line({"private": False}), summary_line(None)
    (', NOT private', '')
    """
    if certificate is None:
        return ""
    if certificate.get("private") is not True:
        return ", NOT private"
    promise = [f"{name}={certificate[name]:g}" for name in ("epsilon", "delta") if name in certificate]
    doubts = ", UNSAFE" if certificate.get("warnings") else ""
    return (f", private: {', '.join(promise)}" if promise else ", private") + doubts
