"""Gate: the policy of a node's owner, checked before anything is fitted or spent, and before it leaves."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedpca.disclosure.policy import Policy
from fedpca.disclosure.row_counts import RowCounts
from fedpca.errors import NodeError, PolicyViolation
from fedpca.federation.flower.live import write
from fedpca.privacy import Privacy
from fedpca.readers import RowReader
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.summary import Summary

_OF_ROWS = ("least_rows", "least_level")  # without privacy, about more than the number of rows


@dataclass(frozen=True)
class Gate:
    """What may leave a node.

    Attributes:
        policy: of its owner; None lets everything pass.
        privacy: of its rows.
        counts: where counts of the rows of this version are kept: what is sent again is checked again, by the
            policy of now, and the rows are not read again for it.
    """

    policy: Policy | None
    privacy: Privacy | None
    counts: Path

    def check_rows(self, rows: RowReader) -> None:
        """Raise a NodeError for rows that may not be fitted."""
        if self.policy is None:
            return
        with self.in_public():
            counts = self.policy.check_rows(rows, privacy=self.privacy)
        if counts is not None:
            write(self.counts, json.dumps(counts.to_json()).encode())

    def check_steps(self, n_rows: int) -> None:
        """Raise a NodeError for private steps that may not be taken with so many rows."""
        if self.policy is not None:
            assert self.privacy is not None
            with self.in_public():
                self.policy.check_private(n_rows, self.privacy)

    def check(self, leaving: Summary | Scaling, rows: Callable[[], RowReader]) -> None:
        """Raise a NodeError for what may not leave; the rows are opened only if they were never counted."""
        if self.policy is None:
            return
        if self.privacy is None and not self.counts.exists():
            self.check_rows(rows())
        counts = None
        if self.privacy is None:
            counts = RowCounts.from_json(json.loads(self.counts.read_bytes()))
        with self.in_public():
            self.policy.check(leaving, counts)

    @contextmanager
    def in_public(self) -> Iterator[None]:
        """A violation, as others may learn of it: by public numbers alone."""
        try:
            yield
        except PolicyViolation as error:
            reason = str(error).partition(" Also broken:")[0]
            if self.privacy is None and error.rule in _OF_ROWS:
                reason = "see the log of its SuperNode."
            raise NodeError(f"the policy of its owner does not allow it: {reason}") from error
