"""Agreement: what children must have in common to merge, in a time that does not depend on their number.

Beside that, a merge is a sum: summaries that agree, each of a size that `Limits` accept, have one.
"""

import json
from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType

from fedpca.privacy import Privacy
from fedpca.summaries.agreement import check_compatible
from fedpca.summaries.certificate import Release, shared_cost
from fedpca.summaries.certificate_merging import combine
from fedpca.summaries.summary import Summary

INTERSECTION = "Aggregator(features='intersection', expected=...)"
"""How to merge children of different features."""


class Agreement:
    """The latest summaries of all children, of which each agrees with every other.

    What they have in common is that of any one of them, of one whose features have names, and of one with a
    certificate. Private streams are of one child each, and ledgers are looked up by their ids.
    """

    def __init__(self) -> None:
        self._summaries: dict[str, Summary] = {}
        self._named: dict[str, Summary] = {}
        self._certified: dict[str, Summary] = {}
        self._streams: dict[str, str] = {}  # the child of every private stream
        self._ledgers: dict[str, dict[str, Release]] = {}  # by child, a release of each that uses a ledger

    def __len__(self) -> int:
        return len(self._summaries)

    @property
    def summaries(self) -> Mapping[str, Summary]:
        """Those of all children, by name."""
        return MappingProxyType(self._summaries)

    def set(self, child: str, summary: Summary | None) -> None:
        """Add or replace a child; None removes it."""
        before = self._summaries.pop(child, None)
        for known in (self._named, self._certified):
            known.pop(child, None)
        for release in _releases(before):
            self._streams.pop(release.stream or "", None)
            users = self._ledgers.get(release.ledger or "", {})
            users.pop(child, None)
            if not users:
                self._ledgers.pop(release.ledger or "", None)
        if summary is None:
            return
        self._summaries[child] = summary
        if summary.feature_names is not None:
            self._named[child] = summary
        if summary.certificate is not None:
            self._certified[child] = summary
        for release in _releases(summary):
            if release.stream:
                self._streams[release.stream] = child
            if release.ledger:
                self._ledgers.setdefault(release.ledger, {})[child] = release

    def check(self, child: str, summary: Summary, privacy: Privacy | None) -> None:
        """Refuse a summary that does not merge with those of the other children, or cannot be stored."""
        self._check_releases(child, summary, privacy)
        others = [
            next((other for name, other in known.items() if name != child), None)
            for known in (self._summaries, self._named, self._certified)
        ]
        check_compatible([*(other for other in others if other is not None), summary], INTERSECTION)
        certified = others[-1]
        if certified is not None and summary.certificate is not None:
            combine([certified.certificate, summary.certificate], summed=True)
        json.dumps(summary.metadata, allow_nan=False)

    def _check_releases(self, child: str, summary: Summary, privacy: Privacy | None) -> None:
        """Refuse a copied stream, and a shared ledger that has spent more than is accepted."""
        for release in _releases(summary):
            owner = self._streams.get(release.stream or "", child)
            if owner != child:
                raise ValueError(
                    f"its private stream {release.stream!r:.80} is that of {owner!r:.80} already: rows and "
                    "noise would count twice. Send a release of its own rows."
                )
            users = self._ledgers.get(release.ledger or "", {})
            others = list(islice((other for name, other in users.items() if name != child), 2))
            if others:  # more than one have passed this check before
                epsilon, delta, _ = shared_cost([*others, release])
                if privacy is not None and not (epsilon <= privacy.epsilon and delta <= privacy.delta):
                    raise ValueError(
                        f"its ledger is that of {next(iter(users))!r:.80}, too, and has spent {epsilon:g} at "
                        f"delta={delta:g}; at most {privacy.epsilon:g} at {privacy.delta:g} is accepted."
                    )


def _releases(summary: Summary | None) -> tuple[Release, ...]:
    return () if summary is None or summary.certificate is None else summary.certificate.all_releases()
