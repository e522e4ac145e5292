"""Preparation: a search whose sums are noised, and paid for, where the rows are."""

from collections.abc import Iterable

import numpy as np

from fedpca._typing import Array
from fedpca.privacy import steps
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.noise import Noise
from fedpca.privacy.search import BlockSum, Search
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import StepSum


class Preparation(Search):
    """A search whose sums are noised and paid for here: `sum_rows` and `advance`, or `take_stream`.

    Args:
        privacy, n_features, rank, scale, feature_names: as for a `Search`.
        noise: of the steps.
        random: of the pairs.
        ledger: what pays.

    Attributes:
        n_rows: rows of a stream taken so far.
    """

    def __init__(
        self,
        privacy: Privacy,
        n_features: int,
        rank: int,
        *,
        scale: Array | str | None,
        noise: Noise,
        random: np.random.Generator,
        ledger: Ledger,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        self._noise = noise
        self._random = random
        self._ledger = ledger
        self.n_rows = 0
        self._summed = False
        self._advanced = False
        super().__init__(privacy, n_features, rank, scale=scale, feature_names=feature_names)

    # --- rounds over all rows ---

    def sum_rows(self, parts: Iterable[Array], n_rows: int) -> StepSum:
        """One round: the noisy sum of the step over all rows. `advance` has to follow."""
        assert self.step is not None
        if not self.step.blocks:
            self._summed = True
            return StepSum(self.step.name, np.zeros(0), n_rows)
        return self._noisy(self.raw_sum(parts, self._random), 0, n_rows, self.cost)

    def check_round(self) -> None:
        """Whether a round over all rows may begin."""
        if self._is_stream:
            raise ValueError("the first rows of a stream went into its private steps already; fit anew.")
        if self._summed:
            raise ValueError("a round of private steps is not complete: call advance first.")
        self._check_affordable()

    def check_advance(self, pooled: StepSum) -> None:
        """Whether a round may end with this sum."""
        if self.step is None or not self._summed:
            raise ValueError("a round of private steps ends with a sum: call step_sum first.")
        self.check_pooled(pooled)

    def advance(self, pooled: StepSum) -> None:
        """End a round with the sum over one or many owners, which is public."""
        assert self.step is not None
        self._advanced = True
        self._spent += self.step.share
        self._next(pooled)

    # --- rounds that others took, or an earlier preparation of the same rows ---

    def check_replay(self, pooled: StepSum) -> None:
        """Whether a round may end with this sum, without one over the rows of this owner."""
        if self.step is None:
            raise ValueError("all private steps were taken already.")
        if self._summed or self.n_rows:
            raise ValueError("a round of private steps that began here ends here: call advance.")
        self.check_pooled(pooled)

    def replay(self, pooled: StepSum, *, paid: bool) -> None:
        self._advanced = True
        super().replay(pooled, paid=paid)

    def check_sum(self, own: StepSum) -> None:
        """Refuse the sum of an owner that cannot be one of the next step."""
        if self.step is None:
            raise ValueError("all private steps were taken already.")
        steps.check_sum(own, self.step, self.deviations)

    # --- the first rows of a stream ---

    def check_stream(self) -> None:
        """Whether rows of a stream may come."""
        if (self._summed or self._advanced) and not self._is_stream:
            raise ValueError("the rounds of private steps are not complete; finish them, or fit anew.")
        self._check_affordable()

    def take_stream(self, rows: Array) -> Array:
        """Take as many rows as are still needed; returns the others."""
        if not self._is_stream:
            self._is_stream = True
            self._next(StepSum("rows", np.zeros(0), 0))
            self._begin_stream_step()
        while self.step is not None:
            part, rows = np.split(rows, [self.step.stream_rows - self._n_taken])
            self._add(part, self._blocks)
            self._n_taken += len(part)
            self.n_rows += len(part)
            if self._n_taken < self.step.stream_rows:
                break
            self._flush(self._blocks)
            total = np.concatenate([block.total for block in self._blocks])
            pooled = self._noisy(total, self.n_rows - self._n_taken, self._n_taken, self._mu)
            self._next(pooled)
            self._begin_stream_step()
        return rows

    def _begin_stream_step(self) -> None:
        self._n_taken = 0
        self._blocks = (
            [] if self.step is None else [BlockSum(block, self._random) for block in self.step.blocks]
        )

    # --- one step ---

    def _next(self, pooled: StepSum | None) -> None:
        self._summed = False
        super()._next(pooled)

    def _check_affordable(self) -> None:
        """Before anything is spent: that the rows after the steps can be afforded as well."""
        if not self.costs and not self.n_rows:
            self._ledger.check(0, None, self._privacy.mu, adjacency=self._privacy.adjacency)

    def _noisy(self, total: Array, start: int, n_rows: int, mu: float) -> StepSum:
        """The sum of the step with noise, debited before it is drawn."""
        assert self.step is not None
        adjacency = self._privacy.adjacency
        entry = self._ledger.debit(start, start + n_rows, self.step.name, mu, adjacency=adjacency)
        self._summed = True
        number = len(self.costs)
        self.costs.append((self.step.name, mu))
        drawn = [
            self._noise.entries((number, i), block.length, self._sd(self.step, i, mu))
            for i, block in enumerate(self.step.blocks)
        ]
        self._ledger.complete(entry)
        return StepSum(self.step.name, total + np.concatenate(drawn), n_rows, radius=self.step.radius)
