"""Rows on a device: the whole scatter where d x d numbers fit, else a randomized PCA per chunk."""
