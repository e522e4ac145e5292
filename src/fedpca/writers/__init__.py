"""Files for other programs: scores, a batch at a time, tables, and models for ONNX and faiss.

Every file appears once it is complete: an error or an interrupt leaves nothing, or the file that was there.

>>> import fedpca, numpy as np, pathlib, tempfile
>>> rows = np.random.default_rng(0).normal(size=(100, 3))
>>> pca = fedpca.StreamingPCA(2).fit(rows)
>>> path = pathlib.Path(tempfile.mkdtemp()) / "scores.csv"
>>> with open_scores(path, pca) as write:
...     for batch in (rows[:60], rows[60:]):
...         write(pca.transform(batch))
>>> len(path.read_text().splitlines())  # one of names, then one per row
101
"""

from fedpca.writers.faiss import write_faiss
from fedpca.writers.onnx import write_onnx
from fedpca.writers.scores import open_scores
from fedpca.writers.tables import write_tables

__all__ = ["open_scores", "write_faiss", "write_onnx", "write_tables"]
