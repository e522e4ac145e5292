"""PrivateSteps: what a private stream does besides learning, from its first noisy sum to a release."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Self

from sklearn.exceptions import NotFittedError

from fedpca._typing import Array, DeviceArray, RowsLike
from fedpca.backend import batch_slices, dense
from fedpca.disclosure.policy import Policy
from fedpca.estimators.base import chunk_rows
from fedpca.estimators.stream_settings import StreamSettings, no_weights
from fedpca.privacy import Ledger, Privacy, PrivateTracker, StepSum
from fedpca.summaries.certificate import Evaluation
from fedpca.summaries.scale_advice import dominant_feature, no_scale
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


class PrivateSteps(StreamSettings):
    """The private steps of `StreamingPCA`: those that several owners share, and the release."""

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to be found privately before rows are learned; see `step_sum`."""
        if not self._has_source():
            return False
        return not isinstance(self._source, PrivateTracker) or self._source.is_prepared

    def step_sum(self, X: RowsLike) -> StepSum:
        """One round of the private steps that several owners share: the noisy sum over all rows of this one.

        Scale, center and bound, where `Privacy` does not state them, are found in a few rounds, before any
        rows are learned. A sum may be sent to anybody. The owners' sums, added up by `StepSum.pooled`, end a
        round with `advance`. When `is_prepared`, `partial_fit` takes the same rows, and `release` follows.
        `fit` does all this for one owner, and `FederatedPCA` for many. An owner who comes later takes
        `privacy_` for its settings, and spends everything on the release.

        Args:
            X: all rows, shape (n_samples, n_features).

        >>> import fedpca, numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(2000, 3)) * [3.0, 1.0, 1.0] + [20.0, 10.0, 0.0]
        >>> owners = {fedpca.StreamingPCA(1, privacy=Privacy(epsilon=4.0, delta=1e-5)): part
        ...           for part in (rows[:1200], rows[1200:])}
        >>> while not all(owner.is_prepared for owner in owners):
        ...     pooled = StepSum.pooled([owner.step_sum(part) for owner, part in owners.items()])
        ...     for owner in owners:
        ...         owner.advance(pooled)
        >>> releases = [owner.partial_fit(part).release() for owner, part in owners.items()]
        >>> fedpca.merge(releases, rank=1).count
        2000.0
        """
        first = not self._has_source()
        with self._rollback_on_error():
            X, _, _, tracker = self._prepared(X, None, first=first)
            if not isinstance(tracker, PrivateTracker):
                raise ValueError("step_sum needs StreamingPCA(privacy=Privacy(...)).")
            summed = tracker.step_sum(_shuffled_parts(X, tracker), X.shape[0])
            if first:
                self._source, self._n_rows_seen = tracker, 0
        return summed

    def advance(self, pooled: StepSum) -> None:
        """End a round of `step_sum`.

        Args:
            pooled: the owners' sums, added up. It must come from such noisy sums, never from rows.
        """
        self._private_source("advance").advance(pooled)

    @property
    def can_evaluate(self) -> bool:
        """Whether `evaluation_sum` is possible: a budget was kept for it, and a length of rows is known."""
        source = getattr(self, "_source", None)
        return isinstance(source, PrivateTracker) and source.can_evaluate

    def evaluation_sum(self, X: RowsLike, model: Subspace) -> StepSum:
        """The noisy sum from which `evaluation` measures how good a model of several owners' releases is.

        Args:
            X: all rows of this owner, shape (n_samples, n_features).
            model: of the releases, merged.
        """
        source = self._private_source("evaluation_sum")
        X, *_ = self._prepared(X, None, first=False)
        return source.evaluation_sum(_shuffled_parts(X, source), X.shape[0], model)

    def evaluation(self, pooled: StepSum, model: Subspace) -> Evaluation:
        """How much of all owners' variance a model explains, by their sums, added up."""
        return self._private_source("evaluation").evaluation(pooled, model)

    def _private_source(self, method: str) -> PrivateTracker:
        if not self._has_source() or not isinstance(self._source, PrivateTracker):
            raise ValueError(f"{method} needs StreamingPCA(privacy=Privacy(...)), and step_sum before it.")
        return self._source

    def fit_private(self, read: Callable[[], Iterable[RowsLike]], n_rows: int) -> Self:
        """Fit batches of rows that can be read again and again; any earlier fit is discarded.

        Args:
            read: called once per pass, for all batches.
            n_rows: how many rows there are, in every pass.
        """
        with self._rollback_on_error():
            first = next(iter(read()), None)
            if first is None:
                raise ValueError("there are no rows to fit.")
            *_, tracker = self._prepared(first, None, first=True)
            if not isinstance(tracker, PrivateTracker):
                raise ValueError("fit_private needs StreamingPCA(privacy=Privacy(...)).")

            def parts() -> Iterator[Array]:
                for batch in read():
                    yield from _dense_parts(self._validated(batch, reset=False))

            _fit_and_release(tracker, parts, n_rows)
            self._source, self._n_rows_seen = tracker, n_rows
        self._warn_of_shortfall()
        return self

    def release(self, *, policy: Policy | None = None) -> Summary:
        """Let the private summary of all rows so far out: noised, certified, paid for in the ledger.

        Until more rows come, the same again, at no cost. Afterwards the fitted attributes exist. Owners'
        releases merge: `fedpca.merge([a.release(), b.release()], rank=10)`.

        Args:
            policy: what may leave, checked before noise is drawn and paid for; None checks nothing. `fit`
                releases, too: call `policy.check_private` before it.

        Returns:
            Noisy `Moments`, cumulative over releases; a `Subspace` from mechanisms that keep no d x d sum.

        Raises:
            PolicyViolation: by the rule that does not hold.

        >>> import fedpca, numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(9000, 5)) * [3.0, 2.0, 0.5, 0.5, 0.5]
        >>> privacy = Privacy(epsilon=1.0, delta=1e-5, bound=4.0)
        >>> pca = fedpca.StreamingPCA(2, privacy=privacy).partial_fit(rows)
        >>> pca.release().certificate.epsilon
        1.0
        """
        if policy is not None and self.privacy is not None and self._has_source():
            policy.check_private(self._n_rows_seen, self.privacy)
        before = self._source.state() if self.__sklearn_is_fitted__() else None
        released = self._release_for_merging()
        if self._source.state() is not before:
            self._warn_of_shortfall()
        return released

    def _release_for_merging(self) -> Summary:
        """`release`, without a word about components that noise hides: merged with others they may rise."""
        if not self._has_source():
            raise NotFittedError("there is nothing to release: call partial_fit first.")
        if not isinstance(self._source, PrivateTracker):
            raise ValueError(
                "release is for private summaries, StreamingPCA(privacy=Privacy(...)); share subspace_ "
                "without."
            )
        return self._source.release()

    def _warn_of_shortfall(self) -> None:
        """Warn of what a release does not show: components, or the scale of features."""
        source = self._source
        if not isinstance(source, PrivateTracker):
            return
        texts = [source.shortfall(), no_scale(source.left_out, self._names())]
        if self.scale is None and source.n_components():
            texts.append(dominant_feature(self._summary(), None, self._names()))
        for text in filter(None, texts):
            warnings.warn(text, stacklevel=3)

    # --- fitting ---

    def _fit_private(self, tracker: PrivateTracker, X: DeviceArray) -> None:
        """Learn from all rows, and release."""
        _fit_and_release(tracker, partial(_shuffled_parts, X, tracker), X.shape[0])

    def _update_private(self, tracker: PrivateTracker, X: RowsLike, weights: Array | None) -> None:
        """Learn from one more batch."""
        no_weights(weights)
        known = self._n_rows_seen if self._has_source() and tracker is self._source else 0
        tracker.update(_dense_parts(X), X.shape[0], n_rows_before=known)

    # --- what was spent and found ---

    @property
    def ledger_(self) -> Ledger | None:
        """The ledger that pays for releases; None without privacy, and in a copy, which cannot release."""
        if not self._has_source():
            raise AttributeError("ledger_ is opened by fit or partial_fit: call one of them first.")
        return self._source.ledger if isinstance(self._source, PrivateTracker) else None

    @property
    def privacy_(self) -> Privacy:
        """`privacy` with the bound and the center that were found, for owners who come later: they need not
        spend anything on them. With `scale="std"` they take `summary_.scale` for their scale.
        """
        source = self._source if self._has_source() else None
        found = source.found_settings() if isinstance(source, PrivateTracker) else None
        if found is None:
            raise AttributeError(
                "privacy_ is what private steps found: finish them, or fit with privacy=Privacy(...), first."
            )
        return found


def _dense_parts(X: RowsLike) -> Iterator[Array]:
    size = chunk_rows(X.shape[1])
    for part in batch_slices(X.shape[0], size):
        yield dense(X[part])


def _fit_and_release(tracker: PrivateTracker, parts: Callable[[], Iterator[Array]], n_rows: int) -> None:
    """All private steps, the release, and how good it is."""
    while not tracker.is_prepared:
        tracker.advance(tracker.step_sum(parts(), n_rows))
    tracker.update(parts(), n_rows)
    tracker.release()
    if tracker.can_evaluate and (shown := tracker.n_components()):
        model = tracker.summary().truncate(shown)
        pooled = tracker.evaluation_sum(parts(), n_rows, model)
        tracker.add_evaluation(tracker.evaluation(pooled, model))


def _shuffled_parts(X: RowsLike, tracker: PrivateTracker) -> Iterator[Array]:
    order = tracker.random_order(X.shape[0])
    for part in batch_slices(X.shape[0], chunk_rows(X.shape[1])):
        yield dense(X[order[part]])
