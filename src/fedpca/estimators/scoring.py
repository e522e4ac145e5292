"""ModelPCA: a fitted estimator of a model as it stands, to score rows with."""

from typing import Self

import numpy as np

from fedpca._typing import AnyArray, RowsLike
from fedpca.estimators.base import BasePCA
from fedpca.summaries.rank import FixedRank, Oversample
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView


class ModelPCA(BasePCA):
    """A fitted PCA whose components are those of a model, signs included: others have scores by it, too.

    Args:
        model: a summary.
        n_components: how many of its directions to show.
        whiten: divide scores by their standard deviations.

    >>> flipped = Subspace([[-1.0, 0.0]], [2.0], [0.0, 0.0], 9, 5.0, True)
    >>> ModelPCA(flipped, 1).transform([[3.0, 4.0]])
    array([[-3.]])
    """

    def __init__(self, model: Summary, n_components: int, *, whiten: bool = False) -> None:
        self.model = model
        self.n_components = n_components
        self.whiten = whiten
        self._source: _AsItStands = _AsItStands(model, n_components)
        self._n_rows_seen = round(model.count)
        self.n_features_in_ = model.n_features
        if model.feature_names is not None:
            self.feature_names_in_: AnyArray = np.array(model.feature_names, dtype=object)

    def fit(self, X: RowsLike, y: object = None) -> Self:
        """The same: a model is fitted already."""
        return self

    def _known_spectrum(self) -> Subspace:
        return self._source.whole.subspace()


class _AsItStands(SummaryView):
    """A view of a model that keeps the signs of its directions, and all of those that it carries."""

    def __init__(self, model: Summary, n_components: int) -> None:
        oversample: Oversample = max(model.rank - n_components, 0) if isinstance(model, Subspace) else "auto"
        dtype = model.components.dtype if isinstance(model, Subspace) else np.float64
        super().__init__(model, FixedRank(n_components), oversample, dtype)
        self.whole = self.whole.without_parts()

    def _shown(self) -> Subspace:
        return self._carried()
