"""fedpca plan: what to expect of private components, before anything is spent."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from fedpca._util.text import pluralize
from fedpca.cli import model_files
from fedpca.cli.common import AsJson, print_result
from fedpca.cli.privacy_options import (
    BOUND,
    DELTA,
    EPSILON,
    NO_LEDGER,
    Adjacency,
    Evaluate,
    Mechanism,
    PrivateCenter,
    privacy_settings,
)

if TYPE_CHECKING:
    from fedpca.privacy.planning import Plan
    from fedpca.secure.planning import Costs, SecurePlan

_FIELDS = (
    "mu", "sigma", "noise_edge", "rows_needed", "n_rows", "components_found", "affinity", "captured",
    "affinity_limit", "captured_limit", "memory", "advice",
)  # fmt: skip
_SECURE_FIELDS = (
    "owners", "least", "colluding", "threshold", "noise", "noise_of_least", "rows_needed_by_least",
    "rows_needed_alone", "sums", "most_sums", "visits", "bits",
)  # fmt: skip


def plan(
    epsilon: Annotated[float, EPSILON],
    delta: Annotated[float, DELTA],
    features: Annotated[int, typer.Option(metavar="N", help="Number of columns.")],
    rows: Annotated[int | None, typer.Option(metavar="N", help="Number of rows of all owners.")] = None,
    components: Annotated[
        int, typer.Option("--components", "-n", metavar="N", help="Components wanted.")
    ] = 1,
    owners: Annotated[
        int, typer.Option(metavar="N", help="Number of owners whose releases will be merged.")
    ] = 1,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Compare with secure sums over the owners: what they save, and what they cost."
        ),
    ] = False,
    least: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --secure: fewest owners in a valid sum. [default: just over half of all owners and "
            "those who may collude]",
        ),
    ] = None,
    colluding: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --secure: number of owners who may side with the coordinator. [default: 1]",
        ),
    ] = None,
    spectrum: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS|FILE",
            help="Variances along the leading directions, from public data: numbers as in 4,2,1 (without a "
            "bound, shares of the total as in 0.4,0.2), a text file of them, or a model file. [default: they "
            "fall as 1, 1/2, 1/3, ...]",
        ),
    ] = None,
    typical: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Typical length of a row about the center, from public data, instead of a spectrum. "
            "[default: about as long as the bound]",
        ),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="NAME", help="std if columns will be scaled. [default: not scaled]")
    ] = None,
    center: PrivateCenter = None,
    bound: Annotated[str | None, BOUND] = None,
    evaluate: Evaluate = None,
    mechanism: Mechanism = None,
    adjacency: Adjacency = None,
    as_json: AsJson = False,
) -> None:
    """Plan a private model: the noise it needs, and how many components will rise above it.

    No private row is read, and nothing is spent.

    Example:

    ```
    fedpca plan --epsilon 1 --delta 1e-6 --features 30 --rows 5000 -n 3
    fedpca plan --epsilon 1 --delta 1e-6 --features 30 --rows 5000 --spectrum published.safetensors
    fedpca plan --epsilon 1 --delta 1e-6 --features 30 --owners 10 --secure --least 8
    ```
    """
    if not secure and (least, colluding) != (None, None):
        raise typer.BadParameter("--least and --colluding are the terms of secure sums: add --secure.")
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

    from fedpca.secure.planning import SecurePlan
    from fedpca.secure.planning import plan as make_plan
    from fedpca.secure.settings import SecureSums

    result = make_plan(
        privacy,
        features,
        rows,
        None if spectrum is None else _variances(spectrum, shares=bound is None),
        n_components=components,
        owners=owners,
        typical=typical,
        scale=cast("Literal['std'] | None", scale),
        secure=SecureSums(least, 1 if colluding is None else colluding) if secure else None,
    )
    data = {name: getattr(result, name) for name in _FIELDS}
    lines = _lines(result)
    if isinstance(result, SecurePlan):
        data |= {name: getattr(result, name) for name in _SECURE_FIELDS}
        data |= {name: getattr(result, name)._asdict() for name in ("owner", "coordinator")}
        lines |= _secure_lines(result)
    table = "\n".join(f"{name:<12} {value}" for name, value in lines.items())
    print_result(data, as_json, f"{table}\n\n{result.advice}\n{NO_LEDGER}")


def _variances(text: str, *, shares: bool) -> list[float]:
    """The variances in --spectrum: those of a model, or of a file of numbers, or the numbers themselves.

    Of a model they are `shares` of the total if no bound is public.
    """
    path = Path(text)
    if path.suffix == ".safetensors":
        summary, _ = model_files.read(path)
        description = model_files.describe(summary, summary.n_features)
        values: list[float] = description["explained_variance_ratio" if shares else "explained_variance"]
        return values
    contents = path.read_text() if path.is_file() else text
    try:
        return [float(number) for number in contents.replace(",", " ").split()]
    except ValueError as error:
        raise typer.BadParameter(
            f"--spectrum must be numbers such as 4,2,1, or a file of them, or a model file, got {text!r:.80}."
        ) from error


def _lines(plan: "Plan") -> dict[str, str]:
    components = pluralize(plan.n_components, "component")
    unit = "" if isinstance(plan.privacy.bound, str) else " bound²"
    lines = {
        "privacy": f"epsilon={plan.privacy.epsilon:g}, delta={plan.privacy.delta:g}, mu={plan.mu:.4g}",
        "noise": f"sigma={plan.sigma:.4g}{unit}; its largest eigenvalue is about {plan.noise_edge:.4g}",
        "rows needed": f"{plan.rows_needed:,} for {components}",
    }
    if plan.n_rows is not None:
        lines["found"] = f"{plan.components_found} of {components}, with {pluralize(plan.n_rows, 'row')}"
        most, affinity, captured = "", plan.affinity, plan.captured
        if affinity is None:
            most, affinity, captured = "at most ", plan.affinity_limit, plan.captured_limit
        lines["affinity"] = f"{most}{affinity:.2f}, the mean squared cosine to the exact components"
        lines["captured"] = f"{most}{captured:.0%} of the variance that the exact components explain"
    lines["memory"] = f"{plan.memory / 1e6:.1f} MB per owner"
    return lines


def _secure_lines(plan: "SecurePlan") -> dict[str, str]:
    by_least = f"{plan.rows_needed_by_least:,} if {plan.least} do"
    return {
        "rows needed": f"{plan.rows_needed:,} if all {plan.owners} owners take part, {by_least}; without "
        f"secure sums {plan.rows_needed_alone:,}",
        "secure": f"at least {plan.least} of {plan.owners} owners in every sum, {plan.colluding} may collude "
        f"with the coordinator; {plan.threshold} open a sum",
        "variance": f"{plan.noise:.2f} times that of one pool if all take part, {plan.noise_of_least:.2f} "
        f"times if {plan.least} do",
        "sums": f"{len(plan.sums)} to expect, {plan.most_sums} at most; {plan.visits} visits per owner",
        "owner": _costs(plan.owner),
        "coordinator": _costs(plan.coordinator),
        "wrap-around": f"excluded: integers have at most {plan.bits:.0f} of 63 bits",
    }


def _costs(costs: "Costs") -> str:
    sent, received, seconds = (
        f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
        for value in (costs.sent / 1e6, costs.received / 1e6, costs.seconds)
    )
    return f"{sent} MB sent, {received} MB received, about {seconds} s of one core"
