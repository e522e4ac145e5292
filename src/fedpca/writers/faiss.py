"""Models as linear transforms of faiss, for vectors that go into an index."""

import os
from typing import TYPE_CHECKING

import numpy as np

from fedpca._util.extras import require
from fedpca._util.files import atomic_write, local_path
from fedpca.summaries.summary import Summary
from fedpca.writers.exported import exported

if TYPE_CHECKING:
    from fedpca.estimators.base import BasePCA


def write_faiss(
    model: "Summary | BasePCA",
    path: str | os.PathLike[str],
    *,
    n_components: int | None = None,
    whiten: bool | None = None,
) -> None:
    """Write a model as a `faiss.LinearTransform`, which faiss applies to float32 vectors before an index.

    It is that of `transform`, mean, scale and whitening included: `A` has shape (n_components, d), and `b`
    is -A mean. `faiss.read_VectorTransform` reads the file, `faiss.IndexPreTransform` puts it before an
    index.

    Args:
        model: a fitted estimator, or a summary such as `fedpca.load` gives.
        path: the file to write.
        n_components: how many components; None for those that an estimator shows, or all of a summary.
        whiten: divide scores by their standard deviations; None for what an estimator does, else False.

    >>> import faiss, fedpca, pathlib, tempfile
    >>> rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    >>> pca = fedpca.StreamingPCA(2).fit(rows)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.vt"
    >>> write_faiss(pca, path)
    >>> scores = faiss.read_VectorTransform(str(path)).apply_py(rows)
    >>> bool(np.allclose(scores, pca.transform(rows), atol=1e-5))
    True
    """
    faiss = require("faiss", extra="faiss", purpose="exporting a model for faiss")
    path = local_path(path)
    kept, deviations = exported(model, n_components, whiten)
    with np.errstate(over="ignore"):
        matrix = kept.components.astype(np.float64)
        if deviations is not None:
            matrix /= deviations[:, None]
        offset = -(matrix @ kept.mean)  # the mean is that of the divided rows
        if kept.scale is not None:
            matrix /= kept.scale
        matrix, offset = matrix.astype(np.float32), offset.astype(np.float32)
    if not (np.isfinite(matrix).all() and np.isfinite(offset).all()):
        raise ValueError(
            "the numbers of a faiss transform are float32, and some of this model are too large: a scale "
            "or a standard deviation is near zero; leave out that feature, or export fewer components."
        )
    transform = faiss.LinearTransform(kept.n_features, kept.rank, True)
    faiss.copy_array_to_vector(matrix.ravel(), transform.A)
    faiss.copy_array_to_vector(offset, transform.b)
    transform.is_trained = True
    transform.set_is_orthonormal()
    with atomic_write(path) as temporary:
        faiss.write_VectorTransform(transform, str(temporary))
