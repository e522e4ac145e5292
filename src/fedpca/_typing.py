"""Names for types that no library spells out."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["JSON", "AnyArray", "Array", "ArrayLike", "DType", "DTypeLike", "DeviceArray", "RowsLike"]

Array = NDArray[np.floating]
"""A NumPy array of floats, on the host."""

AnyArray = NDArray[Any]
"""A NumPy array of whatever it holds."""

DeviceArray = Any
"""An array of any library: NumPy, or torch, CuPy and others on their own device."""

DType = np.dtype[Any]
"""A NumPy dtype."""

RowsLike = Any
"""What a user may pass as rows: an array, a sparse matrix, a data frame, a list of lists, a tensor."""

JSON = dict[str, Any]
"""A parsed JSON object."""
