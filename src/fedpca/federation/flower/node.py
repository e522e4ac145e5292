"""Node: one owner of rows. Each version is released once and then served unchanged."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedpca._util.files import atomic_write, file_lock
from fedpca.errors import BudgetExceeded, NodeError
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.flower.privacy_floor import PrivacyFloor
from fedpca.federation.message import Message
from fedpca.privacy import Privacy
from fedpca.readers import fit_files, open_rows
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_PLAIN = ("client-id", "source", "state", "version", "min-rank")
_REQUIRED = ("epsilon", "delta", "bound")  # for privacy
_PRIVATE = (*_REQUIRED, "adjacency", "mechanism", "center", "ledger")


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
    """

    client: str
    source: Path
    state: Path
    version: int = 1
    privacy: Privacy | None = None
    min_rank: int = 1

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The node that a Flower node config describes.

        >>> node = Node.from_config({"client-id": "north", "source": "/data/rows.npy"})
        >>> node.state.name, node.version, node.privacy
        ('rows.npy.fedpca', 1, None)
        """
        if unknown := sorted(set(config) - {*_PLAIN, *_PRIVATE}):
            known = ", ".join((*_PLAIN, *_PRIVATE))
            raise NodeError(f"unknown key in the node config: {', '.join(unknown)}; known are {known}.")
        client, source = require_text(config, "client-id"), Path(require_text(config, "source"))
        state = Path(config.get("state") or f"{source}.fedpca")
        try:
            version = validation.integer(config.get("version", 1), "version", at_least=0)
            min_rank = validation.integer(config.get("min-rank", 1), "min-rank", at_least=1)
            privacy = _privacy(config, state)
        except (TypeError, ValueError, OSError) as error:
            raise NodeError(f"node config: {error}") from error
        return cls(client, source, state, version, privacy, min_rank)

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
        fit_files(pca, open_rows(self.source, private=self.privacy is not None))
        return pca.summary_ if self.privacy is None else pca._release_for_merging()

    def _settings(self, center: bool) -> dict[str, Any]:
        """What a release depends on, besides the rows and the rank."""
        if self.privacy is None:
            return {"center": center}
        settings = {key: getattr(self.privacy, key) for key in (*_REQUIRED, "adjacency", "mechanism")}
        public = isinstance(self.privacy.center, tuple)
        return settings | {"center": "public" if public else self.privacy.center}

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
