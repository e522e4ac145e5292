"""The clients of one fit: each an estimator of its own rows, in a thread, and what they find together."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from fedpca import progress
from fedpca._typing import AnyArray, RowsLike
from fedpca.backend import backend_of
from fedpca.estimators.private import PrivatePCA
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.one_process.client_features import (
    require_the_same_names,
    shared_center,
    shared_columns,
)
from fedpca.federation.one_process.client_rows import is_table, streams
from fedpca.parallel import single_threaded_blas
from fedpca.privacy import StepSum
from fedpca.summaries.features import FeatureRule
from fedpca.summaries.scaling import ScaleLike, ScaleRule, Scaling
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView
from fedpca.trackers import Divided

_Input = TypeVar("_Input")
_Result = TypeVar("_Result")
Client = StreamingPCA | PrivatePCA
_SIDE_BY_SIDE = 4  # clients: between products they wait for each other, and 16 on 16 cores take longer


def run_clients(
    clients: Mapping[str, RowsLike], members: dict[str, Client], rule: FeatureRule, workers: int
) -> tuple["Team", dict[str, Summary]]:
    """All clients, some of them at once, which share the workers: who learned, and what they send, by name.

    The scale, and what privacy needs to know about the rows, is found by all clients whose rows are at
    hand, together; a center and a bound are found by streams for themselves.

    Args:
        clients: their rows, by name.
        members: an estimator for each, all with the same settings.
        rule: which features merge.
        workers: how many threads there are.
    """
    tables = {name: rows for name, rows in clients.items() if is_table(rows)}
    settings = next(iter(members.values()))
    scale = settings.scale
    at_once = min(len(members), workers, _SIDE_BY_SIDE)
    for member in members.values():
        if isinstance(member, StreamingPCA):
            member.n_jobs = workers // at_once
    with (
        single_threaded_blas(),
        ThreadPoolExecutor(at_once) as pool,
        progress.bar("federation", len(clients), "clients") as bar,
    ):
        team = Team(members, rule, pool, bar)
        if isinstance(settings, PrivatePCA):
            if isinstance(scale, str) and len(clients) > 1:
                _require_tables(clients, scale)
                require_the_same_names(tables)
            if isinstance(scale, str) or "private" in (settings.bound, settings.center):
                team.take_private_steps(tables)
        elif isinstance(scale, str) and any(team.each(_needs_scaling, tables).values()):
            _require_tables(clients, scale)
            team.share_scale(tables, cast("ScaleRule", scale))
        sent = team.each(_fit_client, clients, last=True)
    return team, dict(sorted(sent.items()))


class Team:
    """The clients of one fit, in threads. Of several, one that fails is left out from then on.

    Attributes:
        members: those that take part.
        problems: why the others do not.
        constant: features that are to be scaled but do not vary.
    """

    def __init__(
        self, members: dict[str, Client], rule: FeatureRule, pool: ThreadPoolExecutor, bar: progress.Bar
    ) -> None:
        self.members = members
        self.problems: dict[str, str] = {}
        self.constant: AnyArray | None = None
        self._alone = len(members) == 1
        self._rule = rule
        self._pool = pool
        self._bar = bar

    def each(
        self,
        task: Callable[[Any, _Input], _Result],
        inputs: Mapping[str, _Input],
        *,
        last: bool = False,
    ) -> dict[str, _Result]:
        """Run a task of every member that has an input; returns the results by name."""
        pending = {
            name: self._pool.submit(task, self.members[name], given)
            for name, given in inputs.items()
            if name in self.members
        }
        results = {}
        for name, future in pending.items():
            error = future.exception()
            if last or error is not None:
                self._bar.advance()
            if error is None:
                results[name] = future.result()
            elif self._alone or isinstance(error, _NoTable) or not isinstance(error, Exception):
                raise error
            else:
                self.problems[name] = f"{type(error).__name__}: {error}"
                del self.members[name]
        return results

    def take_private_steps(self, tables: Mapping[str, RowsLike]) -> None:
        """All rounds of private steps, each ending with the sum over the clients that share a center."""
        waiting = dict(tables)
        while waiting:
            sums = self.each(PrivatePCA.step_sum, waiting)
            columns = {name: shared_center(self.members[name], self._rule) for name in sums}
            self.each(PrivatePCA.advance, _pooled(sums, columns))
            waiting = {
                name: waiting[name]
                for name in waiting.keys() & self.members.keys()
                if not self.members[name].is_prepared
            }

    def share_scale(self, tables: Mapping[str, RowsLike], rule: ScaleRule) -> None:
        """Let all clients that will merge divide their rows by the scale of all of these."""
        scalings = self.each(_scaling, tables)
        names, columns = shared_columns(scalings, self._rule)
        if not columns:
            return
        shared = Scaling.merge(scalings[name].with_columns(own) for name, own in columns.items())
        for name, each in scalings.items():
            scale = None  # of a client that will not merge
            if name in columns:
                scale = each.scale(rule)
                scale[columns[name]] = shared.with_names(names).scale(rule)
            self.members[name].scale = scale
        self.constant = shared.constant


def _pooled(sums: Mapping[str, StepSum], columns: Mapping[str, Hashable]) -> dict[str, StepSum]:
    """The sum over all clients with the same columns, for each of them.

    Clients that do not merge with the others are rejected later, when their summaries meet.
    """
    groups: dict[Hashable, list[str]] = {}
    for name in sums:
        groups.setdefault(columns[name], []).append(name)
    return {
        name: pooled
        for names in groups.values()
        for pooled in [StepSum.pooled([sums[name] for name in names])]
        for name in names
    }


class _NoTable(ValueError):
    """Rows that can be read once where they have to be read twice: no client is left out for that."""

    def __init__(self, scale: ScaleLike, whose: str) -> None:
        super().__init__(
            f"scale={scale!r} has to be found before rows are learned, and those of {whose} are batches that "
            "are read once; pass tables, or as scale one number per feature, as of Scaling.scale."
        )


def _require_tables(clients: Mapping[str, RowsLike], scale: ScaleLike) -> None:
    if whose := streams(clients):
        raise _NoTable(scale, whose)


def _needs_scaling(client: StreamingPCA, rows: RowsLike) -> bool:
    """Whether a client must know the scale before it begins."""
    return client._needs_scaling(rows.shape[1], backend=backend_of(rows))


def _scaling(client: Client, rows: RowsLike) -> Scaling:
    return Scaling.from_rows(client._validated(rows, reset=True)).with_names(client._names())


def _took_own_scale(client: Client) -> bool:
    """Whether a client has divided its rows by the scale of its first batch."""
    return (
        isinstance(client, StreamingPCA)
        and isinstance(client.scale, str)
        and isinstance(client._source, Divided)
    )


def _fit_client(client: Client, rows: RowsLike) -> Summary:
    """One client: all its batches, and what it sends, a release if it is private."""
    batches = (rows,) if is_table(rows) else rows
    if not isinstance(batches, Iterable):
        raise TypeError(f"a client must have rows, or an iterable of batches, got {type(rows).__name__}.")
    empty = True
    for batch in batches:
        client.partial_fit(batch)
        if empty and _took_own_scale(client):
            raise _NoTable(client.scale, "a client")
        empty = False
    if empty:
        raise ValueError("the client has no rows.")
    return client._release_for_merging() if isinstance(client, PrivatePCA) else client.summary_


def evaluated(view: SummaryView, clients: Mapping[str, tuple[Any, RowsLike]]) -> SummaryView:
    """The view with a measure of how good its components are, if all clients can take part in it.

    Their rows must be at hand, and have the features of the model and no others.
    """
    shown, names = view.n_components(), view.whole.feature_names
    able = all(
        client.can_evaluate
        and is_table(rows)
        and client.n_features_in_ == view.whole.n_features
        and client._names() in (None, names)
        for client, rows in clients.values()
    )
    if not shown or not able:
        return view
    model = view.summary().truncate(shown)
    sums = [client.evaluation_sum(rows, model) for client, rows in clients.values()]
    first, _ = next(iter(clients.values()))
    certificate = view.whole.certificate
    assert certificate is not None
    ledgers = [client.ledger_ for client, _ in clients.values() if client.ledger_ is not None]
    certificate = certificate.with_ledgers(ledger.state() for ledger in ledgers)
    return view.evaluated(certificate.evaluated(first.evaluation(StepSum.pooled(sums), model)))


def no_client_left(problems: Mapping[str, str]) -> str:
    """Why there is no model."""
    reasons = sorted(set(problems.values()))
    return f"no client could contribute: {reasons[0] if len(reasons) == 1 else problems}"
