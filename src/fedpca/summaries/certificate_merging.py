"""The certificate of a merge of releases, and what to say about it."""

from collections.abc import Sequence
from math import hypot

from fedpca.summaries.certificate import (
    IN_MEMORY,
    MAX_WARNINGS,
    PRIVATE_SCALE,
    Certificate,
    noise_edge,
    refuse_repeated,
    total_cost,
)
from fedpca.summaries.record import MAX_NUMBER, MAX_TEXT

ASSUMES = "no record is held by two owners; if one is, its costs add up"


def combine(certificates: Sequence[Certificate | None], *, summed: bool) -> Certificate | None:
    """The certificate of a merge of releases: None unless every part has one.

    Different owners' records are different records, so a record shows in the releases of one owner and costs
    what these cost together: the merge promises the weakest of the promises. Releases with one ledger are of
    one owner. Post-processing is free. It does not matter in which tree they were merged.

    Args:
        certificates: of the parts.
        summed: whether scatters were added up, and their independent noises with them.
    """
    parts = [certificate for certificate in certificates if certificate is not None]
    if len(parts) < len(certificates):
        return None
    if len(parts) == 1:
        return parts[0]
    releases = tuple(release for part in parts for release in part.all_releases())
    refuse_repeated(releases)
    kinds = {part.clipping or "ball" for part in parts}
    if len(kinds) > 1:
        raise ValueError(
            f"releases of rows clipped in different ways do not add up, {' and '.join(sorted(kinds))}; "
            "let all owners take the private steps together, or give all the same bound and center."
        )
    epsilon, delta, mu = total_cost(releases)
    bounds = sorted({bound for part in parts for bound in _bounds(part)})
    return Certificate(
        private=all(part.private for part in parts),
        epsilon=epsilon,
        delta=delta,
        mu=mu,
        unit=_joined(parts, "unit"),
        adjacency=_joined(parts, "adjacency"),
        mechanism=_joined(parts, "mechanism"),
        sampler=_joined(parts, "sampler"),
        center=_joined(parts, "center"),
        bound=bounds[0] if len(bounds) == 1 else tuple(bounds) or None,
        warnings=tuple(sorted({text for part in parts for text in part.warnings})[:MAX_WARNINGS]),
        noise_edge=min(hypot(*map(noise_edge, parts)), MAX_NUMBER) if summed else None,
        assumes=ASSUMES,
        releases=releases,
        clipping=kinds.pop(),
        scale=PRIVATE_SCALE if any(part.scale == PRIVATE_SCALE for part in parts) else parts[0].scale,
        steps=parts[0].steps if all(part.steps == parts[0].steps for part in parts) else None,
    )


def merge_warning(certificates: Sequence[Certificate | None]) -> str:
    """What to say about the certificate of a merge of summaries with these, or ""."""
    private = sum(certificate is not None for certificate in certificates)
    if private == len(certificates):
        return _same_rows_warning(certificates)
    if not private:
        return ""
    return (
        f"the merge has no certificate: {private} of {len(certificates)} summaries have one, the others are "
        "exact, and so is what it says about their rows. Unless these are public, let their owners release "
        "theirs with Privacy, too."
    )


def _same_rows_warning(certificates: Sequence[Certificate | None]) -> str:
    """A warning if releases may well be of the same rows and nothing added up their costs, else "".

    So it is if every one was paid for by a ledger of its own, in memory, and all have equally many records.
    """
    parts = [part for part in certificates if part is not None and part.ledger is not None]
    ledgers = {part.ledger.id for part in parts if part.ledger is not None and part.ledger.kept == IN_MEMORY}
    records = {part.records for part in parts}
    if not 1 < len(parts) == len(certificates) == len(ledgers) or len(records) > 1:
        return ""
    return (
        f"all {len(parts)} releases were paid for in memory, and have {records.pop()} records each. If they "
        "are of the same rows, their costs add up, and the certificate of the merge counts only the largest: "
        "keep a ledger in a file, Privacy(ledger=...)."
    )


def _joined(parts: Sequence[Certificate], name: str) -> str:
    found = {text for part in parts for text in getattr(part, name).split(" | ") if text}
    return " | ".join(sorted(found))[:MAX_TEXT]


def _bounds(part: Certificate) -> tuple[float, ...]:
    if part.bound is None:
        return ()
    return part.bound if isinstance(part.bound, tuple) else (part.bound,)
