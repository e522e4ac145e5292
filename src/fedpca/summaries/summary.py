"""Summary: either kind of summary; reading one from a model file."""

import os
from collections.abc import Mapping

from fedpca._typing import JSON, Array
from fedpca.errors import ModelFileError
from fedpca.summaries import model_file
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace

Summary = Subspace | Moments

_KINDS: dict[str, type[Subspace] | type[Moments]] = {kind.kind: kind for kind in (Subspace, Moments)}


def load(path: str | os.PathLike[str]) -> Summary:
    """Read a model file. Its contents are checked as if they came from the network.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> Subspace.from_rows([[1.0, 2.0], [3.0, 2.0]]).save(path)
    >>> load(path)
    Subspace(rank=1, n_features=2, count=2, explained=100.0%)
    """
    return from_file(path, *model_file.read(path))


def from_file(name: object, kind: str, arrays: Mapping[str, Array], metadata: JSON) -> Summary:
    """The summary in the contents of a model file called `name`."""
    if kind not in _KINDS:
        raise ModelFileError(f"{name} contains {kind!r}; this fedpca knows {sorted(_KINDS)}.")
    try:
        return _KINDS[kind].from_file_contents(arrays, metadata)
    except KeyError as error:
        raise ModelFileError(f"{name} is not a valid {kind}: {error} is missing.") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{name} is not a valid {kind}: {error}") from error
