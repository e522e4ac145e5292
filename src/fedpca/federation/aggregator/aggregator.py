"""Aggregator: the latest summary of every child, and the model of all of them."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self, TypeVar

from fedpca._util.text import sanitize
from fedpca.errors import OutdatedRoster, SummaryRejected
from fedpca.federation.aggregator import membership
from fedpca.federation.aggregator.admission import (
    Limits,
    check_private,
    check_scaling,
    check_sender,
    constructed_again,
)
from fedpca.federation.aggregator.agreement import INTERSECTION, Agreement
from fedpca.federation.aggregator.children_merge import ChildrenMerge
from fedpca.federation.aggregator.influence import Influence, influence, influence_warning, row_shares
from fedpca.federation.aggregator.journal import Journal
from fedpca.federation.aggregator.kept_merge import Merged, MergeSettings, keep, read_kept
from fedpca.federation.aggregator.message import Message, child_name, require_summary
from fedpca.federation.aggregator.robust import Robust, RobustRule, check_known
from fedpca.federation.aggregator.store import (
    FolderStore,
    HistoryEvent,
    MemoryStore,
    State,
    Store,
)
from fedpca.privacy import Privacy
from fedpca.summaries import validation
from fedpca.summaries.agreement import check_compatible, check_scales
from fedpca.summaries.feature_names import quoted
from fedpca.summaries.features import FeatureRule, LeftOut, check_rule, left_out, require_names, select
from fedpca.summaries.scaling import in_words
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trust.roster import Roster, require_roster

_Result = TypeVar("_Result")
_MAX_REASON = 500  # characters
_NO_LIMITS = Limits()


@dataclass(frozen=True)
class ChildInfo:
    """What a child contributes.

    Attributes:
        version: of its latest message.
        count: its number of rows.
        row_share: its share of all rows.
        left_out: which of its features were left out, and their share of its variance, or "".
    """

    version: int
    count: float
    row_share: float
    left_out: str = ""


class Aggregator:
    """The latest summary of every child. The model depends on these alone.

    The order of messages, duplicates and delays do not change it. An aggregator can itself be a child of
    another one: send `summary()` with `version`.

    Args:
        rank: directions of the model; all by default.
        store: a folder, or a `Store`, that keeps all accepted messages: a restart with the same store gives
            the same model, bit for bit. None keeps them in memory. States in it that break the rules below
            are quarantined.
        expected: reject summaries that do not merge with this one, such as
            `Subspace.empty(n_features, about=About(names=...))`; if it has a scale, all must have the same.
            None: the first summary decides on the features, on centering and on the scale.
        features: "same" rejects summaries of other features. "intersection" needs `expected`, with feature
            names, which are those of the model: children match them by name, in any order; what else a child
            has is left out, also of the store, and a child that lacks one is rejected. So no child decides
            which features the model has.
        privacy: reject summaries that are less private than this, or larger than its bound allows.
        limits: `Limits(least_rows=..., max_rows=..., max_rms=...)`: reject a child that claims fewer or more
            rows, or longer ones.
        roster: reject summaries that no member of the study has signed, or whose settings are not the agreed
            ones: `rank`, `privacy` and the names of `expected` are then the roster's. None: senders are not
            verified.
        fanout: how many summaries are merged at a time.
        robust: "cap", "median" or "trim" for a model that a minority of dishonest children cannot corrupt, if
            children are alike, or a `Robust` with the largest weight of a child; None trusts all. Every
            change merges all children again, and children must know all features. With fewer than three
            children only the caps apply.

    >>> import numpy as np
    >>> aggregator = Aggregator(rank=1)
    >>> rows = np.random.default_rng(0).normal(size=(20, 3)) * [3, 1, 1]
    >>> aggregator.receive("north", 1, Subspace.from_rows(rows[:8]))
    True
    >>> aggregator.receive("south", 1, Subspace.from_rows(rows[8:]))
    True
    >>> aggregator.receive("north", 1, Subspace.from_rows(rows[:8]))        # again: nothing changes
    False
    >>> aggregator.model()
    Subspace(rank=1, n_features=3, count=20, explained=91.5%)
    """

    def __init__(
        self,
        rank: int | None = None,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        expected: Summary | None = None,
        features: FeatureRule = "same",
        privacy: Privacy | None = None,
        limits: Limits = _NO_LIMITS,
        roster: Roster | None = None,
        fanout: int = 8,
        robust: Robust | RobustRule | None = None,
    ) -> None:
        self.roster = require_roster(roster)
        if roster is not None:
            rank, expected, privacy = membership.agreed(roster, rank, expected, privacy)
        if rank is not None:
            validation.integer(rank, "rank", at_least=1)
        self.rank = rank
        self.robust = Robust.of(robust)
        self.fanout = validation.integer(fanout, "fanout", at_least=2)
        self.expected = expected
        self.features = features
        if check_rule(features):
            _require_expected_names(expected)
        self.privacy = privacy
        self.limits = limits
        self.store: Store
        if store is None:
            self.store = MemoryStore()
        elif isinstance(store, str | os.PathLike):
            self.store = FolderStore(store)
        else:
            self.store = store
        self._lock = threading.RLock()
        self._recorded: tuple[int, Subspace] | None = None
        self._journal = Journal(self.store)
        self._load()  # without a lock: who only reads a store stops nobody, and changes nothing

    def _load(self) -> None:
        """Take the states of the store in the order in which they came, each checked like a new message.

        Those that most others do not merge with come last: they must not decide on the features.
        """
        states = self.store.states()  # first: if it cannot be read, nothing changes
        if self.roster is not None:
            membership.check_store(self.roster, states.values(), self.store.roster)
        self._states: dict[str, State] = {}
        self._quarantined = {child: state for child, state in states.items() if state.quarantined}
        self._agreement = Agreement()
        self._merge = ChildrenMerge(self.rank, self.fanout, self.robust)
        self._model: Subspace | None = None
        self._journal.remind_of_quarantine()
        shapes = Counter(_shape(state) for state in states.values() if state.message.summary is not None)
        usual = shapes.most_common(1)[0][0] if shapes else None
        for state in sorted(states.values(), key=lambda state: (_shape(state) != usual, state.version)):
            if state.quarantined:
                continue
            if state.message.summary is not None:
                try:
                    if self.roster is not None:
                        membership.check_kept(self.roster, state, reduced=self.features != "same")
                    state = self._checked(state)
                except (MemoryError, OutdatedRoster):  # it once knew a newer roster: nobody is at fault
                    raise
                except Exception as error:
                    self._quarantine(state, _reason(error))
                    continue
            self._keep(state)

    def _begin_write(self) -> bool:
        """Become the one writer; what another wrote since the store was read is read now, if anything."""
        changed = self.store.lock()
        if changed:
            self._load()
        if self.roster is not None:
            self.store.remember(self.roster.hash)
        return changed

    def close(self) -> None:
        """Let another aggregator write to the store. This one may go on: its next write locks it again."""
        with self._lock:
            self.store.close()

    def __enter__(self) -> Self:
        """Lock the store at once, and not with the first write."""
        with self._lock:
            self._begin_write()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- messages ---

    def receive(
        self,
        child: str,
        version: int,
        summary: Summary,
        *,
        sender: str = "",
        warning: str = "",
    ) -> bool:
        """Accept the summary of a child if its version is newer than the one before.

        Args:
            child: its name.
            version: a whole number from 0.
            summary: of all rows of the child so far.
            sender: who sent it, as the network knows them, such as a key. A name belongs to the first sender
                that used it, until the child is withdrawn; with a roster it is its member's, whoever sends.
            warning: what the history is to say about it, if it is accepted.

        Returns:
            Whether it is newer; then it is in the store. Older versions are ignored or, with a roster,
            rejected, and so is another summary of the same version.

        Raises:
            SummaryRejected: with the reason, if it is not valid. The child's previous version is kept.
            BlockingIOError: another aggregator writes to the store.
        """
        try:
            named = Message(child, version, None)
        except (TypeError, ValueError) as error:
            raise SummaryRejected(_reason(error)) from error
        try:
            message = replace(named, content=constructed_again(require_summary(summary)))
        except Exception as error:
            raise self._rejected(named, error) from error
        return self.receive_message(message, sender=sender, warning=warning)

    def receive_message(self, message: Message, *, sender: str = "", warning: str = "") -> bool:
        """`receive`, of a message from `Message.decode`: its signature counts, and a roster needs it."""
        try:
            sender = sender and child_name(sender, "sender")
        except (TypeError, ValueError) as error:
            raise SummaryRejected(_reason(error)) from error
        child, version = message.child, message.version
        with self._lock:
            self._begin_write()
            known = self._states.get(child)
            aside = self._quarantined.get(child)  # its version may come again, and none before it
            try:
                count = require_summary(message.content).count
                if self.roster is None:
                    if known is not None:
                        check_sender(child, known.sender, sender)
                        membership.check_still_signed(known, message)
                else:
                    sender = ""  # who repeats what a member has signed must not own its name
                    membership.check_received(self.roster, known or aside, message, self._of_model_features)
                if known is not None and version <= known.message.version:
                    return False
                if self.roster is None and aside is not None and version < aside.message.version:
                    return False
                state = self._checked(State(message, self._next_version(), sender))
            except Exception as error:  # anyone may have sent it: whatever is wrong, the others go on
                raise self._rejected(message, error) from error
            self._put(state)
            warning = sanitize(warning, _MAX_REASON)
            self._journal.accepted(child, version, count, warning=warning, left_out=state.left_out)
        return True

    def _rejected(self, message: Message, error: Exception) -> SummaryRejected:
        """Note in the history why a message is rejected."""
        child, version, reason = message.child, message.version, _reason(error)
        with self._lock:
            self._begin_write()
            self._journal.rejected(child, version, reason)
        return SummaryRejected(f"{sanitize(child, 100)!r}, version {version}: {reason}")

    def withdraw(self, child: str) -> bool:
        """Remove a child's contribution from the model; only a newer version brings it back, of any sender.

        Returns:
            Whether there was one.
        """
        child = child_name(child)
        with self._lock:
            self._begin_write()
            last = self._states.get(child)
            if last is None or last.message.summary is None:
                return False
            version, count = last.message.version, last.message.summary.count
            self._put(State(Message(child, version, None), self._next_version()))
            self._journal.withdrawn(child, version, count)
        return True

    def record(self) -> bool:
        """Log the model in the history, and how far its components turned since the last one logged.

        Call it at the start and end of a run, and from time to time in between. It costs a merge.

        Returns:
            Whether there was a new model to log.

        >>> aggregator = Aggregator(rank=1)
        >>> aggregator.receive("north", 1, Subspace.from_rows([[1.0, 0.0], [-1.0, 0.0]]))
        True
        >>> aggregator.record(), aggregator.record()
        (True, False)
        >>> aggregator.receive("south", 1, Subspace.from_rows([[0.0, 3.0], [0.0, -3.0]]))
        True
        >>> aggregator.record()
        True
        >>> event = aggregator.history[-1]
        >>> event.what, event.count, event.children, event.explained, round(event.angle, 4)
        ('model', 4.0, 2, 0.9, 1.5708)
        """
        with self._lock:
            if not self._agreement:
                return False
            try:
                model = self.model()
            except ValueError:  # no child is left
                return False
            version = self.version
            before, self._recorded = self._recorded, (version, model)
            if before is None:  # after a restart the model is that of the store
                known = self._journal.has_model(version)
            else:
                known = before[0] == version
            if not known and self._begin_write():
                return self.record()
            if not known:
                warning = self._influence(influence_warning, model)
                last = None if before is None else before[1]
                self._journal.recorded(model, version, len(self._agreement), before=last, warning=warning)
                if isinstance(self.store, FolderStore) and self.roster is None:  # nobody signs a merge
                    keep(self.store, self._settings, self._merged_now())
            return not known

    @classmethod
    def merged_in(
        cls,
        store: str | os.PathLike[str],
        rank: int,
        *,
        fanout: int = 8,
        limits: Limits = _NO_LIMITS,
        roster: Roster | None = None,
        robust: Robust | RobustRule | None = None,
    ) -> Merged:
        """What an aggregator with this store has merged; nothing in the store changes.

        Without a roster, states are read and merged only if the writer has not kept the merge when it last
        recorded the model, or something was changed since, in the store or here. With one they always are: a
        merge has no signature.

        Args:
            store: a folder.
            rank, fanout, limits, roster, robust: see above.
        """
        if roster is not None:
            rank = membership.agreed(roster, rank, None, None)[0] or rank
        settings = MergeSettings(rank, fanout, limits, Robust.of(robust))
        found = read_kept(FolderStore(store), settings) if roster is None else None
        return found or cls(store=store, roster=roster, **vars(settings))._merged_now()

    @property
    def _settings(self) -> MergeSettings:
        return MergeSettings(self.rank, self.fanout, self.limits, self.robust)

    def _merged_now(self) -> Merged:
        version = self.version  # first: without a culprit it grows
        summary = self.summary() if self._agreement else None
        return Merged(version, len(self._agreement), len(self._states), summary)

    def _put(self, state: State) -> None:
        try:
            self.store.put(state)  # first: memory must never be ahead of the disk
        except BaseException:
            self._load()  # nor behind it: the write may have failed after it took effect
            raise
        self._keep(state)

    def _keep(self, state: State) -> None:
        child = state.message.child
        message = replace(state.message)  # without the file, which the store has
        self._states[child] = replace(state, message=message, signature=state.signed_by)
        self._quarantined.pop(child, None)
        self._set(child, state.message.summary)

    def _set(self, child: str, summary: Summary | None) -> None:
        self._agreement.set(child, summary)
        self._merge.set(child, summary)
        self._model = None

    def _next_version(self) -> int:
        """Larger than all before, here and, unless the clock was set back, in a store that was lost."""
        return max(self.version + 1, time.time_ns() // 1_000_000)

    def _quarantine(self, state: State, reason: str) -> None:
        """Go on without a child; its state is set aside, and its next message may bring it back."""
        message = state.message
        kept = State(
            Message(message.child, message.version, None),
            self._next_version(),
            signature=state.signed_by,
            quarantined=True,
        )
        self._states.pop(message.child, None)  # first: if the store fails, the others still count
        self._quarantined[message.child] = kept
        self._set(message.child, None)
        self._journal.quarantine(message, reason, kept)

    def _checked(self, state: State) -> State:
        """The state of a child, which has a summary, of the model's features; raises if it breaks a rule."""
        message = state.message
        assert message.summary is not None
        summary, lost = self._of_model_features(message.summary)
        self._check(message.child, summary)
        if summary is message.summary:
            return state
        reduced = replace(message, content=summary)
        return replace(state, message=reduced, left_out=str(lost or ""), signature=state.signed_by)

    def _of_model_features(self, summary: Summary) -> tuple[Summary, LeftOut | None]:
        """The summary to merge, and what was left out of the one that came."""
        if self.features == "same":
            return summary, None
        wanted = _require_expected_names(self.expected)
        known = set(require_names(summary.feature_names, "the summary"))
        if missing := [name for name in wanted if name not in known]:
            raise ValueError(
                f"the summary must have all expected features, and lacks {quoted(missing)}; fit them, or "
                "expect fewer."
            )
        chosen = select(summary, wanted)
        return chosen, left_out(summary, chosen)

    def _check(self, child: str, summary: Summary) -> None:
        """Raise for a summary that breaks a rule, or does not merge with those of the other children."""
        self.limits.check(summary)
        check_scaling(summary)
        if self.roster is not None:
            membership.check_agreed(self.roster, child, summary)
        if self.robust is not None:
            check_known(summary)
        if self.expected is not None:
            check_compatible([self.expected, summary], INTERSECTION)
            if self.expected.scale is not None:
                check_scales([self.expected, summary])
        if self.privacy is not None:
            check_private(summary, self.privacy)
        self._agreement.check(child, summary, self.privacy)

    # --- the children together ---

    @property
    def children(self) -> Mapping[str, ChildInfo]:
        """All children that contribute now, by name."""
        with self._lock:
            shares = row_shares(self._agreement.summaries)
            found = {}
            for child in sorted(shares):
                state = self._states[child]
                assert state.message.summary is not None
                found[child] = ChildInfo(
                    state.message.version, state.message.summary.count, shares[child], state.left_out
                )
            return MappingProxyType(found)

    @property
    def versions(self) -> Mapping[str, int]:
        """The latest version of every child, including withdrawn ones."""
        with self._lock:
            return MappingProxyType(
                {name: state.message.version for name, state in sorted(self._states.items())}
            )

    @property
    def senders(self) -> Mapping[str, str]:
        """The sender that each name belongs to, of those that were received with one."""
        with self._lock:
            return {child: state.sender for child, state in self._states.items() if state.sender}

    @property
    def not_heard_from(self) -> tuple[str, ...]:
        """Members of the roster who do not contribute now; none without a roster."""
        with self._lock:
            return () if self.roster is None else membership.not_heard_from(self.roster, self._states)

    @property
    def quarantined(self) -> Mapping[str, str]:
        """States in the store that do not count, by the name of the child, and why.

        They could not be read, broke the rules, or did not merge with the others.
        """
        return MappingProxyType(self.store.quarantined())

    @property
    def history(self) -> list[HistoryEvent]:
        """The latest events, oldest first: messages accepted and rejected, children withdrawn and
        quarantined, models recorded."""
        return self.store.history()

    @property
    def version(self) -> int:
        """Grows with every change of the children; the same after a restart."""
        return self.store.version

    def model(self) -> Subspace:
        """The components of all rows behind the latest summaries."""
        with self._lock:
            if self._model is None:
                self._model = self._without_culprits(self._merged_subspace)
            return self._model

    def summary(self) -> Summary:
        """What to send to a parent: more directions than the model has, or exact moments."""
        with self._lock:
            return self._without_culprits(self._merge.merged)

    def influence(self) -> Mapping[str, Influence]:
        """What every child has done to the model, by name: how far the model turns without it, and more.

        For many children at the cost of a few merges, and not of one per child.
        """
        with self._lock:
            return MappingProxyType(self._influence(influence, self.model()) if self._agreement else {})

    def _influence(self, compute: Callable[..., _Result], model: Subspace) -> _Result:
        rows = row_shares(self._agreement.summaries)
        return compute(self._merge.counted, rows, self._merge.tree, model)

    def _without_culprits(self, compute: Callable[[], _Result]) -> _Result:
        """The result; children on whose account there is none are quarantined."""
        while self._agreement:
            try:
                return compute()
            except (OSError, MemoryError):
                raise
            except Exception as error:
                child = self._culprit()
                self._quarantine(self._states[child], f"does not merge with the others: {_reason(error)}")
        raise ValueError("no child has contributed yet.")

    def _merged_subspace(self) -> Subspace:
        merged = self._merge.merged()
        return merged.subspace(self.rank and min(self.rank, merged.n_features))

    def _culprit(self) -> str:
        """The child on whose account there is no merge."""
        came = {child: self._states[child].version for child in self._agreement.summaries}
        return self._merge.culprit(sorted(came, key=came.__getitem__))

    def __repr__(self) -> str:
        children = self.children
        rows = sum(child.count for child in children.values())
        return f"Aggregator({len(children)} children, {rows:g} rows)"


def _require_expected_names(expected: Summary | None) -> tuple[str, ...]:
    if expected is None or expected.feature_names is None:
        raise ValueError(
            "features='intersection' needs expected= with the names of the model's features, so that no "
            "child decides on them: expected=Subspace.empty(2, about=About(names=('age', 'dose')))."
        )
    return require_names(expected.feature_names, "expected")


def _shape(state: State) -> tuple[int, bool, str] | None:
    """Number of features, whether they are centered, and how scaled; None for a withdrawn child."""
    summary = state.message.summary
    return None if summary is None else (summary.n_features, summary.centered, in_words(summary.scale))


def _reason(error: Exception) -> str:
    return sanitize(str(error) or type(error).__name__, _MAX_REASON)
