"""Node: one owner of rows. Each version is released once and then served unchanged."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedpca._util.files import atomic_write, file_lock
from fedpca._util.option_text import format_names, parse_character, split_names
from fedpca.errors import BudgetExceeded, FileFormatError, NodeError
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.flower.privacy_floor import PrivacyFloor
from fedpca.federation.message import Message
from fedpca.privacy import Privacy
from fedpca.readers import fit_files, open_rows
from fedpca.readers.dialect import Dialect
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_PLAIN = ("client-id", "source", "state", "version", "min-rank")
_REQUIRED = ("epsilon", "delta", "bound")  # for privacy
_PRIVATE = (*_REQUIRED, "adjacency", "mechanism", "center", "ledger")
_FLAGS = ("numeric-only", "header")
_READING: dict[str, Callable[[Any], Any]] = {  # of the rows, as text or flags
    "columns": split_names,
    "drop": split_names,
    "numeric-only": bool,
    "header": bool,
    "delimiter": parse_character,
    "decimal": str,
    "thousands": str,
    "na-values": split_names,
    "comment": str,
    "encoding": str,
    "sheet": str,
}
_DIALECT = ("delimiter", "decimal", "thousands", "na_values", "comment", "encoding")


@dataclass(frozen=True)
class Node:
    """An owner of rows in a federation.

    Attributes:
        client: the name of the owner, whatever machine its releases come from.
        source: its rows: a file or folder that `fedpca.readers.open_rows` reads.
        state: a folder for its releases, one per version, and its ledger.
        version: which release to send; a new one is made only for a new version.
        privacy: of its rows; None sends summaries without noise.
        min_rank: the fewest components a release is made for, whatever a run requests: the first request
            decides on the rank of a version, and another one may cost a second budget.
        reading: arguments of `open_rows`: which columns are read, and how text is written.
    """

    client: str
    source: Path
    state: Path
    version: int = 1
    privacy: Privacy | None = None
    min_rank: int = 1
    reading: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The node that a Flower node config describes.

        >>> node = Node.from_config({"client-id": "north", "source": "/data/rows.npy"})
        >>> node.state.name, node.version, node.privacy
        ('rows.npy.fedpca', 1, None)
        """
        if unknown := sorted(set(config) - {*_PLAIN, *_READING, *_PRIVATE}):
            known = ", ".join((*_PLAIN, *_READING, *_PRIVATE))
            raise NodeError(f"unknown key in the node config: {', '.join(unknown)}; known are {known}.")
        client, source = require_text(config, "client-id"), Path(require_text(config, "source"))
        state = Path(config.get("state") or f"{source}.fedpca")
        try:
            version = validation.integer(config.get("version", 1), "version", at_least=0)
            min_rank = validation.integer(config.get("min-rank", 1), "min-rank", at_least=1)
            reading, privacy = _reading(config), _privacy(config, state)
        except (TypeError, ValueError, OSError) as error:
            raise NodeError(f"node config: {error}") from error
        return cls(client, source, state, version, privacy, min_rank, reading)

    def release(self, request: Mapping[str, Any]) -> bytes:
        """The release of this version, as an encoded `Message`.

        The first request reads the rows and, with privacy, debits the ledger. Later ones get the same bytes.

        Args:
            request: "rank" and "center" of the model and, if only private releases are accepted, the keys of
                a `PrivacyFloor`.
        """
        rank, center = validation.integer(request["rank"], "rank", at_least=1), bool(request["center"])
        self._check(request)
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.state / f"release-{self.version}.safetensors"
        settings_path = path.with_suffix(".json")
        with file_lock(self.state / "lock"):  # a second request waits for the release of the first
            if not path.exists():
                made_for = max(rank, self.min_rank)
                _write(settings_path, json.dumps({"rank": made_for} | self._settings(center)).encode())
                _write(path, Message(self.client, self.version, self._summary(made_for, center)).encode())
            contents = path.read_bytes()
            settings = json.loads(settings_path.read_bytes()) if settings_path.exists() else {}
        self._check_kept(Message.decode(contents, path), settings, rank, center)
        return contents

    def public_message(self, error: Exception) -> str:
        """What others may learn about an error: nothing that was read from the rows or their file."""
        if isinstance(error, NodeError | BudgetExceeded):
            return str(error)
        return f"its rows could not be released ({type(error).__name__}); see the log of its SuperNode."

    def _check(self, request: Mapping[str, Any]) -> None:
        """Raise, before anything is read or spent, if the release would be rejected."""
        center = bool(request["center"])
        if self.privacy is not None and center != (self.privacy.center is not None):
            mine = self._settings(center)["center"]
            raise NodeError(f"the run requires center={center}, but this node has center={mine!r}.")
        if floor := PrivacyFloor.from_config(request):
            floor.check(self.privacy)

    def _summary(self, rank: int, center: bool) -> Summary:
        pca = StreamingPCA(rank, center=center, privacy=self.privacy)
        try:
            fit_files(pca, open_rows(self.source, private=self.privacy is not None, **self.reading))
        except FileFormatError as error:
            raise FileFormatError(error.message(_spell_key)) from error
        return pca.summary_ if self.privacy is None else pca._release_for_merging()

    def _settings(self, center: bool) -> dict[str, Any]:
        """What a release depends on, besides the rows and the rank."""
        reading = {_key(name): value for name, value in self.reading.items()}
        if self.privacy is None:
            return reading | {"center": center}
        settings = {key: getattr(self.privacy, key) for key in (*_REQUIRED, "adjacency", "mechanism")}
        public = isinstance(self.privacy.center, tuple)
        return reading | settings | {"center": "public" if public else self.privacy.center}

    def _check_kept(self, kept: Message, settings: Mapping[str, Any], rank: int, center: bool) -> None:
        """Raise if a new release would differ; above all, if this one has no noise and privacy is set."""
        if kept.child != self.client:
            raise NodeError(f"the state folder belongs to client {kept.child!r}; use one folder per client.")
        made_with, now = dict(settings), self._settings(center)
        made_for = made_with.pop("rank", 0)
        if made_with != now:
            raise NodeError(
                f"version {self.version} was released with {made_with}, but the settings now are {now}; "
                "increase version in the node config to make a new release."
            )
        if isinstance(kept.summary, Subspace) and rank > made_for:
            raise NodeError(
                f"version {self.version} was released for rank={made_for}, but the run requests rank={rank}; "
                "increase version in the node config to make a new release."
            )


def _write(path: Path, contents: bytes) -> None:
    with atomic_write(path, owner_only=True) as temporary:
        temporary.write_bytes(contents)


def require_text(config: Mapping[str, Any], key: str) -> str:
    """The value of a key that a node config must have."""
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise NodeError(f"{key} must be a non-empty string in the node config, got {value!r}.")
    return value


def _reading(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `open_rows`."""
    for key in _READING.keys() & config.keys():
        kind, rule = (bool, "true or false") if key in _FLAGS else (str, "text")
        if not isinstance(config[key], kind):
            raise NodeError(f"{key} must be {rule} in the node config, got {config[key]!r}.")
    reading = {key.replace("-", "_"): parse(config[key]) for key, parse in _READING.items() if key in config}
    Dialect(**{name: value for name, value in reading.items() if name in _DIALECT})  # rejects what cannot be
    return reading


def _key(name: str) -> str:
    return name.replace("_", "-")


def _spell_key(name: str, value: Any) -> str:
    """An argument of `open_rows` as a line of a node config; None stands for a value to choose.

    >>> print(_spell_key("drop", ["patient id", "ward"]), _spell_key("numeric_only", True))
    drop = "patient id,ward" numeric-only = true
    """
    if value is None:
        return _key(name)
    return f"{_key(name)} = {json.dumps(format_names(value) if isinstance(value, list) else value)}"


def _privacy(config: Mapping[str, Any], state: Path) -> Privacy | None:
    given = {key: config[key] for key in _PRIVATE if key in config}
    if not given:
        return None
    if missing := [key for key in _REQUIRED if key not in given]:
        raise NodeError(f"a private node needs {', '.join(_REQUIRED)}; missing: {', '.join(missing)}.")
    center = given.pop("center", None)
    if isinstance(center, str) and center.endswith(".npy"):
        center = np.load(center, allow_pickle=False)
    return Privacy(**{"ledger": state / "ledger"} | given, center=center)
