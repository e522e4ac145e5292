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

    Different owners' records are different records, so a record shows in one part and costs what that part
    says: the merge promises the weakest of the promises. What is done to releases costs nothing more.

    Args:
        certificates: of the parts.
        weights: by which the parts' scatters were multiplied.
        summed: whether scatters were added up, and their independent noises with them.

    >>> part = {"private": True, "epsilon": 1.0, "delta": 1e-6, "mu": 0.2, "noise_edge": 3.0, "release": "a"}
    >>> merged = combined([part, part | {"epsilon": 2.0, "noise_edge": 4.0}], [1.0, 1.0], summed=True)
    >>> merged["epsilon"], merged["noise_edge"], merged["releases"]
    (2.0, 5.0, ['a', 'a'])
    """
    parts = [certificate for certificate in certificates if certificate is not None]
    if len(parts) < len(certificates):
        return None
    if len(parts) == 1:
        return dict(parts[0])
    facts: dict[str, Any] = {"format": FORMAT, "merged": len(parts)}
    facts["private"] = all(part.get("private") is True for part in parts)
    facts["warnings"] = sorted({text for part in parts for text in part.get("warnings", ())})
    for name in ("epsilon", "delta", "mu"):
        facts[name] = max((float(part[name]) for part in parts if name in part), default=None)
    for name in ("unit", "adjacency", "mechanism", "sampler"):
        facts[name] = " | ".join(sorted({str(part[name]) for part in parts if name in part}))
    if summed:
        edges = [weight * noise_edge(part) for part, weight in zip(parts, weights, strict=True)]
        facts["noise_edge"] = hypot(*edges)
    facts["assumes"] = "no record lies with two owners; one that does pays for each"
    facts["releases"] = [release for part in parts for release in part.get("releases", [part.get("release")])]
    return facts


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
    return f", private: {', '.join(promise)}" if promise else ", private"
