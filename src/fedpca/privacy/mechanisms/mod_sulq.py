"""MOD-SuLQ (Chaudhuri, Sarwate, Sinha 2012), for comparison: the noisy sum of x x^T with its own beta."""

from typing import TYPE_CHECKING

from fedpca.privacy.calibration import SENSITIVITY, Adjacency, mod_sulq_beta
from fedpca.privacy.mechanisms.base import Calibration, CalibrationName
from fedpca.privacy.mechanisms.gram import NoisySum
from fedpca.privacy.schedule import Schedule

if TYPE_CHECKING:
    from fedpca.privacy.settings import Privacy


class ModSulq(NoisySum):
    """The sum of x x^T with a mask that is i.i.d. on and above the diagonal, as large as published."""

    name = "mod-sulq"
    supports_joint = False
    less_accurate = True

    @classmethod
    def calibrated_by_mu(cls, calibration: CalibrationName) -> bool:
        return False

    @classmethod
    def sensitivity(cls, adjacency: Adjacency, *, joint: bool) -> float:
        return SENSITIVITY[adjacency]

    @classmethod
    def calibrate(
        cls, privacy: "Privacy", n_features: int, *, mu: float, joint: bool, adjacency: Adjacency
    ) -> Calibration:
        norm = Schedule(privacy.releases).column_norm
        sensitivity = cls.sensitivity(adjacency, joint=joint) * norm
        sigma = norm * mod_sulq_beta(privacy.epsilon, privacy.delta, n_features, 1)
        return Calibration(sensitivity, sigma, sigma, sensitivity / sigma)
