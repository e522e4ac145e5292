"""Files of any size as batches of rows.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "people.csv"
>>> _ = path.write_text("name,height,weight\\nAda,1.7,60\\nBob,1.8,\\n")
>>> rows = open_rows(path, passthrough=["name"])
>>> rows
RowReader('people.csv', n_features=2)
>>> rows.feature_names
('height', 'weight')
>>> for batch in rows:
...     print(batch)
[[ 1.7 60. ]
 [ 1.8  nan]]
>>> for batch in rows.batches(skip=1):
...     print(batch.rows, batch.passthrough["name"])
[[1.8 nan]] ['Bob']
"""

from fedpca.errors import FileFormatError
from fedpca.readers.data_file import Batch
from fedpca.readers.row_reader import RowReader, open_rows

__all__ = ["Batch", "FileFormatError", "RowReader", "open_rows"]
