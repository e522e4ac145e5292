"""fedpca audit: an empirical test of a privacy guarantee."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from fedpca.cli.common import AsJson, print_result, progress_bars
from fedpca.cli.privacy_options import (
    BOUND,
    Adjacency,
    Evaluate,
    Mechanism,
    PrivateCenter,
    privacy_settings,
)


class PrivateScale(StrEnum):
    """A scale that is found privately."""

    std = "std"


def audit(
    epsilon: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            help="Epsilon to audit at. Large values give more power; the code that runs is the same.",
            rich_help_panel="Privacy",
        ),
    ] = 8.0,
    delta: Annotated[
        float, typer.Option(metavar="NUMBER", help="Delta to audit at.", rich_help_panel="Privacy")
    ] = 1e-5,
    center: PrivateCenter = None,
    bound: Annotated[str | None, BOUND] = None,
    scale: Annotated[
        PrivateScale | None,
        typer.Option(
            help="std: audit that the scale of every column is found privately, too.",
            rich_help_panel="Privacy",
        ),
    ] = None,
    evaluate: Evaluate = None,
    mechanism: Mechanism = None,
    adjacency: Adjacency = None,
    features: Annotated[int, typer.Option(metavar="N", help="Number of columns; few give more power.")] = 3,
    runs: Annotated[int, typer.Option(metavar="N", help="Runs per dataset.")] = 4000,
    as_json: AsJson = False,
) -> None:
    """Empirically audit a private configuration.

    It runs on pairs of datasets that differ in one row. Whatever is found privately is audited step by step
    and as a whole. The exit code is 1 if anything reveals more than the guarantee allows.

    Example:

    ```
    fedpca audit --runs 1000
    ```
    """
    privacy = privacy_settings(
        center,
        epsilon=epsilon,
        delta=delta,
        bound=bound,
        evaluate=evaluate,
        mechanism=mechanism,
        adjacency=adjacency,
    )
    assert privacy is not None

    from fedpca.auditing.audit import audit as run_audit

    with progress_bars():
        result = run_audit(
            privacy,
            scale=None if scale is None else "std",
            epsilon=epsilon,
            delta=delta,
            n_features=features,
            runs=runs,
        )
    findings = [asdict(finding) for finding in result.findings]
    data = {"passed": result.passed, "mu": result.mu, "runs": result.runs, "findings": findings}
    print_result(data, as_json, repr(result))
    if not result.passed:
        raise typer.Exit(1)
