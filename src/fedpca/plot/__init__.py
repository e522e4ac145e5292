"""Plots with matplotlib: each function draws on one pair of axes, and returns them.

Without `ax` a figure is made with pyplot. A model is a fitted estimator, a `Subspace` or `Moments`.
Components are counted from 1, as on the axes.
"""

from fedpca.plot.clients import influence
from fedpca.plot.model import loadings, scree
from fedpca.plot.rows import biplot, scores

__all__ = ["biplot", "influence", "loadings", "scores", "scree"]
