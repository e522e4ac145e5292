"""Summary: either kind of summary; reading one, or a scaling, from a model file."""

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from fedpca._typing import JSON, Array
from fedpca.errors import ModelFileError
from fedpca.summaries import model_file
from fedpca.summaries.moments import Moments
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.subspace import Subspace

Summary = Subspace | Moments

_KINDS: dict[str, type[Subspace] | type[Moments]] = {kind.kind: kind for kind in (Subspace, Moments)}


def load(path: str | os.PathLike[str]) -> Summary | Scaling:
    """Read a model file: a summary or a `Scaling`. It is checked as if it came from the network.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> Subspace.from_rows([[1.0, 2.0], [3.0, 2.0]]).save(path)
    >>> load(path)
    Subspace(rank=1, n_features=2, count=2, explained=100.0%)
    """
    kind, arrays, metadata = model_file.read(path)
    if kind == Scaling.kind:
        return scaling_from_file(path, arrays, metadata)
    return from_file(path, kind, arrays, metadata)


def load_summary(path: str | os.PathLike[str]) -> Summary:
    """Read a model file that contains a summary."""
    return from_file(path, *model_file.read(path))


def from_file(name: object, kind: str, arrays: Mapping[str, Array], metadata: JSON) -> Summary:
    """The summary in the contents of a model file called `name`."""
    if kind == Scaling.kind:
        raise ModelFileError(
            f"{name} must be a model, but is a Scaling; fit a model with its scale(...), or --scale std:FILE."
        )
    if kind not in _KINDS:
        raise ModelFileError(f"{name} contains {kind!r}; this fedpca knows {sorted(_KINDS)}.")
    return _checked(name, kind, lambda: _KINDS[kind].from_file_contents(arrays, metadata))


def scaling_from_file(name: object, arrays: Mapping[str, Array], metadata: JSON) -> Scaling:
    """The scaling in the contents of a model file called `name`."""
    return _checked(name, Scaling.kind, lambda: Scaling.from_file_contents(arrays, metadata))


_Value = TypeVar("_Value")


def _checked(name: object, kind: str, made: Callable[[], _Value]) -> _Value:
    try:
        return made()
    except KeyError as error:
        raise ModelFileError(f"{name} is not a valid {kind}: {error} is missing.") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{name} is not a valid {kind}: {error}") from error
