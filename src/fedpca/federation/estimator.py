"""FederatedPCA: a federation in one process, each owner of rows a client of its own."""

import os
import warnings
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from fedpca import progress
from fedpca._typing import Array
from fedpca.errors import SummaryRejected
from fedpca.estimators.base import BasePCA
from fedpca.estimators.rank_rule import rank_rule
from fedpca.estimators.streaming import StreamingPCA
from fedpca.federation.aggregator import Aggregator
from fedpca.federation.message import child_name
from fedpca.privacy import Privacy
from fedpca.summaries import validation
from fedpca.summaries.moments import Moments
from fedpca.summaries.rank import EnergyBand
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView


@dataclass(frozen=True)
class Contribution:
    """The contribution of a client.

    Attributes:
        rows: how many it has.
        captured: the share of its own variance along the model's components, by its summary.
        epsilon: the cost of its release for every one of its rows; None without privacy.
        problem: why it was left out, or "".
    """

    rows: int
    captured: float
    epsilon: float | None = None
    problem: str = ""


class FederatedPCA(BasePCA):
    """Principal components of the rows of many clients, none of which sees another's rows.

    Every client runs a `StreamingPCA` over its own rows, in a thread, and sends its summary; the summaries
    merge into the components of all rows, means included. With `privacy`, every client's summary is
    differentially private by itself, and the noise of all clients adds up.

    The settings are those of `StreamingPCA`.

    Args:
        fanout: how many summaries are merged at a time.
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
        tracker: str = "auto",
        privacy: Privacy | None = None,
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
            names, members = np.unique(groups, return_inverse=True)
            return self._fit({child_name(str(name)): X[members == i] for i, name in enumerate(names)})

    def fit_clients(self, clients: Mapping[str, Any]) -> Self:
        """Learn from clients that each have their own rows.

        Args:
            clients: by name, rows of shape (n_samples, n_features) (an array, a frame, sparse), or any
                iterable of batches, which is read once. One of several clients that fails is left out, with
                a warning.

        >>> rows = np.random.default_rng(0).normal(size=(100, 5))
        >>> pca = FederatedPCA(2).fit_clients({"north": rows[:60], "south": [rows[60:80], rows[80:]]})
        >>> pca.contributions_["south"].rows
        40
        """
        if not isinstance(clients, Mapping) or not clients:
            raise TypeError("clients must be a mapping from names to rows, with at least one client.")
        with self._rollback_on_error():
            return self._fit({child_name(str(name)): rows for name, rows in clients.items()})

    def _fit(self, clients: Mapping[str, Any]) -> Self:
        workers = os.cpu_count() or 1
        if self.n_jobs is not None:
            workers = validation.integer(self.n_jobs, "n_jobs", at_least=1)
        aggregator = Aggregator(fanout=self.fanout)
        fitted, problems = self._run(clients, workers)
        summaries: dict[str, Summary] = {}
        for name, client in sorted(fitted.items()):
            summary = client.summary_
            try:
                aggregator.receive(name, 0, summary)
                summaries[name] = summary
            except SummaryRejected as error:
                problems[name] = str(error)
        if not summaries:
            raise ValueError(f"no client could contribute: {problems}.")
        if problems:
            warnings.warn(f"left out {len(problems)} of {len(clients)} clients: {problems}", stacklevel=4)
        first = fitted[min(summaries)]
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(first, name):
                setattr(self, name, getattr(first, name))
        merged = aggregator.summary()
        rule = rank_rule(self.n_components, self.energy, merged.n_features)
        self._tracker = SummaryView(merged, rule, "auto", first.components_.dtype)
        self._n_rows_seen = sum(fitted[name].n_samples_seen_ for name in summaries)
        self.contributions_ = {
            name: self._contribution(fitted.get(name), summaries.get(name), problems.get(name, ""))
            for name in sorted(clients)
        }
        return self

    def _run(
        self, clients: Mapping[str, Any], workers: int
    ) -> tuple[dict[str, StreamingPCA], dict[str, str]]:
        """All clients, as many at once as there are workers: those that learned, and why the others did not.

        With a private center, clients whose rows are all at hand share one: in each step, the sum of the
        noisy sums they tell.
        """
        fitted = {name: self._client() for name in clients}
        steps = {name: _steps(fitted[name], rows) for name, rows in clients.items()}
        problems: dict[str, str] = {}
        center: Array | None = None
        with (
            threadpool_limits(limits=1, user_api="blas"),
            ThreadPoolExecutor(workers) as pool,
            progress.bar("federation", len(clients), "clients") as bar,
        ):
            while steps:
                pending = {name: pool.submit(_advance, step, center) for name, step in steps.items()}
                told = {}
                for name, future in pending.items():
                    error = future.exception()
                    if error is None and (answer := future.result()) is not None:
                        told[name] = answer
                        continue
                    bar.advance()
                    if isinstance(error, Exception) and len(clients) > 1:
                        problems[name] = f"{type(error).__name__}: {error}"
                        del fitted[name]
                    elif error is not None:
                        raise error
                steps = {name: steps[name] for name in told}
                center = _shared_center(center, list(told.values()))
        return fitted, problems

    def _client(self) -> StreamingPCA:
        return StreamingPCA(
            self.n_components,
            energy=self.energy,
            center=self.center,
            whiten=self.whiten,
            tracker=self.tracker,
            privacy=self.privacy,
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
        return self.subspace_.truncate(self.n_components_)


Steps = Generator[tuple[Array, int], Array | None, None]


def _steps(client: StreamingPCA, rows: Any) -> Steps:
    """One client: all its batches, and a release if it is private; yields what it tells about its center."""
    private = isinstance(client.privacy, Privacy)
    if private and _is_table(rows):
        yield from client._fit_in_steps(rows)
        return
    rows = (rows,) if _is_table(rows) else rows
    if not isinstance(rows, Iterable):
        raise TypeError(f"a client must have rows, or an iterable of batches, got {type(rows).__name__}.")
    for batch in rows:
        client.partial_fit(batch)
    if not hasattr(client, "n_features_in_"):
        raise ValueError("the client has no rows.")
    if private:
        client.release()


def _advance(steps: Steps, center: Array | None) -> tuple[Array, int] | None:
    """What a client tells next; None when it is done."""
    try:
        return steps.send(center)
    except StopIteration:
        return None


def _shared_center(center: Array | None, told: list[tuple[Array, int]]) -> Array | None:
    if len({len(total) for total, _ in told}) != 1:
        return None  # nobody tells, or they tell of different features: that is refused later
    offset: Array = sum(total for total, _ in told) / sum(count for _, count in told)  # type: ignore[assignment]
    return offset if center is None else center + offset


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
