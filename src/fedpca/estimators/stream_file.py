"""Files of live streams: all that an estimator knows, raw rows included, to go on bit for bit.

Such a file is for the same program after a restart. It is a model file of another kind, with what must stay
with its owner: every reader of models, every signature and every carrier refuses it. Loading it runs no code
of the file: objects are of classes of fedpca's own, named in it, and arrays, numbers and text.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any, Self

import numpy as np

from fedpca._typing import JSON, AnyArray
from fedpca._util.version import __version__
from fedpca.backend import HOST
from fedpca.errors import ModelFileError
from fedpca.summaries import model_file

_KIND = "stream"
_ROOMS = ("fedpca.estimators.", "fedpca.summaries.", "fedpca.trackers.")  # whose classes streams consist of
# What reading a tree that fedpca did not write may raise.
_NOT_OURS = (
    AttributeError, ImportError, LookupError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip
_DTYPES = {"float64": np.float64, "float32": np.float32}


class LiveStream:
    """`save` and `load` of an estimator as it stands."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file with everything that this estimator knows, for a restart of the same program.

        It may contain raw rows, and stays with its owner: `merge`, `check`, `package` and every carrier
        refuse it. `summary_` and `subspace_` are what others get.
        """
        writer = _Writer()
        tree = writer.written(self)
        arrays = {
            name: np.concatenate([np.zeros(0), *parts]).astype(_DTYPES[name])
            for name, parts in writer.parts.items()
        }
        model_file.write(path, _KIND, arrays, {"stream": {"version": __version__, "estimator": tree}})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The estimator in a file that `save` of this version of fedpca wrote: it goes on, bit for bit."""
        kind, arrays, metadata = model_file.read(path)
        if kind != _KIND:
            raise ModelFileError(f"{path} is not a live stream, but a {kind}; read it with fedpca.load.")
        stream = metadata.get("stream")
        stream = stream if isinstance(stream, dict) else {}
        version = stream.get("version")
        if version != __version__:
            raise ModelFileError(
                f"{path} is a live stream of fedpca {version!r:.40}, and this is {__version__}: go on from a "
                "summary_, which all versions read."
            )
        try:
            found = _Reader(arrays).read(stream["estimator"])
        except _NOT_OURS as error:
            raise ModelFileError(f"{path} is not a live stream that fedpca wrote: {error!r:.200}") from error
        if type(found) is not cls:
            raise ModelFileError(
                f"{path} is a {type(found).__name__}; read it with {type(found).__name__}.load."
            )
        return found


class _Writer:
    """Objects as JSON, and all arrays of floats one after another in one array per dtype.

    What occurs twice is written once: entry i of all that was written so far, in order, is {"again": i}.
    """

    def __init__(self) -> None:
        self.parts: dict[str, list[AnyArray]] = {name: [] for name in _DTYPES}
        self._sizes = dict.fromkeys(_DTYPES, 0)
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # so that no two have one id

    def written(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if np.isfinite(value) else {"float": repr(value)}
        if id(value) in self._seen:
            return {"again": self._seen[id(value)]}
        self._seen[id(value)] = len(self._kept)
        self._kept.append(value)
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if value is HOST:
            return {"host": True}
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.dtype):
            return {"dtype": value.str}
        if isinstance(value, np.timedelta64):
            return {"timedelta64": [int(value.astype(np.int64)), np.datetime_data(value.dtype)[0]]}
        if isinstance(value, np.generic):
            return {"scalar": [value.dtype.str, self.written(value.item())]}
        if isinstance(value, timedelta):
            return {"timedelta": [value.days, value.seconds, value.microseconds]}
        if isinstance(value, np.random.RandomState):
            return {"random": [self.written(each) for each in value.get_state()]}
        if type(value) in (list, tuple):
            return {type(value).__name__: [self.written(each) for each in value]}
        if type(value) is dict and all(isinstance(name, str) for name in value):
            return {"dict": [[name, self.written(each)] for name, each in value.items()]}  # in their order
        kind = type(value)
        if not f"{kind.__module__}.".startswith(_ROOMS) or not kind.__qualname__.isidentifier():
            raise TypeError(f"a live stream with a {kind.__name__} of its own cannot be saved; pickle it.")
        named = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, tuple):  # a NamedTuple
            return {"tuple of": [named, [self.written(each) for each in value]]}
        state = value.__getstate__()
        return {"object": [named, self.written(state[1] if isinstance(state, tuple) else state)]}

    def _array(self, value: AnyArray) -> JSON:
        name = str(value.dtype)
        is_frozen = not value.flags.writeable
        if name not in _DTYPES:
            return {
                "few": [
                    value.dtype.str,
                    list(value.shape),
                    [self.written(each) for each in value.ravel().tolist()],
                    is_frozen,
                ]
            }
        start = self._sizes[name]
        self.parts[name].append(value.ravel())
        self._sizes[name] += value.size
        return {"array": [name, start, list(value.shape), is_frozen]}


class _Reader:
    """The inverse of `_Writer`."""

    def __init__(self, arrays: dict[str, AnyArray]) -> None:
        self._arrays = arrays
        self._seen: list[Any] = []

    def read(self, value: Any) -> Any:
        if not isinstance(value, dict):
            if value is not None and type(value) not in (bool, int, str, float):
                raise ValueError("a value is neither plain nor an object")
            return value
        ((kind, contents),) = value.items()
        if kind == "float":
            return float(contents)
        if kind == "again":
            return self._seen[contents]
        place = len(self._seen)
        self._seen.append(None)
        if kind == "object":
            self._seen[place] = made = _new(contents[0], is_tuple=False)
            _set_state(made, self.read(contents[1]))
            return made
        self._seen[place] = found = getattr(self, "_" + kind.replace(" ", "_"))(contents)
        return found

    def _host(self, _: Any) -> Any:
        return HOST

    def _dtype(self, name: str) -> Any:
        return np.dtype(name)

    def _timedelta64(self, contents: Any) -> Any:
        return np.timedelta64(*contents)

    def _timedelta(self, contents: Any) -> Any:
        return timedelta(*contents)

    def _scalar(self, contents: Any) -> Any:
        return np.dtype(contents[0]).type(self.read(contents[1]))

    def _random(self, contents: Any) -> Any:
        made = np.random.RandomState()
        made.set_state(tuple(self.read(each) for each in contents))
        return made

    def _list(self, contents: Any) -> Any:
        return [self.read(each) for each in contents]

    def _tuple(self, contents: Any) -> Any:
        return tuple(self.read(each) for each in contents)

    def _dict(self, contents: Any) -> Any:
        return {name: self.read(each) for name, each in contents}

    def _tuple_of(self, contents: Any) -> Any:
        kind = _new(contents[0], is_tuple=True)
        return kind(*(self.read(each) for each in contents[1]))

    def _few(self, contents: Any) -> Any:
        dtype, shape, values, is_frozen = contents
        made = np.array([self.read(each) for each in values], dtype=np.dtype(dtype)).reshape(shape)
        made.flags.writeable = not is_frozen
        return made

    def _array(self, contents: Any) -> Any:
        name, start, shape, is_frozen = contents
        made = self._arrays[name][start : start + int(np.prod(shape))].reshape(shape).copy()
        made.flags.writeable = not is_frozen
        return made


def _new(named: str, *, is_tuple: bool) -> Any:
    """An empty object of a class of fedpca's own; the class itself, of a NamedTuple."""
    module, _, name = named.rpartition(".")
    if not f"{module}.".startswith(_ROOMS):
        raise ValueError(f"{named} is no part of a stream")
    kind = getattr(import_module(module), name)
    if not isinstance(kind, type) or kind.__module__ != module or issubclass(kind, tuple) != is_tuple:
        raise ValueError(f"{named} is no part of a stream")
    return kind if is_tuple else object.__new__(kind)


def _set_state(made: Any, state: Any) -> None:
    if state is None:
        return
    set_state: Callable[[Any], None] | None = getattr(made, "__setstate__", None)
    if set_state is not None:
        set_state(state)
        return
    for name, value in state.items():
        object.__setattr__(made, name, value)
