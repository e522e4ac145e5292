"""All experiments in the order of the page, and the function that runs some of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reproduction.base import Experiment
from reproduction.execution_time import ExecutionTime
from reproduction.federated_scaling import FederatedScaling
from reproduction.first_batch import FirstBatch
from reproduction.forgetting import Forgetting
from reproduction.memory import Memory
from reproduction.merging import Merging
from reproduction.over_time_real import OverTimeReal
from reproduction.over_time_synthetic import OverTimeSynthetic
from reproduction.page import write_page
from reproduction.projections import Projections
from reproduction.real_errors import RealErrors
from reproduction.synthetic_errors import SpectrumErrors, SyntheticErrors
from reproduction.time_order import TimeOrder
from reproduction.utility import Utility

_IN_ORDER: tuple[type[Experiment], ...] = (
    Projections,
    Utility,
    FirstBatch,
    RealErrors,
    SyntheticErrors,
    ExecutionTime,
    FederatedScaling,
    Merging,
    Forgetting,
    OverTimeSynthetic,
    SpectrumErrors,
    OverTimeReal,
    TimeOrder,
    Memory,
)
EXPERIMENTS = {kind.name: kind for kind in _IN_ORDER}


def reproduce(names: Sequence[str], folder: Path, *, quick: bool = False, seed: int = 0) -> Path:
    """Run experiments and write a page about them.

    Cases that the folder already has results for are not measured again.

    Args:
        names: keys of `EXPERIMENTS`.
        folder: where the page goes, and a table and plots for each experiment.
        quick: use smaller settings.
        seed: of all random numbers.

    Returns:
        The path of the page.
    """
    results = []
    for name in names:
        experiment = replace(EXPERIMENTS[name](), seed=seed)
        results.append((experiment.quick() if quick else experiment).run(folder / name))
    settings = "smaller settings than the paper's" if quick else "the paper's settings"
    return write_page(folder, results, f"Measured with {settings} and seed {seed}.")
