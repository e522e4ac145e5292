"""Mechanisms: what is noised, one per file."""

from fedpca.privacy.mechanisms.base import Calibration, ClippingBall, Mechanism
from fedpca.privacy.mechanisms.registry import MECHANISMS, MechanismName, build, calibrate, mechanism_class

__all__ = [
    "MECHANISMS",
    "Calibration",
    "ClippingBall",
    "Mechanism",
    "MechanismName",
    "build",
    "calibrate",
    "mechanism_class",
]
