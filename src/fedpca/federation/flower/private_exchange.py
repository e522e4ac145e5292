"""PrivateExchange: a node's part in private steps that the nodes of a run take together, kept in a folder.

Flower may run every request in a new process. So whatever leaves is computed, debited and stored once, and
then served unchanged; a tracker is built anew for every sum, and goes through the sums published so far
without spending or drawing anything.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from fedpca._typing import JSON, Array
from fedpca.backend import batch_slices, dense
from fedpca.errors import NodeError
from fedpca.estimators.base import chunk_rows
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.owner_sum import OwnerSum
from fedpca.federation.flower.exchanges import (
    MAX_SUMS,
    Published,
    Reply,
    changed_names,
    renamed,
    same_sums,
)
from fedpca.federation.flower.live import Live, write
from fedpca.parallel import prefetch
from fedpca.privacy import Privacy, PrivateTracker, StepSum
from fedpca.readers import RowReader
from fedpca.secure.rows import HashedParts
from fedpca.summaries.rank import FixedRank

_log = logging.getLogger(__name__)
_Value = TypeVar("_Value")


class PrivateExchange:
    """One version of one owner's rows in shared private steps.

    Noise follows from a secret key, from the rows as they were summed, and from all that was published
    before: computed again in a copy of all that was kept, a sum is the same to the bit, and after anything
    else its noise is independent. As soon as what it noised is stored, a key is replaced by its hash: what is
    kept never tells the noise of what has left, and it is never in a backup.

    Args:
        folder: of this version; created, for its owner only.
        live: has the key.
        release: where its release is kept, which lies beside.
        client, version: whose it is.
        privacy: the settings, with the ledger that pays.
        rows: all of them, opened for private reading.
        rank: components that the steps are planned for.
        finds_scale: whether the scale of features is one of them.
        settings: what may not change from one request to the next.

    Attributes:
        n_rows: of the version.
    """

    def __init__(
        self,
        folder: Path,
        live: Live,
        release: Path,
        client: str,
        version: int,
        privacy: Privacy,
        rows: RowReader,
        *,
        rank: int,
        finds_scale: bool,
        settings: JSON,
    ) -> None:
        self._folder = folder
        self._live = live
        self._key = _Key(live.folder / f"{folder.name}.json")
        self._release = release
        self._client, self._version = client, version
        self._privacy = privacy
        self._rows = rows
        self._rank = rank
        self._finds_scale = finds_scale
        self._head = self._begun({"settings": settings | {"rank": rank}, "fingerprint": rows.fingerprint()})
        self.n_rows = int(self._head["n_rows"])

    def _begun(self, now: JSON) -> JSON:
        """What the exchange began with: made now, or compared with what was kept.

        As long as nothing was paid for, it may begin again, with other settings or rows.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / "exchange.json"
        kept: JSON = json.loads(path.read_bytes()) if path.exists() else {}
        if not kept or (self._n_needed() == 0 and any(kept[name] != now[name] for name in now)):
            for stale in (self._pooled, self._own(0)):
                stale.unlink(missing_ok=True)
            self._key.erase()
            n_rows = self._rows.n_rows
            if n_rows is None:
                n_rows = sum(len(batch) for batch in self._rows.batches())
            kept = now | {"n_rows": n_rows, "client": self._client}
            write(path, json.dumps(kept).encode())
        if kept["client"] != self._client and kept["fingerprint"] != now["fingerprint"]:
            raise NodeError(
                f"the state folder belongs to client {kept['client']!r:.80}; use one folder per client: set "
                "state in the node config to a folder of its own."
            )
        if changed := changed_names(kept["settings"], now["settings"]):
            raise NodeError(
                f"version {self._version} began its private steps with other settings of {changed} than the "
                f"run and the node config have now; {self._remedy}"
            )
        return kept

    @property
    def _remedy(self) -> str:
        return "increase version in the node config to begin again, which spends anew."

    def reply(self, published: Published) -> Reply:
        """The reply to a request: a noisy sum, the release, or, given a model, the sum that evaluates it."""
        known = self._known().sums[: self._n_needed()]
        if not same_sums(known, published.sums):
            raise NodeError(
                f"version {self._version} took private steps whose published sums differ from those of this "
                f"run; run in the folder where they were published, or {self._remedy}"
            )
        self._forget()
        tracker = self._tracker(published)
        if len(published.sums) > len(known):
            write(self._pooled, Published(sums=published.sums, rank=self._rank).encode())
        if published.model is not None:
            return Reply("sum", self._evaluation(tracker, published))
        if tracker.is_prepared:
            return Reply("release", self._released(tracker, published))
        number = len(published.sums)
        is_lost = not self._own(number).exists() and self._is_lost(f"step {number}")
        if is_lost or (number and not self._own(0).exists()):
            _log.info("fedpca: a private step is taken without this node: it waits for the result.")
            return Reply("waits", self._client.encode())
        return Reply("sum", self._step(number, published))

    # --- what was published ---

    @property
    def _pooled(self) -> Path:
        return self._folder / "published.safetensors"

    def _n_needed(self) -> int | None:
        """How many of the sums that are known have decided on something that was paid for; None for all."""
        if self._release.exists() or self._is_lost("release"):
            return None
        paid = [number for number in range(1, MAX_SUMS) if self._has_paid(number)]
        return max(paid, default=0)

    def _has_paid(self, number: int) -> bool:
        return self._own(number).exists() or self._is_lost(f"step {number}")

    def _known(self) -> Published:
        if not self._pooled.exists():
            return Published()
        return Published.decode(self._pooled.read_bytes(), self._pooled)

    def _tracker(self, published: Published, purpose: str = "") -> PrivateTracker:
        """A tracker that went through what was published, for one purpose, or to look what comes next."""
        drawing: JSON = {}
        if purpose:
            bound_to = f"{purpose}\n".encode() + self._decisive(published)
            drawing = {
                "key": hashlib.blake2b(bound_to, key=self._key.secret, digest_size=32).digest(),
                "bound_to": self._digest,
            }
        tracker = PrivateTracker(
            self._rows.n_features,
            FixedRank(min(self._rank, self._rows.n_features)),
            self._privacy,
            scale="std" if self._finds_scale else None,
            dtype=self._rows.dtype,
            feature_names=self._rows.feature_names,
            **drawing,
        )
        try:
            for number, pooled in enumerate(published.sums):
                tracker.replay(pooled, paid=self._has_paid(number))
        except ValueError as error:  # all of it is public
            raise NodeError(f"the published sums do not fit the settings of this node: {error}") from error
        return tracker

    def _decisive(self, published: Published) -> bytes:
        """All that a sum depends on besides the rows and the settings."""
        return Published(sums=published.sums, rank=self._rank, model=published.model).encode()

    # --- what leaves ---

    def _own(self, number: int) -> Path:
        return self._folder / f"step-{number}.safetensors"

    def _step(self, number: int, published: Published) -> bytes:
        path = self._own(number)
        if not path.exists():

            def step(tracker: PrivateTracker) -> bytes:
                return self._encoded(tracker.step_sum(self._parts(), self.n_rows))

            if number:
                write(path, self._once(f"step {number}", published, step))
                self._forget()
            else:  # the number of rows, which is public and costs nothing
                write(path, step(self._tracker(published)))
        return renamed(path.read_bytes(), self._client)

    def _released(self, tracker: PrivateTracker, published: Published) -> bytes:
        if not self._release.exists():

            def release(tracker: PrivateTracker) -> bytes:
                tracker.update(self._parts(), self.n_rows)
                return Message(self._client, self._version, tracker.release()).encode()

            contents = self._once("release", published, release)
            head = self._head["settings"] | {"fingerprint": self._head["fingerprint"]}
            write(self._release.with_suffix(".json"), json.dumps(head).encode())
            write(self._release, contents)
            self._forget()
            if not tracker.can_evaluate:
                self._key.erase()
        return renamed(self._release.read_bytes(), self._client)

    def _evaluation(self, tracker: PrivateTracker, published: Published) -> bytes:
        model = published.model
        assert model is not None
        if not self._release.exists():
            raise NodeError(f"version {self._version} has no release that could be evaluated.")
        if model.n_features != self._rows.n_features or not tracker.can_evaluate:
            raise NodeError("this model cannot be evaluated: other features, or no known length of rows.")
        digest = hashlib.sha256(self._decisive(published)).hexdigest()[:32]
        path = self._folder / f"evaluation-{digest}.safetensors"
        if not path.exists():
            if self._has_evaluated:
                raise NodeError(f"version {self._version} evaluated another model already: it does so once.")

            def evaluate(tracker: PrivateTracker) -> bytes:
                return self._encoded(tracker.evaluation_sum(self._parts(), self.n_rows, model))

            write(path, self._once("evaluation", published, evaluate))
            self._forget()
        return renamed(path.read_bytes(), self._client)

    @property
    def _has_evaluated(self) -> bool:
        return any(self._folder.glob("evaluation-*.safetensors"))

    def _forget(self) -> None:
        """Replace the key by its hash once for every noise that is stored; erase it after the last."""
        if self._has_evaluated:
            self._key.erase()
        else:
            self._key.advance(self._n_stored)

    @property
    def _n_stored(self) -> int:
        """How many noisy sums and releases are stored, but for the evaluation."""
        return sum(self._own(number).exists() for number in range(1, MAX_SUMS)) + self._release.exists()

    def _encoded(self, own: StepSum) -> bytes:
        content = OwnerSum(own, (self._rows.n_features, self._rows.feature_names))
        return Message(self._client, self._version, content).encode()

    def _once(
        self, purpose: str, published: Published, compute: Callable[[PrivateTracker], _Value]
    ) -> _Value:
        """Compute something that is paid for, unless an earlier process may have paid for it already."""
        if self._rows.fingerprint() != self._head["fingerprint"]:
            raise self._changed()
        if self._is_lost(purpose):
            raise NodeError(
                f"the {purpose} of version {self._version} was paid for and lost when this node was stopped; "
                f"go on without it, or {self._remedy}"
            )
        if (n_debits := self._n_debits()) < self._n_stored:
            raise NodeError(
                f"the ledger must have a debit for each of the {self._n_stored} noisy sums that version "
                f"{self._version} has sent, and has {n_debits}: bring back the one that paid for them."
            )
        self._live.enter(self._version)
        self._key.open(self._n_stored)
        write(self._marker(purpose), json.dumps(self._n_debits()).encode())
        return compute(self._tracker(published, purpose))

    def _is_lost(self, purpose: str) -> bool:
        """Whether something was debited since this purpose began, and nothing was stored."""
        marker = self._marker(purpose)
        return marker.exists() and json.loads(marker.read_bytes()) != self._n_debits()

    def _marker(self, purpose: str) -> Path:
        return self._folder / f"begun {purpose}"

    def _n_debits(self) -> int:
        return len(self._privacy.open_ledger().entries)

    # --- the rows ---

    def _parts(self) -> Iterator[Array]:
        """All rows, which must be those of the sums before; raises, before any debit, if they are not."""
        hashed = HashedParts(self._read())
        yield from hashed
        self._check_rows(hashed)

    def _read(self) -> Iterator[Array]:
        n_rows = 0
        with prefetch(self._rows.batches()) as batches:
            for batch in batches:
                n_rows += len(batch)
                for part in batch_slices(len(batch), chunk_rows(self._rows.n_features)):
                    yield dense(batch.rows[part])
        if n_rows != self.n_rows:
            raise self._changed()

    def _check_rows(self, hashed: HashedParts) -> None:
        """Note the digest of the rows, with the key; raise if something was paid for by others."""
        if (rows := hashed.digest()) != self._key.rows:
            if self._n_needed() != 0:
                raise self._changed()
            self._key.note(rows)

    def _digest(self) -> bytes:
        return self._key.rows.encode()

    def _changed(self) -> NodeError:
        return NodeError(
            f"the rows changed since version {self._version} began its private steps; {self._remedy}"
        )


class _Key:
    """The secret that the noise to come follows from, and the digest of the rows, in one file.

    Args:
        path: for its owner only; not in a folder that is backed up.

    Attributes:
        secret: 32 bytes.
        rows: the digest, in hex; "" before any rows were summed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, n_stored: int) -> None:
        """Read it, or draw it, if nothing is stored whose noise followed from it."""
        if not self._path.exists():
            if n_stored:
                raise NodeError(
                    "the key of the noise of this version is missing, and noisy sums were made with it; "
                    "increase version in the node config to begin again, which spends anew."
                )
            self._write(secrets.token_bytes(32), 0, "")
        self._read()
        if self._n_used != n_stored:
            raise NodeError(
                "noisy sums of this version are missing in the state folder: it is incomplete, or comes from "
                "a backup. Bring it back, or increase version in the node config to begin again, which "
                "spends anew."
            )

    def advance(self, n_stored: int) -> None:
        """Go on to the key that comes after so many; none of those before follows from it."""
        if not self._path.exists():
            return
        self._read()
        while self._n_used < n_stored:
            after = hashlib.blake2b(b"next", key=self.secret, digest_size=32).digest()
            self._write(after, self._n_used + 1, self.rows)

    def note(self, rows: str) -> None:
        """The digest of the rows."""
        self._write(self.secret, self._n_used, rows)

    def erase(self) -> None:
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        found: JSON = json.loads(self._path.read_bytes())
        self.secret, self._n_used, self.rows = bytes.fromhex(found["key"]), found["used"], found["rows"]

    def _write(self, secret: bytes, n_used: int, rows: str) -> None:
        write(self._path, json.dumps({"key": secret.hex(), "used": n_used, "rows": rows}).encode())
        self._read()
