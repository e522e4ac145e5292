"""PrivateEvaluation: how much of the rows' variance released components explain."""

from collections.abc import Iterable
from dataclasses import replace
from math import sqrt

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.noise import Noise
from fedpca.privacy.search import BlockSum, Found
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import BELOW, BEYOND, ENERGY, Step, StepSum, check_sum, evaluation, same_radius
from fedpca.summaries.certificate import Evaluation
from fedpca.summaries.subspace import Subspace


class Energies:
    """One sum over all rows: energies along public directions, and what is left of them, as far as public.

    Args:
        privacy: the settings.
        found: how rows are clipped, and the length to clip them to here.
    """

    def __init__(self, privacy: Privacy, found: Found) -> None:
        self._privacy = privacy
        self._found = found

    @property
    def mu(self) -> float:
        """What it costs."""
        return self._privacy.mu * sqrt(self._privacy.evaluation_share) * BELOW

    def step(self, model: Subspace) -> Step:
        share, pairs = self._privacy.evaluation_share, self._found.clipping.pairs
        return evaluation(model, self._found.radius, share, of_pairs=pairs)

    def sd(self, model: Subspace) -> float:
        """Standard deviation of one owner's noise."""
        (block,) = self.step(model).blocks
        return block.sensitivity(self._privacy.adjacency) / self.mu

    def raw_sum(self, parts: Iterable[Array], model: Subspace, random: np.random.Generator) -> Array:
        """The sum over rows, without noise: integers, never to leave as they are.

        Args:
            parts: the rows.
            model: made of releases, so that its directions are public.
            random: of pairs of rows.
        """
        (block,) = self.step(model).blocks
        total = BlockSum(block, random)
        clipping = replace(self._found.clipping, center=None)
        if clipping.scale is not None and model.scale is not None:
            clipping = replace(clipping, scale=np.where(clipping.left_out, np.inf, model.scale))
        for rows in parts:
            total.take(clipping.deviations(rows))
        total.flush()
        return total.total

    def result(self, pooled: StepSum, model: Subspace) -> Evaluation:
        """What the sum over all owners' rows says."""
        step = self.step(model)
        (block,) = step.blocks
        same = pooled.step == step.name and same_radius(pooled.radius, step.radius)
        if not same or pooled.total.shape != (block.length,):
            raise ValueError("the sum must be that of an evaluation of the same model.")
        sd = self.sd(model) * sqrt(pooled.noise)
        clipping = self._found.clipping
        per_point = 2.0 if clipping.pairs else 1.0
        unit = per_point * self._found.radius**2 / ENERGY
        *energies, rest = (float(number) * unit for number in pooled.total[:-1])
        beyond = float(pooled.total[-1]) * per_point / (BEYOND * ENERGY) / pooled.n_rows
        return Evaluation(
            energies=tuple(energies),
            rest=rest,
            sd=sd * unit,
            radius=self._found.radius,
            beyond=min(max(beyond, 0.0), 1.0),
            records=pooled.n_rows,
            mu=self.mu,
            left_out=0 if clipping.scale is None else int(clipping.left_out.sum()),
        )


class PrivateEvaluation(Energies):
    """Energies that are noised and paid for here, once.

    Args:
        privacy, found: as for `Energies`.
        noise: of the evaluation.
        random: of pairs of rows.
        ledger: what pays.
    """

    def __init__(
        self, privacy: Privacy, found: Found, noise: Noise, random: np.random.Generator, ledger: Ledger
    ) -> None:
        super().__init__(privacy, found)
        self._noise: Noise | None = noise  # until it is used
        self._random = random
        self._ledger = ledger

    def check(self) -> None:
        """Whether rows may still be evaluated."""
        if self._noise is None:
            raise ValueError(
                "a private model is evaluated once, and was; fit anew, with a budget of its own."
            )

    def sum_rows(self, parts: Iterable[Array], n_rows: int, model: Subspace) -> StepSum:
        """The noisy sum over all rows of one owner."""
        assert self._noise is not None
        step, total = self.step(model), self.raw_sum(parts, model, self._random)
        adjacency = self._privacy.adjacency
        entry = self._ledger.debit(0, n_rows, step.name, self.mu, adjacency=adjacency)
        noise, self._noise = self._noise, None
        drawn = noise.entries((0,), step.length, self.sd(model))
        self._ledger.complete(entry)
        return StepSum(step.name, total + drawn, n_rows, radius=step.radius)

    def check_sum(self, own: StepSum, model: Subspace) -> None:
        """Refuse the sum of an owner that cannot be one of this evaluation."""
        check_sum(own, self.step(model), [self.sd(model)])
