"""The mechanisms by name. A new one is a file of its own, and its class and name here."""

from typing import TYPE_CHECKING, Literal

from fedpca.privacy.clipping import MAX_ROWS, RADIUS, Clipping
from fedpca.privacy.mechanisms.base import Calibration, Mechanism, Setup
from fedpca.privacy.mechanisms.gram import Gram
from fedpca.privacy.mechanisms.mod_sulq import ModSulq
from fedpca.privacy.mechanisms.sketch import Sketch
from fedpca.privacy.mechanisms.streaming_mod_sulq import StreamingModSulq
from fedpca.privacy.noise import Noise, too_large
from fedpca.privacy.schedule import Schedule

if TYPE_CHECKING:
    from fedpca.privacy.settings import Privacy

MechanismName = Literal["gram", "sketch", "streaming-mod-sulq", "mod-sulq"]
MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.name: mechanism for mechanism in (Gram, Sketch, StreamingModSulq, ModSulq)
}


def mechanism_class(privacy: "Privacy") -> type[Mechanism]:
    """The mechanism that the settings name."""
    return MECHANISMS[privacy.mechanism]


def calibrate(
    privacy: "Privacy",
    n_features: int,
    *,
    mu: float | None = None,
    joint: bool = False,
    pairs: bool = False,
) -> Calibration:
    """The noise of one increment under a schedule of releases.

    Args:
        mu: what the release may cost; all of the budget by default.
        joint: the sum of rows is released with the statistic, by mechanisms that can.
        pairs: points are differences of rows: a record that is taken out leaves its partner.
    """
    mechanism = mechanism_class(privacy)
    mu = privacy.mu if mu is None else mu
    return mechanism.calibrate(
        privacy,
        n_features,
        mu=mu,
        joint=joint and mechanism.supports_joint,
        adjacency="replace-one" if pairs else privacy.adjacency,
    )


def build(
    privacy: "Privacy",
    clipping: Clipping,
    n_features: int,
    *,
    rank: int,
    noise: Noise | None = None,
    mu: float | None = None,
    joint: bool = False,
    batch_rows: int | None = None,
) -> Mechanism:
    """The mechanism that the settings name, ready for rows.

    Args:
        clipping: how rows become points.
        rank: how many directions are wanted.
        noise: where a continuous mechanism gets its noise from; others need none.
        mu, joint: see `calibrate`.
        batch_rows: rows that a continuous mechanism noises at a time; None for 1024.
    """
    mechanism = mechanism_class(privacy)
    calibration = calibrate(privacy, n_features, mu=mu, joint=joint, pairs=clipping.pairs)
    reports = Schedule(privacy.releases).weights(privacy.releases)
    if too_large(calibration.sigma * RADIUS**2 * float(reports.sum())):
        raise ValueError(
            f"epsilon must be larger, got epsilon={privacy.epsilon:g}: its noise would drown the sum of "
            f"{MAX_ROWS} rows, and is too large to be exact."
        )
    mechanism.check_features(n_features)
    return mechanism(
        Setup(
            clipping=clipping,
            n_features=n_features,
            calibration=calibration,
            joint=joint and mechanism.supports_joint,
            rank=rank,
            batch_rows=batch_rows,
            noise=noise,
        )
    )
