"""Mechanisms: what is noised, one per file."""

from fedpca.privacy.mechanisms.base import Calibration, Mechanism
from fedpca.privacy.mechanisms.registry import MECHANISMS, MechanismName, build, calibrate, mechanism_class

__all__ = [
    "MECHANISMS",
    "Calibration",
    "Mechanism",
    "MechanismName",
    "build",
    "calibrate",
    "mechanism_class",
]
