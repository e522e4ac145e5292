"""PrivateTracker: the trust boundary. Rows go in, certified releases come out, nothing else does."""

import hashlib
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from math import sqrt
from typing import Any

import numpy as np

from fedpca._typing import Array
from fedpca.backend import HOST
from fedpca.errors import BudgetExceeded, NotReleasedError
from fedpca.privacy.centering import STEP_SHARE, STEPS, PrivateCenter, stream_rows
from fedpca.privacy.certify import make_certificate
from fedpca.privacy.lattice import MAX_ROWS
from fedpca.privacy.ledger import Entry
from fedpca.privacy.mechanisms.base import ClippingBall, build
from fedpca.privacy.noise import NOISES, Noise
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.settings import Privacy
from fedpca.summaries.imputation import impute
from fedpca.summaries.rank import RankRule
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.summaries.view import SummaryView

BATCH_ROWS = 1024  # that "streaming-mod-sulq" noises at a time
_FAR = 0.9  # bounds between the center and the mean of clipped rows: nearly all lie beyond, on one side


class PrivateTracker:
    """Clips rows, adds them up, and tells nobody until `release`.

    Rows are clipped about a center and added to a mechanism's sums, which never leave. A release is debited
    in the ledger, noised, certified, and from then on all that can be asked for. A copy, or a pickle, holds
    what was released and nothing else.

    Args:
        n_features: d.
        rule: how many directions are shown; None for those that rise above the noise.
        privacy: the settings.
        oversample: directions carried beyond those.
        batch_rows: rows that "streaming-mod-sulq" noises at a time.
        dtype: of the components shown.
        feature_names: one a feature, or None.
    """

    backend = HOST  # rows come to where their noise is drawn

    def __init__(
        self,
        n_features: int,
        rule: RankRule | None,
        privacy: Privacy,
        *,
        oversample: int | str = "auto",
        batch_rows: int = BATCH_ROWS,
        dtype: Any = np.float64,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        self.n_features = n_features
        self.rule = rule
        self.privacy = privacy
        self.oversample = oversample
        self.dtype = np.dtype(dtype)
        self.feature_names = feature_names
        self.ledger = privacy.open_ledger()
        self._batch_rows = batch_rows
        self._schedule = Schedule(privacy.releases)
        self._key: bytes | None = _new_key(privacy)
        self._broken = ""
        self._stream = secrets.token_hex(8)
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._taken = 0  # records so far, those of the center too
        self._reported = 0  # of which the last release knew
        self._made = 0
        self._warned = False
        self._center: PrivateCenter | None = None  # while a private center is being found
        self._released: Summary | None = None
        self._answer: SummaryView | None = None
        self._continuous = privacy.mechanism == "streaming-mod-sulq"  # noise is drawn as rows come
        self._entry: Entry | None = None  # of a schedule that was debited as a whole
        if privacy.center == "private":
            self._center = PrivateCenter(privacy, n_features, self._noise("center"))
        else:
            self._open(privacy.public_center(n_features), privacy.mu, joint=False)

    def _open(self, center: Array | None, mu: float, *, joint: bool) -> None:
        """Begin to take rows about a center."""
        self._start = self._taken
        frame = ClippingBall(center, self.privacy.bound, self.feature_names)
        self._mechanism = build(
            self.privacy,
            frame,
            self.n_features,
            mu=mu,
            joint=joint and self.privacy.mechanism == "gram",
            rank=self._rank(),
            batch_rows=self._batch_rows,
            noise=self._noise("rows"),
        )

    def _rank(self) -> int:
        return min(8, self.n_features) if self.rule is None else self.rule.start(self.n_features)

    def _noise(self, purpose: str) -> Noise:
        assert self._key is not None
        key = hashlib.blake2b(purpose.encode(), key=self._key, digest_size=32).digest()
        return NOISES[self.privacy.noise](key)

    # --- rows in ---

    @property
    def rows_for_center(self) -> int:
        """How many rows of a stream go into its private center before any counts."""
        return sum(stream_rows(self.privacy, self.n_features))

    @property
    def wants_center(self) -> bool:
        """Whether a private center is still to be found."""
        return self._center is not None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time, in the one process that has the key: noise must not meet two sets of rows."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "private rows were taken in another process, of which this one is a fork: release them there."
            )
        with self._lock:
            yield

    def find_center(
        self, batches: Callable[[], Iterable[Array]], n_rows: int
    ) -> Generator[tuple[Array, int], Array | None, None]:
        """Spend a tenth of mu² on the mean of rows that are all at hand, and will all be taken after it.

        After each step, yields the noisy sum of the rows, less the center so far, and their number. Whoever
        sums these up over owners may send back a center for all; sent None, each has its own.
        """
        assert self._center is not None
        self._check_delta(n_rows)
        self.ledger.check(0, None, self.privacy.mu)  # that the rows can be afforded as well
        mu = self.privacy.mu * sqrt(STEP_SHARE)
        for _ in range(STEPS):
            with self._alone(), self._all_or_none():
                for rows in batches():
                    self._center.take(self._complete(rows, self._center.vector))
                told = self._finish_center_step(0, self._center.count, mu)
            shared = yield told
            if shared is not None:
                self._center.vector = shared
        self._open(self._center.vector, self.privacy.mu * sqrt(1 - STEPS * STEP_SHARE), joint=False)
        self._center = None

    def update(self, parts: Iterable[Array], n_rows: int) -> None:
        """Take a batch of `n_rows` rows in parts: dense, shape (n, d), finite, NaN for missing."""
        with self._alone():
            self._check_open(n_rows)
            with self._all_or_none():
                for rows in parts:
                    self._take(rows)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """A batch interrupted half-way ends the stream: taken again, its first rows would count twice."""
        try:
            yield
        except BaseException as error:
            self._broken = repr(error)
            raise

    def _check_open(self, n_rows: int) -> None:
        """Whether rows may still come."""
        if self._broken:
            raise RuntimeError(
                f"an earlier batch was interrupted ({self._broken}), and some of its rows may count already: "
                "fit anew, so that none counts twice."
            )
        if self._key is None:  # dropped with the last release, and never in a copy
            if self._made < self.privacy.releases or self._continuous:
                raise BudgetExceeded(
                    "this is a copy of what was released, and cannot release more: go on with the original."
                )
            raise BudgetExceeded(
                f"this was planned for releases={self.privacy.releases}, and all were made: more rows could "
                "never leave. Plan more releases, Privacy(releases=...), or fit anew."
            )
        if self._taken + n_rows > MAX_ROWS:
            raise ValueError(f"a private client takes at most {MAX_ROWS} rows; use several and merge.")

    def _take(self, rows: Array) -> None:
        if self._center is not None:
            rows = self._feed_center(rows)
        if self._center is not None:
            return
        if self._continuous and self._entry is None:
            mu = self._mechanism.calibration.mu
            self._entry = self.ledger.debit(self._start, None, self.privacy.mechanism, mu)
        self._taken += len(rows)
        frame = self._mechanism.frame
        self._mechanism.take(frame.points(self._complete(rows, frame.center)))

    def _feed_center(self, rows: Array) -> Array:
        """Take the first rows of a stream for its center; returns those that are left over."""
        assert self._center is not None
        if not self._taken:
            self.ledger.check(0, None, self.privacy.mu)  # that the rows after it can be afforded as well
        wanted = stream_rows(self.privacy, self.n_features)
        while self._center.step < STEPS:
            center = self._center
            part, rows = np.split(rows, [wanted[center.step] - center.count])
            center.take(self._complete(part, center.vector))
            self._taken += len(part)
            if center.count < wanted[center.step]:
                return rows
            self._finish_center_step(self._taken - center.count, self._taken, self.privacy.mu)
        self._open(self._center.vector, self.privacy.mu, joint=True)
        self._center = None
        return rows

    def _finish_center_step(self, start: int, stop: int, mu: float) -> tuple[Array, int]:
        assert self._center is not None
        entry = self.ledger.debit(start, stop, "center", mu)
        told = self._center.finish_step(mu)
        self.ledger.complete(entry)
        return told

    def _complete(self, rows: Array, center: Array | None) -> Array:
        """Rows with gaps filled by what is public: the last release, or the center. No row is left out.

        One row at a time: in a product of many, how the others are rounded can depend on how many there are.
        """
        gaps = np.isnan(rows)
        if not gaps.any():
            return rows
        if self._released is None:
            return np.where(gaps, 0.0 if center is None else center, rows)
        rows = rows.astype(np.float64)
        for index in np.flatnonzero(gaps.any(axis=1)):
            rows[index] = impute(rows[index : index + 1], self.summary())[0]
        return rows

    # --- releases out ---

    def release(self) -> Summary:
        """Noise, certify and return the summary of all rows so far; the same again until more rows come."""
        if self._key is None and self._released is not None:
            return self._released
        with self._alone():
            if self._key is not None:
                self._check_open(0)
            return self._release()

    def _release(self) -> Summary:
        if self._released is not None and self._reported == self._taken:
            return self._released
        if not self._taken:
            raise ValueError("there is nothing to release: no rows were taken.")
        if self._center is not None or self._taken == self._start:
            raise ValueError(
                f"center='private' takes the first {self.rows_for_center} rows of a stream for the center, "
                f"and {self._taken} came; bring more, give a public center, or use fit, which reads twice."
            )
        self._check_delta(self._taken)
        entry = self._entry
        if entry is None:
            whole = not self._schedule.disjoint
            first = max(self._start, self._reported)
            stop = None if whole else self._taken
            entry = self.ledger.debit(first, stop, self.privacy.mechanism, self._mechanism.calibration.mu)
            self._entry = entry if whole else None
        report = self._made + 1
        noise = self._schedule.noise(self._noise("rows"), report)
        certificate = make_certificate(
            self.privacy,
            self._mechanism,
            self.ledger,
            entry,
            noise,
            records=self._taken,
            report=report,
            stream=self._stream,
        )
        released = self._mechanism.release(noise, certificate)
        center = self._mechanism.frame.center
        self._made, self._reported, self._released, self._answer = report, self._taken, released, None
        if report == self.privacy.releases and not self._continuous:
            del self._mechanism
            self._key = None
        try:
            self.ledger.complete(entry)
        except OSError as error:  # the debit counts all the same
            warnings.warn(f"the ledger could not note that the release came out: {error}", stacklevel=4)
        self._check_center(center, released)
        return released

    def _check_center(self, center: Array | None, released: Summary) -> None:
        """Warn if a private center is far from the mean released with the rows: that tells no more."""
        bound = self.privacy.bound
        if self.privacy.center != "private" or center is None or released.count < self.rows_for_center:
            return  # of fewer rows the mean is mostly noise
        if np.linalg.norm(released.mean - center) > _FAR * bound:
            warnings.warn(
                "center='private' did not find the mean, and the components are worthless: it must lie "
                f"within about two bounds of zero, and bound={bound:g}. Subtract public values from the rows "
                "first, or give a public center.",
                stacklevel=5,
            )

    def _check_delta(self, n_rows: int) -> None:
        """The one rule that depends on the number of rows."""
        delta = self.privacy.delta
        if delta * n_rows >= 1:
            raise ValueError(
                f"delta must be below one over the number of rows, 1/{n_rows}, got delta={delta:g}: it would "
                f"allow whole rows to be published. Choose at most {0.1 / n_rows:.1g}."
            )
        if delta * n_rows > 0.1 and not self._warned:
            self._warned = True
            warnings.warn(
                f"delta={delta:g} is above a tenth of one over the number of rows, {n_rows}; "
                f"{0.1 / n_rows:.1g} or less is advised.",
                stacklevel=4,
            )

    # --- what was released ---

    @property
    def is_fitted(self) -> bool:
        """Whether anything was released."""
        return self._released is not None

    def state(self) -> Summary:
        """The last release."""
        if self._released is None:
            raise NotReleasedError("nothing was released yet: call release() first.")
        return self._released

    def summary(self) -> Subspace:
        """The leading directions of the last release."""
        return self._shown().summary()

    def n_components(self) -> int:
        """How many directions of the summary are the answer."""
        return self._shown().n_components()

    def _shown(self) -> SummaryView:
        if self._answer is None:
            self._answer = SummaryView(self.state(), self.rule, self.oversample, self.dtype)
        return self._answer

    def feature_variances(self) -> None:
        """Not known: nothing about single features is released."""

    def mean_dominates(self, mean: Array, spread: float) -> bool:
        """Whether products of rows would lose too many digits to a mean this large."""
        return self._shown().mean_dominates(mean, spread)

    def __getstate__(self) -> dict[str, Any]:
        if self._released is None:
            raise TypeError(
                "rows not released yet cannot be copied or pickled: they would leave without noise. "
                "Call release() first."
            )
        kept = ("n_features", "rule", "privacy", "oversample", "dtype", "feature_names", "_broken")
        return {name: getattr(self, name) for name in kept} | {
            "_released": self._released,
            "_answer": None,
            "_key": None,
            "_taken": self._reported,
            "_reported": self._reported,
            "_made": self._made,
            "_continuous": self._continuous,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _process=os.getpid(), _lock=threading.RLock())


def _new_key(privacy: Privacy) -> bytes:
    if privacy.insecure_seed_for_tests is None:
        return secrets.token_bytes(32)
    return hashlib.blake2b(str(privacy.insecure_seed_for_tests).encode(), digest_size=32).digest()
