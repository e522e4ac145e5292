"""Node: what one owner has, promises and keeps; it makes its release once and repeats it for ever."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedpca._util.files import file_lock
from fedpca.errors import BudgetExceeded, NodeError
from fedpca.estimators.streaming import StreamingPCA
from fedpca.privacy import Privacy
from fedpca.readers import fit_files, open_rows
from fedpca.summaries import model_file, validation
from fedpca.summaries.summary import Summary, from_file

_PLAIN = ("client-id", "source", "state", "version")
_PROMISE = ("epsilon", "delta", "bound")
_PRIVATE = (*_PROMISE, "adjacency", "mechanism", "center", "ledger")


@dataclass(frozen=True)
class Node:
    """An owner in a federation.

    Attributes:
        client: its name, by which its contributions are known, whatever machine they come from.
        source: its rows: a file or folder that `fedpca.readers.open_rows` reads.
        state: a folder for its releases, one a version, and its ledger.
        version: which release to tell; a new one is made only for a new version.
        privacy: what it promises its records; None lets a clean summary out.
    """

    client: str
    source: Path
    state: Path
    version: int = 1
    privacy: Privacy | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A node as its owner describes it in Flower's node config.

        >>> node = Node.from_config({"client-id": "north", "source": "/data/rows.npy"})
        >>> node.state.name, node.version, node.privacy
        ('rows.npy.fedpca', 1, None)
        """
        if unknown := sorted(set(config) - {*_PLAIN, *_PRIVATE}):
            known = ", ".join((*_PLAIN, *_PRIVATE))
            raise NodeError(f"unknown key in the node config: {', '.join(unknown)}; known are {known}.")
        client, source = text_of(config, "client-id"), Path(text_of(config, "source"))
        state = Path(config.get("state") or f"{source}.fedpca")
        try:
            version = validation.integer(config.get("version", 1), "version", at_least=0)
            privacy = _privacy(config, state)
        except (TypeError, ValueError, OSError) as error:
            raise NodeError(f"node config: {error}") from error
        return cls(client, source, state, version, privacy)

    def release(self, ask: Mapping[str, Any]) -> bytes:
        """What this node says when asked: the bytes of a model file.

        The first time rows are read and, with privacy, paid for. From then on it is the same file.

        Args:
            ask: "rank" and "center" of the model wanted and, if only private releases are taken, the largest
                "epsilon", "delta" and "bound", and the "adjacency".
        """
        rank, center = validation.integer(ask["rank"], "rank", at_least=1), bool(ask["center"])
        self._check(ask)
        self.state.mkdir(parents=True, exist_ok=True)
        path = self.state / f"release-{self.version}.safetensors"
        with file_lock(self.state / "lock"):  # a second ask waits for the release of the first
            if not path.exists():
                summary = self._summary(rank, center)
                arrays, facts = summary.arrays, summary.metadata
                made = {"child": self.client, "version": self.version, "rank": rank}
                model_file.write(
                    path, summary.kind, arrays, facts | made | {"settings": self._settings(center)}
                )
            contents = path.read_bytes()
        self._check_kept(path, rank, center)
        return contents

    def told(self, error: Exception) -> str:
        """What others may know of an error: not what was found in rows, nor what was taken for a name."""
        if isinstance(error, NodeError | BudgetExceeded):
            return str(error)
        return f"its rows could not be released ({type(error).__name__}); the log of its SuperNode says why."

    def _check(self, ask: Mapping[str, Any]) -> None:
        """Refuse, before anything is read or spent, what could only be refused afterwards."""
        if self.privacy is not None and bool(ask["center"]) != (self.privacy.center is not None):
            want = "a center" if ask["center"] else "no center"
            raise NodeError(f"the federation wants {want}, and here center={self._settings(True)['center']}.")
        if "epsilon" not in ask:
            return
        if self.privacy is None:
            raise NodeError("only private releases are taken: give epsilon, delta and bound in node config.")
        for key in _PROMISE:
            if (mine := getattr(self.privacy, key)) > ask[key]:
                raise NodeError(f"{key} must be at most {ask[key]:g} in this federation, got {mine:g}.")
        if self.privacy.adjacency != ask["adjacency"]:
            raise NodeError(f"adjacency must be {ask['adjacency']!r}, got {self.privacy.adjacency!r}.")

    def _summary(self, rank: int, center: bool) -> Summary:
        pca = StreamingPCA(rank, center=center, privacy=self.privacy)
        fit_files(pca, open_rows(self.source))
        return pca.summary_ if self.privacy is None else pca.release()

    def _settings(self, center: bool) -> dict[str, Any]:
        if self.privacy is None:
            return {"center": center}
        facts = {key: getattr(self.privacy, key) for key in (*_PROMISE, "adjacency", "mechanism")}
        public = isinstance(self.privacy.center, tuple)
        return facts | {"center": "public" if public else self.privacy.center}

    def _check_kept(self, path: Path, rank: int, center: bool) -> None:
        """What was kept must be what would be made now: above all, not clean where privacy is promised."""
        kind, arrays, facts = model_file.read(path)
        from_file(path, kind, arrays, facts)
        if facts["child"] != self.client:
            raise NodeError(f"its state folder is that of {facts['child']!r}; give every client its own.")
        if facts["settings"] != self._settings(center):
            raise NodeError(
                f"version {self.version} was released with {facts['settings']}, and the settings now are "
                f"{self._settings(center)}; raise version in the node config to release anew."
            )
        if kind == "subspace" and rank > facts["rank"]:
            raise NodeError(
                f"version {self.version} was made for rank={facts['rank']}, and rank={rank} is asked for; "
                "raise version in the node config."
            )


def text_of(config: Mapping[str, Any], key: str) -> str:
    """What a node config says under a key that it must have."""
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise NodeError(f"the node config must have {key} as a text, got {value!r}.")
    return value


def _privacy(config: Mapping[str, Any], state: Path) -> Privacy | None:
    given = {key: config[key] for key in _PRIVATE if key in config}
    if not given:
        return None
    if missing := [key for key in _PROMISE if key not in given]:
        raise NodeError(f"a private node needs epsilon, delta and bound, and has no {', '.join(missing)}.")
    center = given.pop("center", None)
    if isinstance(center, str) and center.endswith(".npy"):
        center = np.load(center, allow_pickle=False)
    return Privacy(**{"ledger": state / "ledger"} | given, center=center)
