"""fedpca plan, fedpca audit: what a private configuration would give, and whether it keeps its promise."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from fedpca.cli.common import AsJson, bars, say

if TYPE_CHECKING:
    from fedpca.privacy import Privacy

_NUMBERS = ("epsilon", "delta", "bound")
_WORDS = ("adjacency", "mechanism", "center", "noise", "calibration", "ledger")


def settings(text: str) -> "Privacy":
    """The `Privacy` that --privacy says.

    >>> settings("epsilon=1,delta=1e-5,bound=40,center=private")
    Privacy(epsilon=1.0, delta=1e-05, bound=40.0, center='private')
    """
    from fedpca.privacy import Privacy

    given: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in _NUMBERS + _WORDS or not value:
            known = ", ".join(_NUMBERS + _WORDS)
            raise typer.BadParameter(f"--privacy is made of name=value with names of {known}, got {part!r}.")
        try:
            given[name] = float(value) if name in _NUMBERS else value
        except ValueError:
            raise typer.BadParameter(
                f"{name} must be a number, got {part!r}; write it as in {name}=1."
            ) from None
    if missing := [name for name in _NUMBERS if name not in given]:
        more = ",".join(f"{name}=NUMBER" for name in missing)
        raise typer.BadParameter(f"--privacy must say {', '.join(missing)}, got {text!r}; add {more}.")
    try:
        return Privacy(**given)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def plan(
    epsilon: Annotated[float, typer.Option(help="The promise's epsilon.")],
    delta: Annotated[float, typer.Option(help="The promise's delta, far below one over the rows.")],
    bound: Annotated[float, typer.Option(help="Rows are clipped to this norm.")],
    features: Annotated[int, typer.Option(help="How many columns there are.")],
    rows: Annotated[int | None, typer.Option(help="How many rows there will be, of all owners.")] = None,
    components: Annotated[int, typer.Option(help="How many are wanted.")] = 1,
    owners: Annotated[int, typer.Option(help="How many will release, and be merged.")] = 1,
    center: Annotated[str | None, typer.Option(help="private, if fit is to find it so.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what to expect of private components."""
    from fedpca.privacy import Privacy
    from fedpca.privacy import plan as planned

    promise = Privacy(epsilon, delta, bound, center=cast(Literal["private"] | None, center))
    made = planned(promise, features, rows, n_components=components, owners=owners)
    facts = {
        name: getattr(made, name)
        for name in (
            "mu",
            "sigma",
            "noise_edge",
            "rows_needed",
            "n_rows",
            "components_found",
            "memory",
            "advice",
        )
    }
    say(facts, as_json, repr(made))


def audit(
    privacy: Annotated[str, typer.Option(help="The configuration, as for fit.")],
    epsilon: Annotated[float, typer.Option(help="To audit at: a large one is where most is seen.")] = 8.0,
    delta: Annotated[float, typer.Option(help="To audit at.")] = 1e-5,
    features: Annotated[int, typer.Option(help="To audit with: few is where most is seen.")] = 3,
    runs: Annotated[int, typer.Option(help="Of each world.")] = 4000,
    as_json: AsJson = False,
) -> None:
    """Try to catch a private configuration lying.

    It runs on pairs of worlds that differ in one row. Exit code 1 if more shows than is promised.
    """
    from fedpca.privacy.audit import audit as audited

    configuration = settings(privacy)
    with bars():
        done = audited(configuration, epsilon=epsilon, delta=delta, n_features=features, runs=runs)
    findings = [asdict(finding) for finding in done.findings]
    facts = {"passed": done.passed, "mu": done.mu, "runs": done.runs, "findings": findings}
    say(facts, as_json, repr(done))
    if not done.passed:
        raise typer.Exit(1)
