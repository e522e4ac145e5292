"""The certificate of a release: all of it is public, or was released."""

from fedpca._util.version import __version__
from fedpca.privacy.clipping import Clipping
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.mechanisms.base import Mechanism
from fedpca.privacy.schedule import Schedule
from fedpca.privacy.search import CenterNoise
from fedpca.privacy.settings import Privacy
from fedpca.summaries.certificate import (
    IN_MEMORY,
    PRIVATE_SCALE,
    PUBLIC_SCALE,
    Certificate,
    LedgerState,
    StepCost,
)


def make_certificate(
    privacy: Privacy,
    mechanism: Mechanism,
    *,
    sampler: str,
    records: int,
    count: float,
    report: int,
    steps: tuple[StepCost, ...],
    center_noise: CenterNoise,
    accumulated: float = 1.0,
    ledger: LedgerState | None = None,
    release: str | None = None,
    stream: str | None = None,
    time: str | None = None,
) -> Certificate:
    """The certificate of a report of so many records.

    Args:
        sampler: how the noise was drawn.
        count: of points.
        accumulated: standard deviation of the noise, in units of that of one owner's release.
        ledger, release, time: what paid, the id of the debit and when.
    """
    calibration = mechanism.calibration
    seeded = privacy.insecure_seed_for_tests is not None
    notes = []
    if seeded:
        notes.append("NOT PRIVATE: the noise came from a seed, and whoever knows the seed can remove it")
    edge = None
    if mechanism.edge_known:
        edge = calibration.edge(mechanism.n_features) * Schedule(privacy.releases).accumulated(report)
        edge *= accumulated
        edge *= mechanism.clipping.unit * center_noise.margin(count, edge)
    return Certificate(
        private=not seeded,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        mu=privacy.mu,
        adjacency=privacy.adjacency,
        mechanism=privacy.mechanism,
        sampler=sampler,
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
        records=records,
        report=report,
        planned=privacy.releases,
        public="number of records, number and names of features, and these settings",
        ledger=ledger,
        steps=(*steps, StepCost(mechanism.name, calibration.mu)),
        release=release,
        stream=stream,
        time=time,
        fedpca=__version__,
    )


def state_of(ledger: Ledger) -> LedgerState:
    """The ledger as it stands now."""
    return LedgerState(
        id=ledger.id,
        kept=IN_MEMORY if ledger.path is None else "in a file",
        epsilon=ledger.epsilon,
        delta=ledger.delta,
        spent=ledger.spent(),
        entries=None if ledger.path is None else len(ledger.entries),
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
