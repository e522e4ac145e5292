"""The certificate of a release: all of it is public, or was released."""

from math import sqrt
from typing import NamedTuple

from fedpca._util.version import __version__
from fedpca.privacy.clipping import Clipping
from fedpca.privacy.mechanisms.base import Mechanism
from fedpca.privacy.search import CenterNoise
from fedpca.privacy.settings import Privacy
from fedpca.summaries.certificate import (
    PRIVATE_SCALE,
    PUBLIC_SCALE,
    Certificate,
    LedgerState,
    StepCost,
)


class Receipt(NamedTuple):
    """What the certificate of a release states of how it was paid.

    Attributes:
        sampler: how the noise was drawn.
        records: how many have paid: those of the steps of a stream included.
        ledger: that paid, as it stood then.
        release: the name of the debit.
        stream: a random name of the rows that were summed.
        time: of the debit.
    """

    sampler: str = ""
    records: int = 0
    ledger: LedgerState | None = None
    release: str | None = None
    stream: str | None = None
    time: str | None = None


def make_certificate(
    privacy: Privacy,
    mechanism: Mechanism,
    *,
    count: float,
    noise: float,
    report: int,
    steps: tuple[StepCost, ...],
    center_noise: CenterNoise,
    receipt: Receipt,
) -> Certificate:
    """The certificate of a report.

    Args:
        count: of points.
        noise: the variance of its noise, in units of that of one increment of one owner.
    """
    calibration = mechanism.calibration
    seeded = privacy.insecure_seed_for_tests is not None
    notes = []
    if seeded:
        notes.append("NOT PRIVATE: the noise came from a seed, and whoever knows the seed can remove it")
    edge = None
    if mechanism.edge_known:
        edge = calibration.edge(mechanism.n_features) * sqrt(noise)
        edge *= mechanism.clipping.unit * center_noise.margin(count, edge)
    return Certificate(
        private=not seeded,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        mu=privacy.mu,
        adjacency=privacy.adjacency,
        mechanism=privacy.mechanism,
        sampler=receipt.sampler,
        center=_center_kind(privacy, mechanism.clipping),
        bound=mechanism.clipping.bound,
        clipping=mechanism.clipping.kind,
        scale=_scale_kind(steps, mechanism.clipping),
        warnings=tuple(notes),
        calibration="analytic",
        sensitivity=calibration.sensitivity,
        sigma=calibration.sigma,
        noise_edge=edge,
        n_features=mechanism.n_features,
        records=receipt.records,
        report=report,
        planned=privacy.releases,
        public="number of records, number and names of features, and these settings",
        ledger=receipt.ledger,
        steps=(*steps, StepCost(mechanism.name, calibration.mu)),
        release=receipt.release,
        stream=receipt.stream,
        time=receipt.time,
        fedpca=__version__,
    )


def _scale_kind(steps: tuple[StepCost, ...], clipping: Clipping) -> str | None:
    if clipping.scale is None:
        return None
    return PRIVATE_SCALE if any(step.step == "scales" for step in steps) else PUBLIC_SCALE


def _center_kind(privacy: Privacy, clipping: Clipping) -> str:
    if clipping.pairs:
        return "none: differences of pairs"
    if privacy.center is None:
        return "none: about the origin"
    return "private" if privacy.center == "private" else "public"
