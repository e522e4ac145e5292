"""The paper's experiments, one file a figure or table, and the page they make together.

fedpca reproduce --quick
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpca.experiments.base import Experiment
from fedpca.experiments.execution_time import ExecutionTime
from fedpca.experiments.federated_scaling import FederatedScaling
from fedpca.experiments.memory import Memory
from fedpca.experiments.merging import Merging
from fedpca.experiments.over_time_real import OverTimeReal
from fedpca.experiments.over_time_synthetic import OverTimeSynthetic
from fedpca.experiments.page import write_page
from fedpca.experiments.projections import Projections
from fedpca.experiments.real_errors import RealErrors
from fedpca.experiments.synthetic_errors import SpectrumErrors, SyntheticErrors
from fedpca.experiments.time_order import TimeOrder
from fedpca.experiments.utility import Utility

__all__ = ["EXPERIMENTS", "reproduce"]

_IN_ORDER: tuple[type[Experiment], ...] = (
    Projections,
    Utility,
    RealErrors,
    SyntheticErrors,
    ExecutionTime,
    FederatedScaling,
    Merging,
    OverTimeSynthetic,
    SpectrumErrors,
    OverTimeReal,
    TimeOrder,
    Memory,
)
EXPERIMENTS = {kind.name: kind for kind in _IN_ORDER}


def reproduce(names: Sequence[str], folder: Path, *, quick: bool = False, seed: int = 0) -> Path:
    """Run experiments, and write a page of them.

    What is already measured in the folder is not measured again.

    Args:
        names: of `EXPERIMENTS`.
        folder: for the page, and a table and pictures for each experiment.
        quick: with smaller settings, and fewer of them.
        seed: of all random numbers.

    Returns:
        Where the page is.
    """
    results = []
    for name in names:
        experiment = replace(EXPERIMENTS[name](), seed=seed)
        results.append((experiment.quick() if quick else experiment).run(folder / name))
    settings = "smaller settings than the paper's" if quick else "the paper's settings"
    return write_page(folder, results, f"Measured with {settings} and seed {seed}.")
