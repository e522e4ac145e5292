"""Node: one owner of rows. Each version is released once and then served unchanged."""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from fedpca._typing import JSON, Array
from fedpca._util.files import is_url
from fedpca._util.locks import file_lock
from fedpca._util.option_text import parse_character, split_names
from fedpca.disclosure.policy import NO_POLICY, Policy
from fedpca.errors import NodeConfigError, NodeError, SecureError
from fedpca.estimators.files import fit_files
from fedpca.estimators.private import PrivatePCA
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.aggregator.message import Message
from fedpca.federation.flower.exchanges import (
    Published,
    Reply,
    changed_names,
    needs_scaling,
    renamed,
)
from fedpca.federation.flower.gate import Gate
from fedpca.federation.flower.live import Live, write
from fedpca.federation.flower.member import KEYS, Membership, run_settings
from fedpca.federation.flower.private_exchange import PrivateExchange
from fedpca.federation.flower.request import Request, check_name, config_error, public_reason
from fedpca.federation.flower.secure_node import SecureNode
from fedpca.privacy import Privacy
from fedpca.readers import RowReader, open_rows
from fedpca.readers.dialect import Dialect
from fedpca.secure.session import Session
from fedpca.summaries import validation
from fedpca.summaries.scaling import ScaleLike, Scaling, same_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trust.agreement import PROMISE, of_privacy, require_agreed

_log = logging.getLogger(__name__)
_PLAIN = ("client-id", "source", "state", "version", "min-rank", *KEYS, "policy")
_REQUIRED = ("epsilon", "delta")  # for privacy
_PRIVATE = (*PROMISE, "center", "ledger")
_FLAGS = ("numeric-only", "header")
_READING: dict[str, Callable[[Any], Any]] = {  # of the rows, as text or flags
    "columns": split_names,
    "drop": split_names,
    "numeric-only": bool,
    "header": bool,
    "delimiter": parse_character,
    "decimal": str,
    "thousands": parse_character,
    "na-values": split_names,
    "comment": str,
    "encoding": str,
    "skip-lines": int,
    "sheet": str,
    "width": int,
    "n-rows": int,
}
_NUMBERS = ("skip-lines", "width", "n-rows")
_DIALECT = ("delimiter", "decimal", "thousands", "na_values", "comment", "encoding", "skip_lines")


@dataclass(frozen=True)
class Node:
    """An owner of rows in a federation.

    Attributes:
        client: the name of the owner, whatever machine its releases come from.
        source: its rows: a file, folder or URL that `fedpca.readers.open_rows` reads.
        state: a folder for its releases, one per version, and its ledger.
        version: which release to send; a new one is made only for a new version.
        privacy: of its rows; None sends summaries without noise.
        min_rank: the fewest components a release is made for, whatever a run requests: the first request
            decides on the rank of a version, and another one may cost a second budget.
        reading: arguments of `open_rows`: which columns are read, and how text is written.
        membership: in a study with a roster, whose runs alone it answers, with signed replies; None answers
            any run.
        policy: of the owner, on what may leave; None checks nothing.
    """

    client: str
    source: Path | str
    state: Path
    version: int = 1
    privacy: Privacy | None = None
    min_rank: int = 1
    reading: Mapping[str, Any] = field(default_factory=dict)
    membership: Membership | None = None
    policy: Policy | None = None

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
        client, source = require_text(config, "client-id"), require_text(config, "source")
        state = Path(
            require_text(config, "state") if is_url(source) else config.get("state") or f"{source}.fedpca"
        )
        try:
            version = validation.integer(config.get("version", 1), "version", at_least=0)
            min_rank = validation.integer(config.get("min-rank", 1), "min-rank", at_least=1)
            reading, privacy = _reading(config), _privacy(config, state)
            membership = Membership.from_config(config, client)
            policy = Policy.load(require_text(config, "policy")) if "policy" in config else None
        except (TypeError, ValueError, OSError) as error:
            raise config_error(error) from error
        rows = source if is_url(source) else Path(source)
        return cls(client, rows, state, version, privacy, min_rank, reading, membership, policy)

    def reply(self, request: Request, published: Published | None = None) -> Reply:
        """The reply to a request: the release or, before and after it, what all nodes have to know together.

        What is kept is unsigned, and a reply is signed when it leaves: after a change of roster or key the
        same release is sent again, under the new one.

        Args:
            request: what the run states; of a run with a roster, `member.to_request` is part of it.
            published: what other nodes found so far.
        """
        if self.policy is None:
            _log.info("fedpca: %s", NO_POLICY)
        reply = self._unsigned(request, published or Published())
        return reply if self.membership is None else self.membership.sign(reply)

    def secure_reply(
        self, request: Request, board: Mapping[str, bytes], known: Collection[str]
    ) -> dict[str, bytes]:
        """The messages to send in a run of secure sums: kept first, and the same whenever they are sent.

        Args:
            request: see `reply`.
            board: what is new on the board of the session; see `SecureNode.reply`.
            known: names of messages that the server has.
        """
        if self.membership is None:
            raise NodeError(
                "a run of secure sums needs key and roster, and this node has neither; set both in the node "
                "config."
            )
        if self.policy is None:
            _log.info("fedpca: %s", NO_POLICY)
        self.membership.check(request)
        self.membership.check_secure(request, secure=True)
        roster = self.membership.signer.roster
        agreed, stated = (of_privacy(each) for each in (Privacy.agreed(roster.settings), self.privacy))
        where = f"the secure sums of study {roster.study!r:.80}"
        require_agreed(agreed, stated, where, "correct the node config", error=NodeError)
        with self._locked():
            self._live.enter(self.version, Session(roster, board["session"]).id)
            member = SecureNode(
                self._live.folder / "secure",
                self.version,
                self.membership.signer,
                None if self.privacy is None else self._spending(self.privacy),
                self._gate,
                self._opened,
            )
            return member.reply(board, known)

    def _unsigned(self, request: Request, published: Published) -> Reply:
        scale = self._check(request)
        if self._takes_steps(scale):
            return self._private_reply(request, published)
        if (
            published.scale is None
            and scale != "none"
            and needs_scaling(self._opened().n_features, request["rank"])
        ):
            return Reply("scaling", self._scaling())
        return Reply("release", self.release(request, published.scale))

    def release(self, request: Request, divisor: Array | None = None) -> bytes:
        """The release of this version, an encoded `Message`, unsigned, where no exchange has to come before.

        The first request reads the rows and, with privacy, debits the ledger. Later ones get the same bytes.

        Args:
            request: see `reply`.
            divisor: the scale of all nodes, where a request asks for one that moments do not carry.
        """
        rank, scale = validation.integer(request["rank"], "rank", at_least=1), self._check(request)
        settings_path = self._release_path.with_suffix(".json")
        now = self._settings(request)
        with self._locked():  # a second request waits for the release of the first
            if not self._release_path.exists():
                made_for = max(rank, self.min_rank)
                rows = self._opened()
                if divisor is not None:
                    self._check_unchanged(rows)
                    self._check_divisor(rows, divisor)
                self._gate.check_rows(rows)
                head = {"rank": made_for, "fingerprint": rows.fingerprint()}
                write(settings_path, json.dumps(head | now).encode())
                summary = self._summary(rows, made_for, bool(request["center"]), scale, divisor)
                self._gate.check(summary, lambda: rows)
                write(self._release_path, Message(self.client, self.version, summary).encode())
            contents = renamed(self._release_path.read_bytes(), self.client)
            settings = json.loads(settings_path.read_bytes()) if settings_path.exists() else {}
            self._check_kept(settings, rank, now)
            kept = Message.decode(contents, self._release_path)
            self._check_leaving(kept)
        if divisor is not None and kept.summary is not None and not same_scale(divisor, kept.summary.scale):
            raise NodeError(
                f"version {self.version} was released with another scale than that of this run; run in the "
                "folder of that scale, or increase version in the node config to make a new release."
            )
        return contents

    def public_message(self, error: Exception) -> str:
        """What others may learn about an error: no path, and nothing that was read from the rows."""
        if isinstance(error, SecureError):  # about what is on the board, and what is kept of it
            return str(error).replace(str(self._live.folder), "its folder")
        return public_reason(error)

    def _check(self, request: Request) -> str:
        """Raise, before anything is read or spent, if the release would be rejected; returns the scale."""
        check_name(request, self.client)
        if self.membership is not None:
            self.membership.check(request)
            self.membership.check_privacy(self.privacy)
            self.membership.check_secure(request, secure=False)
        run, stated = run_settings(request), of_privacy(self.privacy)
        remedy = "correct the node config, or the run config"
        if self.privacy is not None:
            require_agreed({"center": run["center"]}, stated, "the run", remedy, error=NodeError)
            if run["scale"] == "binomial":
                raise NodeError("scale='binomial' cannot be found privately; use 'std', or none.")
        promise = {name: run[name] for name in PROMISE if name in run}
        if promise and self.privacy is None:
            raise NodeError(
                "the run accepts only private releases: set epsilon and delta in the node config."
            )
        limits = ("epsilon", "delta", "bound")
        require_agreed(promise, stated, "the run", remedy, at_most=limits, error=NodeError)
        if self._takes_steps(run["scale"]):
            self._check_steps(run, stated)
        return str(run["scale"])

    def _takes_steps(self, scale: str) -> bool:
        """Whether something is to be found privately, with all other nodes, before a release."""
        return self.privacy is not None and (self.privacy.needs_steps or scale != "none")

    def _check_steps(self, run: JSON, stated: JSON) -> None:
        """Raise unless this node takes the same private steps as all others."""
        if "epsilon" not in run:
            raise NodeError(
                f"nodes find what is not public together: set epsilon={stated['epsilon']:g} "
                f"delta={stated['delta']:g} in the run config, or bound and center in this node config."
            )
        remedy = "nodes find together what is not public, and need the same settings: correct the node config"
        steps = run | {"centering": "private" if run["center"] else "none"}
        require_agreed(steps, stated, "the run", remedy, error=NodeError)
        if self.min_rank > run["rank"]:
            raise NodeError(
                f"private steps are planned for the rank of the run, {run['rank']}, which is below "
                f"min-rank={self.min_rank}; take min-rank out of the node config."
            )

    # --- exchanges before a release ---

    def _private_reply(self, request: Request, published: Published) -> Reply:
        """See `PrivateExchange`."""
        assert self.privacy is not None
        rank = validation.integer(request["rank"], "rank", at_least=1)
        now = self._settings(request)
        with self._locked():
            if self._release_path.exists():
                settings = json.loads(self._release_path.with_suffix(".json").read_bytes())
                self._check_kept(settings, rank, now)
            exchange = PrivateExchange(
                self.state / f"exchange-{self.version}",
                self._live,
                self._release_path,
                self.client,
                self.version,
                self._spending(self.privacy),
                self._opened(),
                rank=published.rank or rank,
                finds_scale=now["scale"] != "none",
                settings=now,
            )
            self._gate.check_steps(exchange.n_rows)
            reply = exchange.reply(published)
            if reply.kind == "release":
                self._check_leaving(Message.decode(reply.contents, self._release_path))
            return reply

    def _scaling(self) -> bytes:
        """The scaling of the rows of this version, as an encoded `Message`."""
        path = self.state / f"scaling-{self.version}.safetensors"
        with self._locked():
            if not path.exists():
                rows = self._opened()
                self._gate.check_rows(rows)
                scaling = Scaling.empty(rows.n_features)
                for batch in rows.batches():
                    scaling = Scaling.merge([scaling, Scaling.from_rows(batch.rows)])
                scaling = scaling.with_names(rows.feature_names)
                write(path.with_suffix(".json"), json.dumps({"fingerprint": rows.fingerprint()}).encode())
                self._gate.check(scaling, lambda: rows)
                write(path, Message(self.client, self.version, scaling).encode())
            contents = path.read_bytes()
            kept = Message.decode(contents, path)
            if kept.child != self.client:
                raise _of_another(kept.child)
            self._gate.check(kept.of(Scaling), self._opened)
            return contents

    def _check_unchanged(self, rows: RowReader) -> None:
        """Raise if the rows are no longer those whose scaling was sent."""
        path = self.state / f"scaling-{self.version}.json"
        if not path.exists():
            _log.info("fedpca: the scale of this run was found without the rows of this node.")
        elif json.loads(path.read_bytes())["fingerprint"] != rows.fingerprint():
            raise NodeError(
                f"the rows changed since version {self.version} sent their scale; increase version in the "
                "node config."
            )

    def _check_divisor(self, rows: RowReader, divisor: Array) -> None:
        if len(divisor) != rows.n_features:
            raise NodeError(
                f"the scale of this run is of {len(divisor)} features, and the rows have {rows.n_features}; "
                "select them with columns in the node config."
            )

    # --- the release ---

    def _spending(self, privacy: Privacy) -> Privacy:
        """The settings with the ledger that pays, which a member signs."""
        return privacy if self.membership is None else privacy.with_signed_ledger(self.membership.signer.key)

    @property
    def _live(self) -> Live:
        return Live(self.state)

    @property
    def _release_path(self) -> Path:
        return self.state / f"release-{self.version}.safetensors"

    @property
    def _gate(self) -> Gate:
        return Gate(self.policy, self.privacy, self.state / f"counts-{self.version}.json")

    def _check_leaving(self, release: Message) -> None:
        if release.summary is not None:
            self._gate.check(release.summary, self._opened)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self.state / "lock"):
            yield

    def _opened(self) -> RowReader:
        rows = open_rows(self.source, private=self.privacy is not None, **self.reading)
        if self.membership is not None:
            self.membership.check_features(rows)
        return rows

    def _summary(
        self, rows: RowReader, rank: int, center: bool, scale: str, divisor: Array | None
    ) -> Summary:
        rule = None if scale == "none" else scale
        by = cast("ScaleLike", rule) if divisor is None else divisor
        pca: StreamingPCA | PrivatePCA
        if self.privacy is None:
            pca = StreamingPCA(rank, center=center, scale=by)
        else:  # nobody could pool an evaluation of what one node alone released
            settings = self._spending(self.privacy).settings | {"evaluate": False}
            pca = PrivatePCA(rank, scale=by, **settings)
        fit_files(pca, rows)
        return pca.summary_

    def _settings(self, request: Request) -> JSON:
        """What a release depends on, besides the rows, the rank, and what other nodes found."""
        settings: JSON = {_key(name): value for name, value in self.reading.items()}
        settings["scale"] = request["scale"]
        if self.privacy is None:
            return settings | {"center": bool(request["center"])}
        return settings | of_privacy(self.privacy)

    def _check_kept(self, settings: JSON, rank: int, now: JSON) -> None:
        """Raise if a new release would differ; above all, if this one has no noise and privacy is set.

        A client may have another name by now: what was released of the same rows is sent under that.
        """
        kept = Message.decode(self._release_path.read_bytes(), self._release_path)
        made_with = dict(settings)
        made_for, rows = made_with.pop("rank", 0), made_with.pop("fingerprint", "")
        if kept.child != self.client and (self.privacy is None or rows != self._opened().fingerprint()):
            raise _of_another(kept.child)
        if changed := changed_names(made_with, now):
            raise NodeError(
                f"version {self.version} was released with other settings of {changed} than the run and the "
                "node config have now; increase version in the node config to make a new release."
            )
        if isinstance(kept.summary, Subspace) and rank > made_for:
            raise NodeError(
                f"version {self.version} was released for rank={made_for}, but the run requests rank={rank}; "
                "increase version in the node config to make a new release."
            )


def _of_another(client: str) -> NodeError:
    return NodeError(
        f"the state folder belongs to client {client!r:.80}; use one folder per client: set state in the "
        "node config to a folder of its own."
    )


def require_text(config: Mapping[str, object], key: str) -> str:
    """The value of a key that a node config must have."""
    value = config.get(key)
    if not isinstance(value, str) or not value:
        rule = f"{key} must be a non-empty string in the node config"
        raise NodeConfigError(f"{rule}, got {value!r}.", rule)
    return value


def _reading(config: Mapping[str, object]) -> dict[str, Any]:
    """Arguments of `open_rows`."""
    for key in _READING.keys() & config.keys():
        kind: type = bool if key in _FLAGS else int if key in _NUMBERS else str
        if type(config[key]) is not kind:
            wanted = {bool: "true or false", int: "a whole number", str: "text"}[kind]
            rule = f"{key} must be {wanted} in the node config"
            raise NodeConfigError(f"{rule}, got {config[key]!r}.", rule)
    reading = {key.replace("-", "_"): parse(config[key]) for key, parse in _READING.items() if key in config}
    Dialect(**{name: value for name, value in reading.items() if name in _DIALECT})  # rejects what cannot be
    return reading


def _key(name: str) -> str:
    return name.replace("_", "-")


def _privacy(config: Mapping[str, Any], state: Path) -> Privacy | None:
    given = {key: config[key] for key in _PRIVATE if key in config}
    if not given:
        return None
    if missing := [key for key in _REQUIRED if key not in given]:
        raise NodeError(f"a private node needs {', '.join(_REQUIRED)}; missing: {', '.join(missing)}.")
    center = given.pop("center", "private")
    if isinstance(center, str) and center.endswith(".npy"):
        center = np.load(center, allow_pickle=False)
    elif center == "none":
        center = None
    return Privacy(**{"ledger": state / "ledger"} | given, center=center)
