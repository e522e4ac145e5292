"""FederatedPCA: a federation in one process, each owner of rows a client of its own."""

import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy import sparse

from fedpca import progress
from fedpca._typing import Array
from fedpca.backend.threads import single_threaded_blas
from fedpca.estimators.base import BasePCA, warn_if_fewer
from fedpca.estimators.rank_rule import rank_rule
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.message import child_name
from fedpca.privacy import Privacy, StepSum
from fedpca.privacy.tracker import warn_of_refit
from fedpca.summaries import validation
from fedpca.summaries.features import FeatureRule, LeftOut, check_rule, require_names
from fedpca.summaries.merging import check_compatible, intersect, left_out_warning, merge_distinct
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import EnergyBand
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView
from fedpca.trackers import TrackerName

_STACK_ENTRIES = 2**24  # 128 MB


@dataclass(frozen=True)
class Contribution:
    """The contribution of a client.

    Attributes:
        rows: how many it has.
        captured: the share of its own variance along the model's components, by its summary.
        epsilon: the cost of its release for every one of its rows; None without privacy.
        problem: why it was left out, or "".
        left_out: which of its features were left out, and their share of its variance, or "".
    """

    rows: int
    captured: float
    epsilon: float | None = None
    problem: str = ""
    left_out: str = ""


class FederatedPCA(BasePCA):
    """Principal components of the rows of many clients, none of which sees another's rows.

    Every client runs a `StreamingPCA` over its own rows, in a thread, and sends its summary; the summaries
    merge into the components of all rows, means included. With `privacy`, every client's summary is
    differentially private by itself, and the noise of all clients adds up.

    The settings are those of `StreamingPCA`.

    Args:
        features: "same": `fit_clients` leaves out clients whose features are not those of most clients.
            "intersection": the model has the features that all clients have, matched by name, in the order
            of the client whose name comes first; a warning says what was left out.
        fanout: how many summaries are merged at a time, at least; more where they are small.
        n_jobs: how many clients run at once; None for as many as there are processors.

    Attributes:
        model_: the `Subspace` of all rows, with a certificate if they are private.
        contributions_: a `Contribution` per client, by name.
        components_, explained_variance_, ...: those of `StreamingPCA`.

    >>> from sklearn.datasets import load_digits
    >>> images, digits = load_digits(return_X_y=True)
    >>> pca = FederatedPCA(n_components=10).fit(images, groups=digits)      # one client per digit
    >>> pca.transform(images).shape, len(pca.contributions_)
    ((1797, 10), 10)
    >>> print(f"{pca.explained_variance_ratio_.sum():.3f}")
    0.738
    """

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        energy: EnergyBand | tuple[float, float] | None = None,
        center: bool = True,
        whiten: bool = False,
        tracker: TrackerName = "auto",
        privacy: Privacy | None = None,
        features: FeatureRule = "same",
        fanout: int = 8,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.energy = energy
        self.center = center
        self.whiten = whiten
        self.tracker = tracker
        self.privacy = privacy
        self.features = features
        self.fanout = fanout
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Learn from X, shape (n_samples, n_features), whose rows belong to clients.

        Args:
            groups: the name of the client of every row, shape (n_samples,); None for one client, "all".
        """
        with self._rollback_on_error():
            X = self._validated(X, reset=True)
            if groups is None:
                return self._fit({"all": X})
            groups = np.asarray(groups)
            if groups.shape != (X.shape[0],):
                raise ValueError(
                    f"groups must name the client of every row, {X.shape[0]}, got shape {groups.shape}."
                )
            clients, members = _distinct(groups)
            return self._fit({name: X[members == i] for name, i in _named(clients).items()})

    def fit_clients(self, clients: Mapping[str, Any]) -> Self:
        """Learn from clients that each have their own rows.

        Args:
            clients: by name, rows of shape (n_samples, n_features) (an array, a frame, sparse), or any
                iterable of batches, which is read once. One of several clients that fails is left out, with
                a warning; so is one whose features are not those of most clients or, with
                `features="intersection"`, have no names.

        >>> rows = np.random.default_rng(0).normal(size=(100, 5))
        >>> pca = FederatedPCA(2).fit_clients({"north": rows[:60], "south": [rows[60:80], rows[80:]]})
        >>> pca.contributions_["south"].rows
        40
        """
        if not isinstance(clients, Mapping) or not clients:
            raise TypeError("clients must be a mapping from names to rows, with at least one client.")
        with self._rollback_on_error():
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
            return self._fit(dict(zip(_named(clients), clients.values(), strict=True)))

    def _fit(self, clients: Mapping[str, Any]) -> Self:
        workers = os.cpu_count() or 1
        if self.n_jobs is not None:
            workers = validation.integer(self.n_jobs, "n_jobs", at_least=1)
        check_rule(self.features)
        self._check_ledger(len(clients))
        if isinstance(self.privacy, Privacy):
            warn_of_refit(self.privacy, stacklevel=4)
        fitted, sent, problems = self._run(clients, workers)
        if not fitted:
            raise ValueError(f"no client could contribute: {problems}.")
        sent, lost = self._of_common_features(sent, problems)
        expected = _features_of_most(sent.values())
        aggregator = Aggregator(fanout=self.fanout, expected=expected)
        summaries: dict[str, Summary] = {}
        for name, summary in sent.items():
            try:
                check_compatible([expected, summary])
                aggregator.receive(name, 0, summary)
                summaries[name] = summary
            except ValueError as error:
                problems[name] = str(error)
        if not summaries:
            raise ValueError(f"no client could contribute: {problems}.")
        if problems:
            warnings.warn(f"left out {len(problems)} of {len(clients)} clients: {problems}", stacklevel=4)
        if text := left_out_warning({repr(name): what for name, what in lost.items()}):
            warnings.warn(text, stacklevel=4)
        merged = _merge_all(list(summaries.values()), self.fanout)
        self.n_features_in_ = merged.n_features
        if merged.feature_names is not None:
            self.feature_names_in_ = np.array(merged.feature_names, dtype=object)
        rule = rank_rule(self.n_components, self.energy, merged.n_features)
        dtype = np.result_type(*(fitted[name]._source.dtype for name in summaries))
        view = SummaryView(merged, rule, "auto", dtype)
        if isinstance(self.privacy, Privacy):
            view = _evaluated(view, {name: (fitted[name], clients[name]) for name in summaries})
        self._source = view
        self._n_rows_seen = sum(fitted[name].n_samples_seen_ for name in summaries)
        self.contributions_ = {
            name: replace(
                self._contribution(fitted.get(name), summaries.get(name), problems.get(name, "")),
                left_out=str(lost.get(name) or ""),
            )
            for name in sorted(clients)
        }
        if text := view.shortfall():
            warnings.warn(text, stacklevel=4)
        elif self.energy is None and self.privacy is None:
            warn_if_fewer(self.n_components, self.n_components_, stacklevel=4)
        return self

    def _of_common_features(
        self, sent: dict[str, Summary], problems: dict[str, str]
    ) -> tuple[dict[str, Summary], dict[str, LeftOut | None]]:
        """What clients sent, of the features to merge, and what each has lost; adds to the problems."""
        if self.features == "same":
            return sent, {}
        named = {}
        for name, summary in sent.items():
            try:
                require_names(summary.feature_names, "the client")
                named[name] = summary
            except ValueError as error:
                problems[name] = str(error)
        if not named:
            raise ValueError(f"no client could contribute: {problems}.")
        chosen, lost = intersect(list(named.values()), [repr(name) for name in named])
        return dict(zip(named, chosen, strict=True)), dict(zip(named, lost, strict=True))

    def _check_ledger(self, n_clients: int) -> None:
        """Reject one ledger for several clients: they are different people, each with a budget of its own."""
        if n_clients > 1 and isinstance(self.privacy, Privacy) and self.privacy.ledger is not None:
            raise ValueError(
                f"a ledger is the account of one client, and there are {n_clients}; leave out ledger= for an "
                "account per client in memory, or fit one StreamingPCA per client, each with its own ledger, "
                "and merge the releases."
            )

    def _run(
        self, clients: Mapping[str, Any], workers: int
    ) -> tuple[dict[str, StreamingPCA], dict[str, Summary], dict[str, str]]:
        """All clients, as many at once as there are workers: those that learned, what they send, by name,
        and why others did not.

        What privacy needs to know about the rows is found by all clients whose rows are at hand, together;
        streams find their own.
        """
        with (
            single_threaded_blas(),
            ThreadPoolExecutor(workers) as pool,
            progress.bar("federation", len(clients), "clients") as bar,
        ):
            team = _Team({name: self._client() for name in clients}, pool, bar)
            if isinstance(self.privacy, Privacy) and self.privacy.needs_steps:
                waiting = {name: rows for name, rows in clients.items() if _is_table(rows)}
                while waiting:
                    sums = team.each(StreamingPCA.step_sum, waiting)
                    columns = {name: self._columns(team.members[name]) for name in sums}
                    team.each(StreamingPCA.advance, _pooled(sums, columns))
                    waiting = {
                        name: waiting[name]
                        for name in waiting.keys() & team.members.keys()
                        if not team.members[name].is_prepared
                    }
            sent = team.each(_fit_client, clients, last=True)
        return team.members, dict(sorted(sent.items())), team.problems

    def _columns(self, client: StreamingPCA) -> Hashable:
        """What clients that share a center have in common: their number of features or, if others are merged
        too, their names."""
        if self.features == "intersection" and hasattr(client, "feature_names_in_"):
            return tuple(client.feature_names_in_)
        return client.n_features_in_

    def _client(self) -> StreamingPCA:
        return StreamingPCA(
            self.n_components,
            energy=self.energy,
            center=self.center,
            whiten=self.whiten,
            tracker=self.tracker,
            privacy=_own_account(self.privacy),
            random_state=self.random_state,
        )

    def _contribution(
        self, client: StreamingPCA | None, summary: Summary | None, problem: str
    ) -> Contribution:
        if client is None or summary is None:
            return Contribution(0, 0.0, problem=problem)
        certificate = summary.certificate
        epsilon = None if certificate is None else float(certificate.epsilon)
        return Contribution(client.n_samples_seen_, _captured(summary, self.components_), epsilon)

    @property
    def model_(self) -> Subspace:
        return self.subspace_.truncate(max(self.n_components_, 1))  # rows that do not vary have none


class _Team:
    """The clients of one fit, in threads. Of several, one that fails is left out from then on.

    Attributes:
        members: those that take part.
        problems: why the others do not.
    """

    def __init__(self, members: dict[str, StreamingPCA], pool: ThreadPoolExecutor, bar: progress.Bar) -> None:
        self.members = members
        self.problems: dict[str, str] = {}
        self._alone = len(members) == 1
        self._pool = pool
        self._bar = bar

    def each(
        self, task: Callable[[StreamingPCA, Any], Any], inputs: Mapping[str, Any], *, last: bool = False
    ) -> dict[str, Any]:
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
            elif self._alone or not isinstance(error, Exception):
                raise error
            else:
                self.problems[name] = f"{type(error).__name__}: {error}"
                del self.members[name]
        return results


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


def _fit_client(client: StreamingPCA, rows: Any) -> Summary:
    """One client: all its batches, and what it sends, a release if it is private."""
    batches = (rows,) if _is_table(rows) else rows
    if not isinstance(batches, Iterable):
        raise TypeError(f"a client must have rows, or an iterable of batches, got {type(rows).__name__}.")
    empty = True
    for batch in batches:
        client.partial_fit(batch)
        empty = False
    if empty:
        raise ValueError("the client has no rows.")
    if client.privacy is not None:
        client._release_for_merging()
    return client.summary_


def _evaluated(view: SummaryView, clients: Mapping[str, tuple[StreamingPCA, Any]]) -> SummaryView:
    """The view with a measure of how good its components are, if all clients can take part in it."""
    shown = view.n_components()
    able = all(client.can_evaluate and _is_table(rows) for client, rows in clients.values())
    if not shown or not able:
        return view
    model = view.summary().truncate(shown)
    sums = [client.evaluation_sum(rows, model) for client, rows in clients.values()]
    first, _ = next(iter(clients.values()))
    certificate = view.whole.certificate
    assert certificate is not None
    return view.evaluated(certificate.evaluated(first.evaluation(StepSum.pooled(sums), model)))


def _own_account(privacy: Privacy | None) -> Privacy | None:
    """The privacy settings for one client: another's fit is not a second one of its rows."""
    return replace(privacy) if isinstance(privacy, Privacy) else privacy


def _features_of_most(summaries: Iterable[Summary]) -> Summary:
    """An empty summary with the features of most clients; of as many, those with more rows."""
    summaries = list(summaries)
    n_features = _most_frequent((summary.n_features, summary.count) for summary in summaries)
    named = [each for each in summaries if each.n_features == n_features and each.feature_names is not None]
    names = _most_frequent((each.feature_names, each.count) for each in named) if named else None
    return Subspace.empty(n_features, centered=summaries[0].centered, feature_names=names)


def _most_frequent(votes: Iterable[tuple[Any, float]]) -> Any:
    """The value with most votes; of as many, the one whose votes weigh most, and then the first."""
    counted: dict[Any, tuple[int, float]] = {}
    for value, weight in votes:
        number, total = counted.get(value, (0, 0.0))
        counted[value] = number + 1, total + weight
    return max(counted, key=counted.__getitem__)


def _merge_all(summaries: list[Summary], fanout: int) -> Summary:
    """The merge of all, without loss, at least `fanout` at a time, and as many as fit in memory.

    Nothing is truncated on the way, so that one large factorization costs less than many small ones.
    """
    while len(summaries) > 1:
        groups: list[list[Summary]] = [[]]
        entries = 0
        for summary in summaries:
            if len(groups[-1]) >= fanout and entries > _STACK_ENTRIES:
                groups.append([])
                entries = 0
            groups[-1].append(summary)
            entries += (1 + getattr(summary, "rank", 0)) * summary.n_features  # moments are only added up
        summaries = [merge_distinct(group) for group in groups]
    return summaries[0]


def _named(clients: Iterable[Any]) -> dict[str, int]:
    """The names of clients, as text, and their positions."""
    names: dict[str, int] = {}
    for i, client in enumerate(clients):
        name = child_name(str(client), "the name of a client")
        if names.setdefault(name, i) != i:
            raise ValueError(
                f"clients must have different names, and two are called {name!r}; rename one of them."
            )
    return names


def _distinct(groups: Any) -> tuple[list[Any], Any]:
    """The distinct groups, and the position among them of the group of every row."""
    mixed = groups.dtype.kind == "O"
    missing = np.flatnonzero([_is_missing(group) for group in groups] if mixed else groups != groups)
    if len(missing):
        raise ValueError(
            f"groups must name the client of every row, and {len(missing)} of {len(groups)} have none, the "
            f"first at index {missing[0]}; name their client, or leave these rows out."
        )
    if not mixed:
        distinct, members = np.unique(groups, return_inverse=True)
        return list(distinct), members
    positions: dict[Any, int] = {}  # groups of several types cannot be sorted
    members = np.array([positions.setdefault(group, len(positions)) for group in groups])
    return list(positions), members


def _is_missing(group: Any) -> bool:
    try:
        return group is None or bool(group != group)
    except TypeError:  # pandas.NA has no truth
        return True


def _is_table(rows: Any) -> bool:
    return sparse.issparse(rows) or getattr(rows, "ndim", None) == 2 or hasattr(rows, "columns")


def _captured(summary: Summary, components: Array) -> float:
    """The share of a summary's variance along components."""
    if isinstance(summary, Moments):
        along = float(np.einsum("ij,jk,ik->", components, summary.scatter, components))
    else:
        scaled = summary.singular_values[:, None] * (summary.components @ components.T)
        along = float(np.vdot(scaled, scaled))
    return along / summary.total if summary.total > 0 else 0.0
