"""Energies: how much of the rows' variance components explain, by one sum over all rows."""

from dataclasses import replace
from math import sqrt

import numpy as np

from fedpca.privacy.search import Found
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import BELOW, BEYOND, ENERGY, evaluation
from fedpca.privacy.sums import StepSum, Sum
from fedpca.summaries.certificate import Evaluation
from fedpca.summaries.subspace import Subspace


class Energies:
    """The sum of energies along public directions, and of what is left of them, and what it says.

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

    def sum(self, model: Subspace) -> Sum:
        """The sum for a model made of releases, so that its directions are public."""
        clipping = replace(self._found.clipping, center=None)
        if clipping.scale is not None and model.scale is not None:
            clipping = replace(clipping, scale=np.where(clipping.left_out, np.inf, model.scale))
        share = self._privacy.evaluation_share
        step = evaluation(model, self._found.radius, share, of_pairs=clipping.pairs)
        return replace(step.announced(self.mu, self._privacy.adjacency, clipping), purpose="evaluation")

    def result(self, pooled: StepSum, model: Subspace) -> Evaluation:
        """What the sum over all owners' rows says."""
        announced, clipping = self.sum(model), self._found.clipping
        announced.check_pooled(pooled)
        sd = announced.blocks[0].sd * sqrt(pooled.noise)
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
