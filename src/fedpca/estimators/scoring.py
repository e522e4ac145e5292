"""Scores by the components of a model, as they are in the model."""

import numpy as np

from fedpca._typing import Array
from fedpca.estimators.streaming import StreamingPCA
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


def estimator_of(model: Summary, n_components: int, *, whiten: bool = False) -> tuple[StreamingPCA, Array]:
    """A fitted estimator with the first components of a model, and the sign that each has in the model.

    The estimator decides on signs by itself. Those of a model must stay: others have scores by it, too.

    >>> flipped = Subspace([[-1.0, 0.0]], [2.0], [0.0, 0.0], 9, 5.0, True)
    >>> pca, signs = estimator_of(flipped, 1)
    >>> pca.transform([[3.0, 4.0]]) * signs
    array([[-3.]])
    """
    pca = StreamingPCA(n_components, center=model.centered, scale=model.scale, whiten=whiten)
    if not isinstance(model, Subspace):
        pca.merge(model)
        return pca, np.ones(pca.n_components_)
    pca.merge(model.without_parts())
    components = pca.components_
    agreement = np.sum(components * model.components[: len(components)], axis=1)
    return pca, np.where(agreement < 0, -1.0, 1.0)
