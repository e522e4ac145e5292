"""Reading summaries and scalings from model files."""

import os
from collections.abc import Mapping
from typing import Any

from fedpca._typing import JSON, Array
from fedpca.errors import ModelFileError
from fedpca.summaries import model_file
from fedpca.summaries.frozen import Frozen
from fedpca.summaries.moments import Moments
from fedpca.summaries.patchwork import PATCHED
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_KINDS: Mapping[str, type[Frozen]] = {kind.kind: kind for kind in (Subspace, Moments)}

# Facts that a file may have beside its summary, and what they must be: of a message, and of the command line.
_BESIDE: dict[str, type] = {"child": str, "version": int, "n_components": int, "counted": dict}
_BESIDE |= dict.fromkeys(model_file.OWN_FACTS, dict)


def load(path: str | os.PathLike[str]) -> Summary | Scaling:
    """Read a model file: a summary or a `Scaling`. It is checked as if it came from the network.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> Subspace.from_rows([[1.0, 2.0], [3.0, 2.0]]).save(path)
    >>> load(path)
    Subspace(rank=1, n_features=2, count=2, explained=100.0%)
    """
    kind, arrays, metadata = model_file.read(path)
    facts, _ = split_facts(path, metadata)
    if kind == Scaling.kind:
        return scaling_from_file(path, arrays, facts)
    return from_file(path, kind, arrays, facts)


def load_summary(path: str | os.PathLike[str]) -> Summary:
    """Read a model file that contains a summary."""
    kind, arrays, metadata = model_file.read(path)
    return from_file(path, kind, arrays, split_facts(path, metadata)[0])


def split_facts(name: object, metadata: JSON) -> tuple[JSON, JSON]:
    """The facts of a summary in the metadata of the model file called `name`, and those beside it."""
    if "checkpoint" in metadata:
        raise ModelFileError(
            f"{name} must be a model, but is the checkpoint of a stopped fit; run the same command again to "
            "finish it."
        )
    beside = {fact: metadata[fact] for fact in _BESIDE if fact in metadata}
    for fact, value in beside.items():
        if type(value) is not _BESIDE[fact]:
            raise ModelFileError(
                f"{name} is not a valid model file: {fact} must be of type {_BESIDE[fact].__name__}, got "
                f"{value!r:.80}."
            )
    return {fact: value for fact, value in metadata.items() if fact not in beside}, beside


def from_file(name: object, kind: str, arrays: Mapping[str, Array], metadata: JSON) -> Summary:
    """The summary in the contents of a model file called `name`, which have nothing else."""
    if kind == Scaling.kind:
        raise ModelFileError(
            f"{name} must be a model, but is a Scaling; fit a model with its scale(...), or --scale std:FILE."
        )
    if kind == "stream":
        raise ModelFileError(
            f"{name} must be a model, but is a live stream, which may have raw rows and stays with its "
            "owner; save its summary_."
        )
    if kind not in _KINDS:
        raise ModelFileError(f"{name} contains {kind!r}; this fedpca knows {sorted(_KINDS)}.")
    found: Summary = _checked(name, (PATCHED if "parts" in metadata else _KINDS)[kind], arrays, metadata)
    return found


def scaling_from_file(name: object, arrays: Mapping[str, Array], metadata: JSON) -> Scaling:
    """The scaling in the contents of a model file called `name`, which have nothing else."""
    found: Scaling = _checked(name, Scaling, arrays, metadata)
    return found


def _checked(name: object, kind: type[Frozen], arrays: Mapping[str, Array], metadata: JSON) -> Any:
    try:
        return kind.from_file_contents(arrays, metadata)
    except KeyError as error:
        raise ModelFileError(f"{name} is not a valid {kind.kind}: {error} is missing.") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{name} is not a valid {kind.kind}: {error}") from error
