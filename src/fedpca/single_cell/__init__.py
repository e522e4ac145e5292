"""Principal components of single cells, where scanpy has them, of more cells than fit in memory."""

from fedpca.single_cell.components import pca

__all__ = ["pca"]
