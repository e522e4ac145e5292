"""FederatedPCA: a federation in one process, each owner of rows a client of its own."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from fedpca._typing import JSON, AnyArray, ArrayLike, RowsLike
from fedpca._util.text import pluralize
from fedpca.estimators.base import BasePCA, warn_if_fewer
from fedpca.estimators.private import PrivatePCA
from fedpca.estimators.settings import rank_rule
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.influence import (
    Influence,
    captured,
    influence,
    influence_warning,
    row_shares,
)
from fedpca.federation.aggregator.robust import Robust, RobustRule, what_counts
from fedpca.federation.aggregator.tree import MergeTree
from fedpca.federation.one_process import secure_estimator
from fedpca.federation.one_process.client_features import common_features, features_of_most
from fedpca.federation.one_process.client_rows import distinct, named
from fedpca.federation.one_process.client_team import Client, evaluated, no_client_left, run_clients
from fedpca.parallel import n_threads
from fedpca.privacy import Privacy
from fedpca.privacy.tracker import warn_of_refit
from fedpca.secure.settings import SecureSums
from fedpca.summaries.about import About
from fedpca.summaries.agreement import check_compatible
from fedpca.summaries.features import (
    FeatureRule,
    LeftOut,
    check_rule,
    left_out_warning,
)
from fedpca.summaries.merging import merge_distinct
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import EnergyBand
from fedpca.summaries.scale_advice import constant_features, dominant_feature, no_scale
from fedpca.summaries.scaling import ScaleLike, check_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView
from fedpca.trackers import Tracker, TrackerName

_STACK_ENTRIES = 2**24  # 128 MB

_InfluenceInputs = tuple[Mapping[str, Summary], Mapping[str, float], MergeTree, Subspace]


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
    merge into the components of all rows, means included. With `privacy` it runs a `PrivatePCA`: every
    client's summary is differentially private by itself, and the noise of all clients adds up.

    The settings are those of `StreamingPCA`.

    Args:
        scale: as for `StreamingPCA`; "std" and "binomial" are the scale of all clients' rows together. For
            few features it follows from the sum of the clients' moments. For more, if `tracker` is not
            exact, clients first exchange a `Scaling`, for which they read their rows twice: as tables. With
            `privacy`, all clients find "std" together, which needs tables as well.
        privacy: a `Privacy`, to make all that leaves a client differentially private. Its `center` replaces
            this one. None for no privacy.
        secure: a `fedpca.SecureSums`: nobody sees what a client has, only exact sums over all of them. With
            `privacy` the clients share the noise, so that a sum has about as much as one pool of all rows;
            without, `SecureSums(largest=...)` must bound the entries of rows. It needs three clients or more,
            whose rows are tables, a whole number as `n_components`, and the extra "secure".
        features: "same": `fit_clients` leaves out clients whose features are not those of most clients.
            "intersection": the model has the features that all clients have, matched by name, in the order
            of the client whose name comes first; a warning says what was left out.
        fanout: how many summaries are merged at a time, at least; more where they are small.
        robust: "cap", "median" or "trim" for a model that a minority of clients who lie, or whose rows are
            broken, cannot corrupt, if clients are alike, or a `fedpca.federation.Robust` with the largest
            weight of a client; None trusts all. It needs three clients or more.
        n_jobs: threads: up to four run a client each, and the others help them. None for as many as
            NumPy would use, -1 for all cores.

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
        tracker: TrackerName | type[Tracker] = "auto",
        privacy: Privacy | None = None,
        secure: SecureSums | None = None,
        features: FeatureRule = "same",
        fanout: int = 8,
        robust: Robust | RobustRule | None = None,
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
        self.n_jobs = n_jobs
        self.random_state = random_state

    _influence_of: _InfluenceInputs | dict[str, Influence] | None = None  # what it follows from, until read

    def fit(self, X: RowsLike, y: object = None, groups: ArrayLike | None = None) -> Self:
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
            clients, members = distinct(groups)
            return self._fit({name: X[members == i] for name, i in named(clients).items()})

    def fit_clients(self, clients: Mapping[str, RowsLike]) -> Self:
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
            return self._fit(dict(zip(named(clients), clients.values(), strict=True)))

    def _fit(self, clients: Mapping[str, RowsLike]) -> Self:
        workers = n_threads(self.n_jobs)
        self._check_settings(clients)
        if self.secure is not None:
            return self._fit_secure(clients, workers)
        team, sent = run_clients(clients, {name: self._client() for name in clients}, self.features, workers)
        fitted, problems = team.members, team.problems
        lost: dict[str, LeftOut | None] = {}
        if self.features == "intersection":
            sent, lost = common_features(sent, problems)
        summaries = self._accepted(sent, problems)
        if not summaries:
            raise ValueError(no_client_left(problems))
        if problems:
            warnings.warn(f"left out {len(problems)} of {len(clients)} clients: {problems}", stacklevel=4)
        if text := left_out_warning({repr(name): what for name, what in lost.items()}):
            warnings.warn(text, stacklevel=4)
        counted: Mapping[str, Summary] = summaries
        if (robust := Robust.of(self.robust)) is not None:
            if text := robust.too_few(len(summaries)):
                warnings.warn(text, stacklevel=4)
            counted = what_counts(summaries, robust)
        merged = _merge_all(list(counted.values()), self.fanout)
        self.n_features_in_ = merged.n_features
        if merged.feature_names is not None:
            self.feature_names_in_ = np.array(merged.feature_names, dtype=object)
        rule = rank_rule(self.n_components, self.energy, merged.n_features)
        dtype = np.result_type(*(fitted[name]._source.dtype for name in summaries))
        view = SummaryView(merged, rule, "auto", dtype)
        if self.privacy is not None:
            view = evaluated(view, {name: (fitted[name], clients[name]) for name in summaries})
        self._source = view
        self._n_rows_seen = sum(fitted[name].n_samples_seen_ for name in summaries)
        self.contributions_ = {
            name: replace(
                self._contribution(fitted.get(name), summaries.get(name), problems.get(name, "")),
                left_out=str(lost.get(name) or ""),
            )
            for name in sorted(clients)
        }
        self._influence_of = self._influence_inputs(counted, row_shares(summaries))
        if text := influence_warning(*self._influence_of):
            warnings.warn(text, stacklevel=4)
        if isinstance(merged, Moments) and isinstance(merged.scale, str):
            team.constant = merged.scaling_of_rows().constant
        first = fitted[next(iter(summaries))]
        not_found = first._source.left_out if isinstance(first, PrivatePCA) else None
        if text := self._scale_warning(view, team.constant, not_found):
            warnings.warn(text, stacklevel=4)
        if text := view.shortfall():
            warnings.warn(text, stacklevel=4)
        elif self.energy is None and self.privacy is None:
            warn_if_fewer(self.n_components, self.n_components_, stacklevel=4)
        return self

    def _check_settings(self, clients: Mapping[str, RowsLike]) -> None:
        """Before anything is read or spent."""
        check_rule(self.features)
        Robust.of(self.robust)
        if self.secure is not None:
            secure_estimator.check_settings(self, clients)
        if self.privacy is not None:
            self._check_privacy(len(clients))
            warn_of_refit(self.privacy, stacklevel=5)
        if isinstance(self.scale, str):
            check_scale(self.scale, 1)

    def _accepted(self, sent: Mapping[str, Summary], problems: dict[str, str]) -> dict[str, Summary]:
        """What merges, of the features of most clients; why the rest does not is added to the problems."""
        if not sent:
            return {}
        n_features, names = features_of_most(
            (each.n_features, each.feature_names, each.count) for each in sent.values()
        )
        centered = next(iter(sent.values())).centered
        expected = Subspace.empty(n_features, centered=centered, about=About(names))
        aggregator = Aggregator(fanout=self.fanout, expected=expected, robust=self.robust)
        summaries: dict[str, Summary] = {}
        for name, summary in sent.items():
            try:
                check_compatible([expected, summary])
                aggregator.receive(name, 0, summary)
                summaries[name] = summary
            except ValueError as error:
                problems[name] = str(error)
        return summaries

    def _fit_secure(self, clients: Mapping[str, RowsLike], workers: int) -> Self:
        """As `_fit`, by sums over clients of which nobody sees a part."""
        fitted = secure_estimator.fit_securely(self, clients, workers)
        self.n_features_in_ = fitted.n_features
        if fitted.feature_names is not None:
            self.feature_names_in_ = np.array(fitted.feature_names, dtype=object)
        self._source = view = fitted.view
        self._n_rows_seen = sum(fitted.n_rows.values())
        self.contributions_ = {
            name: Contribution(
                fitted.n_rows.get(name, 0),
                None,
                fitted.epsilon if name in fitted.n_rows else None,
                fitted.problems.get(name, ""),
            )
            for name in sorted(clients)
        }
        self._influence_of = None
        if problems := fitted.problems:
            warnings.warn(f"left out {len(problems)} of {len(clients)} clients: {problems}", stacklevel=5)
        doubts = (
            self._scale_warning(view, fitted.constant, fitted.not_found),
            fitted.doubt,
            view.shortfall(),
        )
        for text in doubts:
            if text:
                warnings.warn(text, stacklevel=5)
        if self.privacy is None:
            warn_if_fewer(self.n_components, self.n_components_, stacklevel=5)
        return self

    def _scale_warning(self, view: SummaryView, constant: AnyArray | None, not_found: AnyArray | None) -> str:
        """Which features could not be scaled, or else which one dominates, or ""."""
        names = self._names()
        if self.scale is not None:
            return constant_features(constant, names) or no_scale(not_found, names)
        if not view.whole.centered or not view.n_components():
            return ""
        subspace, _, variances = view.view()
        energies = None if variances is None else variances * view.whole.count
        return dominant_feature(subspace, energies, names)

    def _check_privacy(self, n_clients: int) -> None:
        """Reject settings that do not go with privacy."""
        if not isinstance(self.privacy, Privacy):
            raise TypeError(f"privacy must be a Privacy or None, got privacy={self.privacy!r}.")
        if self.tracker != "auto":
            raise ValueError(
                f"tracker must be 'auto' with privacy, got tracker={self.tracker!r}: "
                "Privacy(mechanism=...) decides."
            )
        if n_clients > 1 and self.privacy.ledger is not None:
            raise ValueError(
                f"a ledger is the account of one client, and there are {n_clients}; leave out ledger= for an "
                "account per client in memory, or fit one PrivatePCA per client, each with its own ledger, "
                "and merge the releases."
            )

    def _client(self) -> Client:
        if self.privacy is not None:
            return PrivatePCA(self.n_components, scale=self.scale, **self.privacy.settings)
        return StreamingPCA(
            self.n_components,
            energy=self.energy,
            center=self.center,
            scale=self.scale,
            whiten=self.whiten,
            tracker=self.tracker,
            random_state=self.random_state,
        )

    def _contribution(self, client: Client | None, summary: Summary | None, problem: str) -> Contribution:
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

    def _influence_inputs(
        self, summaries: Mapping[str, Summary], rows: Mapping[str, float]
    ) -> _InfluenceInputs:
        tree = MergeTree.of(summaries, max(self.n_components_, 1), self.fanout)
        return dict(summaries), rows, tree, self.model_

    @property
    def model_(self) -> Subspace:
        return self.subspace_.truncate(max(self.n_components_, 1))  # rows that do not vary have none


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
