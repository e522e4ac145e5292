"""fedpca audit: an empirical test of a privacy guarantee."""

from dataclasses import asdict
from typing import Annotated, Literal

from cyclopts import Parameter

from fedpca.auditing.audit import audit as run_audit
from fedpca.cli.options import INTEGER, PRIVACY, Output, Real, wrong_usage
from fedpca.cli.privacy_options import Mechanism, PrivateCenter
from fedpca.privacy import Privacy


def audit(
    *,
    epsilon: Annotated[Real, Parameter(group=PRIVACY)] = 8.0,
    delta: Annotated[Real, Parameter(group=PRIVACY)] = 1e-5,
    center: PrivateCenter = PrivateCenter(),
    scale: Annotated[Literal["std"] | None, Parameter(group=PRIVACY)] = None,
    mechanism: Mechanism = Mechanism(),
    features: Annotated[int, INTEGER] = 3,
    runs: Annotated[int, INTEGER] = 4000,
    output: Output = Output(),
) -> None:
    """Empirically audit a private configuration.

    It runs on pairs of datasets that differ in one row. Whatever is found privately is audited step by step
    and as a whole. The exit code is 1 if anything reveals more than the guarantee allows.

    For example:

    ```
    fedpca audit --runs 1000
    ```

    Args:
        epsilon: Epsilon to audit at. Large values give more power; the code that runs is the same.
        delta: Delta to audit at.
        scale: std: audit that the scale of every column is found privately, too.
        features: Number of columns; few give more power.
        runs: Runs per dataset.
    """
    with wrong_usage():
        privacy = Privacy(epsilon=epsilon, delta=delta, **mechanism.given() | center.given())
    with output.progress():
        result = run_audit(
            privacy,
            scale=scale,
            epsilon=epsilon,
            delta=delta,
            n_features=features,
            runs=runs,
        )
    findings = [asdict(finding) for finding in result.findings]
    data = {"passed": result.passed, "mu": result.mu, "runs": result.runs, "findings": findings}
    output.result(data, repr(result))
    if not result.passed:
        raise SystemExit(1)
