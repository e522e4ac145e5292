"""PrivateSums: sums of clipped rows, and their releases."""

from math import hypot

import numpy as np

from fedpca._typing import Array
from fedpca.privacy.certify import make_certificate, state_of
from fedpca.privacy.clipping import Clipping, Pairing
from fedpca.privacy.ledger import Entry, Ledger
from fedpca.privacy.mechanisms.base import Mechanism
from fedpca.privacy.noise import Noise
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.search import CenterNoise
from fedpca.privacy.settings import Privacy
from fedpca.summaries.certificate import StepCost
from fedpca.summaries.summary import Summary


class PrivateSums:
    """Rows in; releases out, each debited in the ledger before its noise is drawn, and certified.

    Args:
        privacy: the settings.
        ledger: what pays.
        mechanism: takes the rows, clipped.
        noise: of the releases.
        random: of pairs of rows.
        start: number of the first record.
        stream: a random name of the stream, for the certificates.
        steps: what was released before, for the certificates.
        reserved: the mu of an evaluation to come.
        center_noise: of a private center: it raises the edge.
    """

    def __init__(
        self,
        privacy: Privacy,
        ledger: Ledger,
        mechanism: Mechanism,
        noise: Noise,
        *,
        random: np.random.Generator,
        start: int,
        stream: str,
        steps: tuple[StepCost, ...] = (),
        reserved: float = 0.0,
        center_noise: CenterNoise,
    ) -> None:
        self._privacy = privacy
        self._ledger = ledger
        self._mechanism = mechanism
        self._noise = noise
        self._schedule = Schedule(privacy.releases)
        self._stream = stream
        self._steps = steps
        self._reserved = reserved
        self._center_noise = center_noise
        self._pairing = Pairing(random)
        self._n_releases = 0
        self._next_record = start  # the first that no release contains yet
        self._paid: Entry | None = None  # the one debit for all releases, where there is only one

    @property
    def clipping(self) -> Clipping:
        """How rows become points."""
        return self._mechanism.clipping

    @property
    def is_empty(self) -> bool:
        """Whether no row was taken, or no pair of rows."""
        return not self._mechanism.count and self._pairing.n_waiting < 2

    @property
    def finished(self) -> bool:
        """Whether all planned releases were made."""
        return self._n_releases == self._privacy.releases

    @property
    def total_margin(self) -> float:
        """By how much noise may have lowered the total of the last report, in the units of the data."""
        accumulated = self._schedule.accumulated(self._n_releases)
        return self.clipping.unit * self._mechanism.total_margin(accumulated, self._mechanism.count)

    def take(self, deviations: Array) -> None:
        """Add rows as `Clipping.deviations` gives them."""
        for part in self._pairing.take(deviations) if self.clipping.pairs else (deviations,):
            self._mechanism.take(self.clipping.points(part))

    def release(self, entry: Entry, n_rows: int) -> Summary:
        """The certified summary of all records up to `n_rows`, which `entry` paid for."""
        if self._pairing.n_waiting:
            self._mechanism.take(self.clipping.points(self._pairing.flush()))
        report = self._n_releases + 1
        noise = self._schedule.noise(self._noise, report)
        certificate = make_certificate(
            self._privacy,
            self._mechanism,
            sampler=noise.sampler,
            records=n_rows,
            count=self._mechanism.count,
            report=report,
            steps=self._steps,
            center_noise=self._center_noise,
            ledger=state_of(self._ledger),
            release=entry.release,
            stream=self._stream,
            time=entry.time,
        )
        released = self._mechanism.release(noise, certificate)
        self._n_releases, self._next_record = report, n_rows
        return released

    def complete(self, entry: Entry) -> None:
        """Note in the ledger that a release came out."""
        self._ledger.complete(entry)

    def debit(self, n_rows: int) -> Entry:
        """Pay for the next release, or once for all releases of all records to come; no noise is drawn.

        What was kept for an evaluation has to be left.
        """
        if self._paid is not None:
            return self._paid
        pays_once = not self._schedule.disjoint
        stop = None if pays_once else n_rows
        start, mu, adjacency = self._next_record, self._mechanism.calibration.mu, self._privacy.adjacency
        self._ledger.check(start, stop, hypot(mu, self._reserved), adjacency=adjacency)
        entry = self._ledger.debit(start, stop, self._mechanism.name, mu, adjacency=adjacency)
        self._paid = entry if pays_once else None
        return entry
