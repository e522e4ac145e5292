"""Record: a frozen dataclass of facts, checked by the types of its fields, to and from JSON."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Self, get_args

from fedpca._typing import JSON

MAX_TEXT = 2000
MAX_NUMBER = 1e300
_MAX_COUNT = 2**63
_SHARES = ("delta", "spent_delta", "beyond", "aliasing")  # at most 1
_SIGNED = ("energies", "rest")  # noise may make them negative


def _check(value: object, kind: type, name: str) -> None:
    """Refuse a value that is not of a field's type, is too long, not finite, or absurd."""
    if kind is str:
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise ValueError(f"{name} must be a string of at most {MAX_TEXT} characters.")
    elif kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r:.80}.")
    elif kind is int:
        if type(value) is not int or not 0 <= value < _MAX_COUNT:
            raise ValueError(f"{name} must be a whole number of at least 0, got {value!r:.80}.")
    elif kind is float:
        largest = 1.0 if name in _SHARES else MAX_NUMBER
        smallest = -largest if name in _SIGNED else 0.0
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not smallest <= value <= largest:  # type: ignore[operator]
            raise ValueError(f"{name} must be a number from {smallest:g} to {largest:g}, got {value!r:.80}.")
    elif not isinstance(value, kind):
        raise ValueError(f"{name} must be of type {kind.__name__}, got {type(value).__name__}.")


@cache
def _field_types(record: Any) -> list[tuple[str, Any, Any, bool]]:
    """Per field: name, type of a single value, type of the items of a list, whether it may be None."""
    found = []
    for field in fields(record):
        options = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        one = next((kind for kind in options if isinstance(kind, type) and kind is not NoneType), None)
        many = next((get_args(kind)[0] for kind in options if get_args(kind)), None)
        found.append((field.name, one, many, NoneType in options))
    return found


class Record:
    """A frozen dataclass whose fields are checked by their types, to and from JSON; None is "not stated"."""

    def __post_init__(self) -> None:
        record: Any = type(self)
        for name, one, many, optional in _field_types(record):
            value = getattr(self, name)
            if value is None and optional:
                continue
            if many is not None and isinstance(value, list | tuple):
                object.__setattr__(self, name, tuple(value))
                for item in value:
                    _check(item, many, name)
            elif one is None:
                raise ValueError(f"{name} must be a list, got {type(value).__name__}.")
            else:
                _check(value, one, name)

    @classmethod
    def from_json(cls, contents: object) -> Self:
        """The inverse of `to_json`; raises ValueError for anything else."""
        what = f"a {cls.__name__}"
        if not isinstance(contents, Mapping):
            raise ValueError(f"{what} must be a JSON object, got {type(contents).__name__}.")
        record: Any = cls
        types = {name: (one, many) for name, one, many, _ in _field_types(record)}
        if unknown := sorted(str(name) for name in set(contents) - types.keys()):
            raise ValueError(f"{what} has unknown keys: {', '.join(unknown)[:200]}.")
        try:
            return cls(**{name: _made(value, *types[name]) for name, value in contents.items()})
        except TypeError as error:
            raise ValueError(f"{what} is incomplete: {error}.") from error

    def to_json(self) -> JSON:
        """Plain JSON values; what is not stated is left out."""
        return {
            field.name: _plain(value)
            for field in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) is not None
        }


def _made(value: object, one: Any, many: Any) -> object:
    """A value of JSON as a field has it: objects as records, where it is to have these."""
    if isinstance(many, type) and issubclass(many, Record) and isinstance(value, list):
        return tuple(map(many.from_json, value))
    is_record = isinstance(one, type) and issubclass(one, Record) and value is not None
    return one.from_json(value) if is_record else value


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_json() if isinstance(value, Record) else value
