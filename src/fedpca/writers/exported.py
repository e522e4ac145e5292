"""What of a model other programs need to compute its scores."""

from typing import TYPE_CHECKING

import numpy as np

from fedpca._typing import Array
from fedpca.summaries import validation
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

if TYPE_CHECKING:
    from fedpca.estimators.base import BasePCA


def exported(
    model: "Summary | BasePCA", n_components: int | None = None, whiten: bool | None = None
) -> tuple[Subspace, Array | None]:
    """The components to export, and the standard deviations of scores if these are to be whitened.

    Args:
        model: a fitted estimator, or a summary such as `fedpca.load` gives.
        n_components: how many components; None for those that an estimator shows, or all of a summary.
        whiten: None for what an estimator does, else False.
    """
    from fedpca.estimators.base import BasePCA  # scikit-learn, which tables can do without

    shown: int | None = None
    if isinstance(model, BasePCA):
        shown, whiten = model.n_components_, bool(model.whiten) if whiten is None else whiten
        model = model.subspace_
    elif not isinstance(model, Subspace | Moments):
        raise TypeError(f"model must be a fitted PCA, a Subspace or Moments, got {type(model).__name__}.")
    subspace = model.subspace()
    if n_components is not None:
        n_components = validation.integer(n_components, "n_components", at_least=1)
        if n_components > subspace.rank:
            raise ValueError(f"n_components must be at most {subspace.rank}, got {n_components}.")
    elif not (n_components := subspace.rank if shown is None else shown):
        raise ValueError("a model without components has no scores to export.")
    kept = subspace.truncate(n_components)
    return kept, kept.singular_values / np.sqrt(degrees_of_freedom(kept.count)) if whiten else None
