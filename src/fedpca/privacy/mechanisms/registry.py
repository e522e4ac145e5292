"""The mechanisms by name. A new one is a file of its own, and its class and name here."""

from typing import TYPE_CHECKING, Literal

from fedpca.privacy.clipping import MAX_ROWS, RADIUS, Clipping
from fedpca.privacy.mechanisms.base import Calibration, Mechanism
from fedpca.privacy.mechanisms.gram import Gram
from fedpca.privacy.mechanisms.sketch import Sketch
from fedpca.privacy.noise import too_large
from fedpca.privacy.schedule import Schedule

if TYPE_CHECKING:
    from fedpca.privacy.settings import Privacy

MechanismName = Literal["gram", "sketch"]
MECHANISMS: dict[str, type[Mechanism]] = {mechanism.name: mechanism for mechanism in (Gram, Sketch)}


def mechanism_class(privacy: "Privacy") -> type[Mechanism]:
    """The mechanism that the settings name."""
    return MECHANISMS[privacy.mechanism]


def calibrate(
    privacy: "Privacy", *, mu: float | None = None, joint: bool = False, pairs: bool = False
) -> Calibration:
    """The noise of one increment under a schedule of releases.

    Args:
        mu: what the release may cost; all of the budget by default.
        joint: the sum of rows is released with the statistic.
        pairs: points are differences of rows: a record that is taken out leaves its partner.
    """
    return mechanism_class(privacy).calibrate(
        privacy.mu if mu is None else mu,
        releases=privacy.releases,
        joint=joint,
        adjacency="replace-one" if pairs else privacy.adjacency,
    )


def build(
    privacy: "Privacy",
    clipping: Clipping,
    n_features: int,
    *,
    rank: int,
    mu: float | None = None,
    joint: bool = False,
) -> Mechanism:
    """The mechanism that the settings name, ready for rows.

    Args:
        clipping: how rows become points.
        rank: how many directions are wanted.
        mu, joint: see `calibrate`.
    """
    calibration = calibrate(privacy, mu=mu, joint=joint, pairs=clipping.pairs)
    reports = Schedule(privacy.releases).weights(privacy.releases)
    if too_large(calibration.sigma * RADIUS**2 * float(reports.sum())):
        raise ValueError(
            f"epsilon must be larger, got epsilon={privacy.epsilon:g}: its noise would drown the sum of "
            f"{MAX_ROWS} rows, and is too large to be exact."
        )
    mechanism = mechanism_class(privacy)
    mechanism.check_features(n_features)
    return mechanism(clipping, n_features, calibration, joint=joint, rank=rank)
