"""FederatedPCA: a federation in one process, each owner of rows a client of its own."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
from scipy import sparse

from fedpca import progress
from fedpca._typing import JSON, AnyArray
from fedpca._util.text import join_names, pluralize
from fedpca.backend import backend_of, to_host
from fedpca.backend.threads import n_threads, single_threaded_blas
from fedpca.estimators.base import BasePCA, warn_if_fewer
from fedpca.estimators.rank_rule import rank_rule
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.influence import Influence, captured, influence, influence_warning
from fedpca.federation.message import child_name
from fedpca.federation.pool import Share
from fedpca.federation.robust import RobustRule, check_robust, too_few, what_counts
from fedpca.federation.secure_clients import SecureClients
from fedpca.federation.tree import MergeTree
from fedpca.privacy import Privacy, StepSum
from fedpca.privacy.tracker import PrivateTracker, warn_of_refit
from fedpca.secure.fit import Fit, PrivateFit
from fedpca.secure.plain_fit import PlainFit
from fedpca.secure.rows import OwnerRows
from fedpca.secure.settings import SecureSums
from fedpca.summaries import validation
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.features import (
    FeatureRule,
    LeftOut,
    check_rule,
    columns_of,
    common_names,
    require_names,
)
from fedpca.summaries.merging import check_compatible, intersect, left_out_warning, merge_distinct
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import EnergyBand
from fedpca.summaries.scale_advice import constant_features, dominant_feature, no_scale
from fedpca.summaries.scaling import ScaleLike, ScaleRule, Scaling, check_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView
from fedpca.trackers import TrackerName

_STACK_ENTRIES = 2**24  # 128 MB

_InfluenceInputs = tuple[Mapping[str, Summary], Mapping[str, Share], MergeTree, Subspace]


@dataclass(frozen=True)
class Contribution:
    """The contribution of a client.

    Attributes:
        rows: how many it has.
        captured: the share of its own variance along the model's components, by its summary; None of secure
            sums, in which nobody sees that of a client.
        epsilon: the cost of its release for every one of its rows; None without privacy.
        problem: why it was left out, or "".
        left_out: which of its features were left out, and their share of its variance, or "".
    """

    rows: int
    captured: float | None
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
        scale: as for `StreamingPCA`; "std" and "binomial" are the scale of all clients' rows together. For
            few features it follows from the sum of the clients' moments. For more, if `tracker` is not
            exact, clients first exchange a `Scaling`, for which they read their rows twice: as tables. With
            `privacy`, all clients find "std" together, which needs tables as well.
        secure: a `fedpca.SecureSums`: nobody sees what a client has, only exact sums over all of them. With
            `privacy` the clients share the noise, so that a sum has about as much as one pool of all rows;
            without, `SecureSums(largest=...)` must bound the entries of rows. It needs three clients or more,
            whose rows are tables, a whole number as `n_components`, and the extra "secure".
        features: "same": `fit_clients` leaves out clients whose features are not those of most clients.
            "intersection": the model has the features that all clients have, matched by name, in the order
            of the client whose name comes first; a warning says what was left out.
        fanout: how many summaries are merged at a time, at least; more where they are small.
        robust: "cap", "median" or "trim" for a model that a minority of clients who lie, or whose rows are
            broken, cannot corrupt, if clients are alike; None trusts all. It needs three clients or more.
        max_share: with `robust`, the largest weight of a client, as a share of all; by default no client
            weighs more than the median client.
        n_jobs: how many clients run at once: None for as many as NumPy would use threads, -1 for all cores.

    Attributes:
        model_: the `Subspace` of all rows, with a certificate if they are private.
        contributions_: a `Contribution` per client, by name.
        influence_: what every client has done to the model, by name: a `fedpca.federation.Influence`; empty
            after secure sums.
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
        scale: ScaleLike = None,
        whiten: bool = False,
        tracker: TrackerName = "auto",
        privacy: Privacy | None = None,
        secure: SecureSums | None = None,
        features: FeatureRule = "same",
        fanout: int = 8,
        robust: RobustRule | None = None,
        max_share: float | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.energy = energy
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.tracker = tracker
        self.privacy = privacy
        self.secure = secure
        self.features = features
        self.fanout = fanout
        self.robust = robust
        self.max_share = max_share
        self.n_jobs = n_jobs
        self.random_state = random_state

    _influence_of: _InfluenceInputs | dict[str, Influence] | None = None  # what it follows from, until read

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
        workers = n_threads(self.n_jobs)
        check_rule(self.features)
        check_robust(self.robust, self.max_share)
        if self.secure is not None:
            self._check_secure(clients)
        self._check_ledger(len(clients))
        if isinstance(self.privacy, Privacy):
            warn_of_refit(self.privacy, stacklevel=4)
        if isinstance(self.scale, str):
            check_scale(self.scale, 1)
        if self.secure is not None:
            return self._fit_secure(clients, workers)
        team, sent = self._run(clients, workers)
        fitted, problems = team.members, team.problems
        if not fitted:
            raise ValueError(_nobody(problems))
        sent, lost = self._of_common_features(sent, problems)
        votes = [(each.n_features, each.feature_names, each.count) for each in sent.values()]
        n_features, names = _features_of_most(votes)
        centered = next(iter(sent.values())).centered
        expected = Subspace.empty(n_features, centered=centered, feature_names=names)
        aggregator = Aggregator(
            fanout=self.fanout, expected=expected, robust=self.robust, max_share=self.max_share
        )
        summaries: dict[str, Summary] = {}
        for name, summary in sent.items():
            try:
                check_compatible([expected, summary])
                aggregator.receive(name, 0, summary)
                summaries[name] = summary
            except ValueError as error:
                problems[name] = str(error)
        if not summaries:
            raise ValueError(_nobody(problems))
        if problems:
            warnings.warn(f"left out {len(problems)} of {len(clients)} clients: {problems}", stacklevel=4)
        if text := left_out_warning({repr(name): what for name, what in lost.items()}):
            warnings.warn(text, stacklevel=4)
        counted: Mapping[str, Summary] = summaries
        if self.robust is not None:
            if text := too_few(self.robust, len(summaries)):
                warnings.warn(text, stacklevel=4)
            counted = what_counts(summaries, self.robust, self.max_share)
        merged = _merge_all(list(counted.values()), self.fanout)
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
        self._influence_of = self._influence_inputs(counted, aggregator)
        if text := influence_warning(*self._influence_of):
            warnings.warn(text, stacklevel=4)
        if isinstance(merged, Moments) and isinstance(merged.scale, str):
            team.constant = merged.scaling_of_rows().constant
        source = fitted[next(iter(summaries))]._source
        not_found = source.left_out if isinstance(source, PrivateTracker) else None
        if text := self._scale_warning(view, team.constant, not_found):
            warnings.warn(text, stacklevel=4)
        if text := view.shortfall():
            warnings.warn(text, stacklevel=4)
        elif self.energy is None and self.privacy is None:
            warn_if_fewer(self.n_components, self.n_components_, stacklevel=4)
        return self

    def _check_secure(self, clients: Mapping[str, Any]) -> None:
        """Before anything is read or spent: what secure sums cannot do."""
        if not isinstance(self.secure, SecureSums):
            raise TypeError(f"secure must be a SecureSums or None, got secure={self.secure!r}.")
        self.secure.terms(sorted(clients))
        if self.robust is not None:
            raise ValueError(
                f"robust must be None with secure sums, got robust={self.robust!r}: nobody sees what a "
                "client has, so nobody sees a lie. Choose one of the two."
            )
        if self.features != "same":
            raise ValueError(
                f"features must be 'same' with secure sums, got features={self.features!r}: only sums of the "
                "same features add up. Select the same columns of all clients."
            )
        if self.tracker != "auto":
            raise ValueError(
                f"tracker must be 'auto' with secure sums, got tracker={self.tracker!r}: what is summed "
                "follows from privacy."
            )
        if self.energy is not None or not isinstance(self.n_components, Integral):
            raise ValueError(
                "n_components must be a whole number with secure sums, and energy None, got "
                f"n_components={self.n_components!r}, energy={self.energy!r}."
            )
        if (self.privacy is None) == (self.secure.largest is None):
            raise ValueError(
                "secure sums need privacy=Privacy(...) or, without noise, SecureSums(largest=...), a public "
                f"bound on the entries of rows, and not both; got {self.privacy} and {self.secure}."
            )
        if streams := [repr(name) for name, rows in clients.items() if not _is_table(rows)]:
            raise ValueError(
                f"secure sums read rows once per sum, and those of {join_names(streams, 4)} are batches that "
                "are read once; pass tables."
            )

    def _fit_secure(self, clients: Mapping[str, Any], workers: int) -> Self:
        """As `_fit`, by sums over clients of which nobody sees a part."""
        assert isinstance(self.secure, SecureSums)
        rows, problems = self._owner_rows(clients)
        if not rows:
            raise ValueError(_nobody(problems))
        votes = [(own.n_features, own.feature_names, own.n_rows) for own in rows.values()]
        n_features, names = _features_of_most(votes)
        for name, own in list(rows.items()):
            if own.n_features != n_features or own.feature_names not in (None, names):
                problems[name] = f"its {own.n_features} features are not those of most clients."
                del rows[name]
        study = SecureClients(
            rows, problems, lambda: self._secure_fit(n_features, names), self.secure, self.privacy
        )
        with single_threaded_blas(), ThreadPoolExecutor(workers) as pool:
            result = study.run(pool)
        fit, problems, certificate = result.fit, result.problems, result.model.certificate
        self.n_features_in_ = n_features
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        self._source = view = _secured(fit.view, certificate)
        self._n_rows_seen = sum(rows[name].n_rows for name in result.owners)
        epsilon = None if certificate is None else float(certificate.epsilon)
        self.contributions_ = {
            name: Contribution(rows[name].n_rows, None, epsilon, problems.get(name, ""))
            if name in result.owners
            else Contribution(0, None, problem=problems.get(name, ""))
            for name in sorted(clients)
        }
        self._influence_of = None
        if problems:
            warnings.warn(f"left out {len(problems)} of {len(clients)} clients: {problems}", stacklevel=5)
        constant, not_found, doubt = None, None, ""
        if isinstance(fit, PrivateFit):
            not_found, doubt = fit.left_out, fit.bound_warning()
        elif isinstance(fit, PlainFit):
            constant = fit.constant
        for text in (self._scale_warning(view, constant, not_found), doubt, view.shortfall()):
            if text:
                warnings.warn(text, stacklevel=5)
        if self.privacy is None:
            warn_if_fewer(self.n_components, self.n_components_, stacklevel=5)
        return self

    def _owner_rows(self, clients: Mapping[str, Any]) -> tuple[dict[str, OwnerRows], dict[str, str]]:
        """The rows of clients, and why some have none that can be used."""
        rows, problems = {}, {}
        for name, given in clients.items():
            client = self._client()
            try:
                table = client._validated(given, reset=True)
                table = to_host(table) if backend_of(table).on_device else table
                rows[name] = OwnerRows.of_table(table, client._names())
            except Exception as error:
                problems[name] = f"{type(error).__name__}: {error}"
        return rows, problems

    def _secure_fit(self, n_features: int, names: tuple[str, ...] | None) -> Fit:
        """What all clients have agreed to sum."""
        assert isinstance(self.secure, SecureSums)
        rank = validation.rank(self.n_components, n_features, "n_components")
        scale = check_scale(self.scale, n_features, names)
        if self.privacy is not None:
            return PrivateFit(self.privacy, n_features, rank, scale=scale, feature_names=names)
        assert self.secure.largest is not None
        return PlainFit(
            self.secure.largest, n_features, rank, center=bool(self.center), scale=scale, feature_names=names
        )

    def _scale_warning(self, view: SummaryView, constant: AnyArray | None, not_found: AnyArray | None) -> str:
        """Which features could not be scaled, or else which one dominates, or ""."""
        names = self._names()
        if self.scale is not None:
            return constant_features(constant, names) or no_scale(not_found, names)
        if not view.whole.centered or not view.n_components():
            return ""
        variances = view.feature_variances()
        energies = None if variances is None else variances * view.whole.count
        return dominant_feature(view.summary(), energies, names)

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
            raise ValueError(_nobody(problems))
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

    def _run(self, clients: Mapping[str, Any], workers: int) -> tuple["_Team", dict[str, Summary]]:
        """All clients, as many at once as there are workers: those that learned, and what they send, by name.

        The scale, and what privacy needs to know about the rows, is found by all clients whose rows are at
        hand, together; a center and a bound are found by streams for themselves.
        """
        tables = {name: rows for name, rows in clients.items() if _is_table(rows)}
        with (
            single_threaded_blas(),
            ThreadPoolExecutor(workers) as pool,
            progress.bar("federation", len(clients), "clients") as bar,
        ):
            team = _Team({name: self._client() for name in clients}, pool, bar)
            finds_scale = isinstance(self.scale, str)
            if isinstance(self.privacy, Privacy):
                if finds_scale and len(clients) > 1:
                    _require_tables(clients, self.scale)
                    _require_the_same_names(tables)
                if finds_scale or self.privacy.needs_steps:
                    self._take_private_steps(team, tables)
            elif finds_scale and any(team.each(_needs_scaling, tables).values()):
                _require_tables(clients, self.scale)
                self._share_scale(team, tables)
            sent = team.each(_fit_client, clients, last=True)
        return team, dict(sorted(sent.items()))

    def _take_private_steps(self, team: "_Team", tables: Mapping[str, Any]) -> None:
        waiting = dict(tables)
        while waiting:
            sums = team.each(StreamingPCA.step_sum, waiting)
            columns = {name: self._columns(team.members[name]) for name in sums}
            team.each(StreamingPCA.advance, _pooled(sums, columns))
            waiting = {
                name: waiting[name]
                for name in waiting.keys() & team.members.keys()
                if not team.members[name].is_prepared
            }

    def _share_scale(self, team: "_Team", tables: Mapping[str, Any]) -> None:
        """Let all clients that will merge divide their rows by the scale of all of these."""
        scalings = team.each(_scaling, tables)
        names, columns = self._shared_columns(scalings)
        if not columns:
            return
        rule = cast("ScaleRule", self.scale)
        shared = Scaling.merge(scalings[name].with_columns(own) for name, own in columns.items())
        for name, each in scalings.items():
            scale = None  # of a client that will not merge
            if name in columns:
                scale = each.scale(rule)
                scale[columns[name]] = shared.with_names(names).scale(rule)
            team.members[name].scale = scale
        team.constant = shared.constant

    def _shared_columns(
        self, scalings: Mapping[str, Scaling]
    ) -> tuple[tuple[str, ...] | None, dict[str, AnyArray]]:
        """The names of the features to merge, and where they are, by client; clients that will not merge have
        none."""
        if self.features == "intersection":
            named = {name: each for name, each in scalings.items() if each.feature_names}
            names = common_names(list(named.values()), [repr(name) for name in named]) if named else ()
            return names, {name: columns_of(each.feature_names or (), names) for name, each in named.items()}
        votes = [(each.n_features, each.feature_names, each.observed.max()) for each in scalings.values()]
        n_features, usual = _features_of_most(votes) if votes else (0, None)
        return usual, {
            name: np.arange(n_features)
            for name, each in scalings.items()
            if each.n_features == n_features and each.feature_names in (None, usual)
        }

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
            scale=self.scale,
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
        return Contribution(client.n_samples_seen_, captured(summary, self.components_, self.scale_), epsilon)

    def _facts(self) -> list[str]:
        return [pluralize(sum(part.rows > 0 for part in self.contributions_.values()), "client")]

    @property
    def influence_(self) -> dict[str, Influence]:
        """What every client has done to the model, by name; computed when it is first read."""
        if not self._has_source():
            raise AttributeError("influence_ is learned by fit or fit_clients: call one of them first.")
        if isinstance(self._influence_of, tuple):
            self._influence_of = influence(*self._influence_of)
        return self._influence_of or {}

    def __getstate__(self) -> JSON:
        """Summaries of clients, kept to compute `influence_`, are in no pickle: that may leave."""
        if self._has_source():
            _ = self.influence_
        return cast("JSON", super().__getstate__())

    def _influence_inputs(self, summaries: Mapping[str, Summary], aggregator: Aggregator) -> _InfluenceInputs:
        children, model = aggregator.children, self.model_
        shares = {name: Share(children[name].row_share, children[name].energy_share) for name in summaries}
        tree = MergeTree(max(self.n_components_, 1), self.fanout)
        for name, summary in summaries.items():
            tree.set(name, summary)
        return dict(summaries), shares, tree, model

    @property
    def model_(self) -> Subspace:
        return self.subspace_.truncate(max(self.n_components_, 1))  # rows that do not vary have none


class _Team:
    """The clients of one fit, in threads. Of several, one that fails is left out from then on.

    Attributes:
        members: those that take part.
        problems: why the others do not.
        constant: features that are to be scaled but do not vary.
    """

    def __init__(self, members: dict[str, StreamingPCA], pool: ThreadPoolExecutor, bar: progress.Bar) -> None:
        self.members = members
        self.problems: dict[str, str] = {}
        self.constant: AnyArray | None = None
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
            elif self._alone or isinstance(error, _NoTable) or not isinstance(error, Exception):
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


class _NoTable(ValueError):
    """Rows that can be read once where they have to be read twice: no client is left out for that."""

    def __init__(self, scale: ScaleLike, whose: str) -> None:
        super().__init__(
            f"scale={scale!r} has to be found before rows are learned, and those of {whose} are batches that "
            "are read once; pass tables, or as scale one number per feature, as of Scaling.scale."
        )


def _require_tables(clients: Mapping[str, Any], scale: ScaleLike) -> None:
    streams = [repr(name) for name, rows in clients.items() if not _is_table(rows)]
    if streams:
        raise _NoTable(scale, join_names(streams, 4))


def _require_the_same_names(tables: Mapping[str, Any]) -> None:
    """Before anything is spent: private clients of different columns would find different scales."""
    named = {name: names for name, rows in tables.items() if (names := validation.names_of(rows)) is not None}
    first = next(iter(named), "")
    other = next((name for name, names in named.items() if names != named[first]), None)
    if other is not None:
        raise ValueError(
            f"scale='std' with privacy is found for all clients together, and the columns of {first!r} and "
            f"{other!r} differ; select the same columns of all, in one order, or give public numbers."
        )


def _needs_scaling(client: StreamingPCA, rows: Any) -> bool:
    """Whether a client must know the scale before it begins."""
    return client._needs_scaling(rows.shape[1], backend=backend_of(rows))


def _scaling(client: StreamingPCA, rows: Any) -> Scaling:
    return Scaling.from_rows(client._validated(rows, reset=True)).with_names(client._names())


def _nobody(problems: Mapping[str, str]) -> str:
    """Why there is no model."""
    reasons = sorted(set(problems.values()))
    return f"no client could contribute: {reasons[0] if len(reasons) == 1 else problems}"


def _fit_client(client: StreamingPCA, rows: Any) -> Summary:
    """One client: all its batches, and what it sends, a release if it is private."""
    batches = (rows,) if _is_table(rows) else rows
    if not isinstance(batches, Iterable):
        raise TypeError(f"a client must have rows, or an iterable of batches, got {type(rows).__name__}.")
    empty = True
    for batch in batches:
        client.partial_fit(batch)
        if empty and isinstance(client.scale, str) and client._divisor is not None:
            raise _NoTable(client.scale, "a client")
        empty = False
    if empty:
        raise ValueError("the client has no rows.")
    if client.privacy is not None:
        client._release_for_merging()
    return client.summary_


def _evaluated(view: SummaryView, clients: Mapping[str, tuple[StreamingPCA, Any]]) -> SummaryView:
    """The view with a measure of how good its components are, if all clients can take part in it.

    Their rows must be at hand, and have the features of the model and no others.
    """
    shown, names = view.n_components(), view.whole.feature_names
    able = all(
        client.can_evaluate
        and _is_table(rows)
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
    certificate = certificate.with_spent({ledger.id: ledger.spent() for ledger in ledgers})
    return view.evaluated(certificate.evaluated(first.evaluation(StepSum.pooled(sums), model)))


def _secured(view: SummaryView, certificate: Certificate | None) -> SummaryView:
    """The view of a summary whose certificate states who took part, as that of the published model does."""
    own = view.whole.certificate
    if certificate is None or certificate.secure is None or own is None:
        return view
    own = own.secured(certificate.secure, session=certificate.release or "", time=certificate.time or "")
    return SummaryView(replace(view.whole, certificate=own), view.rule, view.oversample, view.dtype)


def _own_account(privacy: Privacy | None) -> Privacy | None:
    """The privacy settings for one client: another's fit is not a second one of its rows."""
    return replace(privacy) if isinstance(privacy, Privacy) else privacy


def _features_of_most(
    votes: Iterable[tuple[int, tuple[str, ...] | None, float]],
) -> tuple[int, tuple[str, ...] | None]:
    """The number and names of the features of most clients; of as many, of those with more rows."""
    votes = list(votes)
    n_features = _most_frequent((number, rows) for number, _, rows in votes)
    named = [(names, rows) for number, names, rows in votes if number == n_features and names is not None]
    return n_features, _most_frequent(named) if named else None


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
