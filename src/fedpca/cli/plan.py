"""fedpca plan: what to expect of private components, before anything is spent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import Parameter

from fedpca._util.text import pluralize
from fedpca.cli import model_files
from fedpca.cli.options import (
    INTEGER,
    PRIVACY,
    Flag,
    Output,
    Real,
    Text,
    WrongUsage,
    option,
    wrong_usage,
)
from fedpca.cli.privacy_options import NO_LEDGER, Mechanism, PrivateCenter
from fedpca.privacy import Privacy
from fedpca.privacy.planning import Plan
from fedpca.secure.planning import Costs, SecurePlan
from fedpca.secure.planning import plan as make_plan
from fedpca.secure.settings import SecureSums

_FIELDS = (
    "mu", "sigma", "noise_edge", "rows_needed", "n_rows", "components_found", "affinity", "captured",
    "affinity_limit", "captured_limit", "memory", "advice",
)  # fmt: skip
_SECURE_FIELDS = (
    "owners", "least", "colluding", "threshold", "noise", "noise_of_least", "rows_needed_by_least",
    "rows_needed_alone", "sums", "most_sums", "visits", "bits",
)  # fmt: skip


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Terms:
    """Secure sums to compare with."""

    secure: Flag = False
    """Compare with secure sums over the owners: what they save, and what they cost."""
    least: Annotated[int | None, INTEGER] = None
    """With --secure: fewest owners in a valid sum. By default just over half of all owners and those who may
    collude."""
    colluding: Annotated[int | None, INTEGER] = None
    """With --secure: number of owners who may side with the coordinator. By default 1."""

    def sums(self) -> SecureSums | None:
        """The terms; None without --secure."""
        if self.secure:
            return SecureSums(self.least, 1 if self.colluding is None else self.colluding)
        if (self.least, self.colluding) != (None, None):
            raise WrongUsage("--least and --colluding are the terms of secure sums: add --secure.")
        return None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Typical:
    """What is publicly known about the rows."""

    spectrum: Annotated[str | None, Parameter(metavar="NUMBERS|FILE")] = None
    """Variances along the leading directions, from public data: numbers as in 4,2,1 (without a bound, shares
    of the total as in 0.4,0.2), a text file of them, or a model file. By default they fall as 1, 1/2, 1/3,
    ..."""
    typical: Real | None = None
    """Typical length of a row about the center, from public data, instead of a spectrum. By default about as
    long as the bound."""


def plan(
    *,
    epsilon: Annotated[Real, Parameter(group=PRIVACY)],
    delta: Annotated[Real, Parameter(group=PRIVACY)],
    features: Annotated[int, INTEGER],
    rows: Annotated[int | None, INTEGER] = None,
    components: Annotated[int, option("--components", "-n"), INTEGER] = 1,
    owners: Annotated[int, INTEGER] = 1,
    terms: Terms = Terms(),
    typical: Typical = Typical(),
    scale: Text | None = None,
    center: PrivateCenter = PrivateCenter(),
    mechanism: Mechanism = Mechanism(),
    output: Output = Output(),
) -> None:
    """Plan a private model: the noise it needs, and how many components will rise above it.

    No private row is read, and nothing is spent.

    For example:

    ```
    fedpca plan --epsilon 1 --delta 1e-6 --features 30 --rows 5000 -n 3
    fedpca plan --epsilon 1 --delta 1e-6 --features 30 --rows 5000 --spectrum published.safetensors
    fedpca plan --epsilon 1 --delta 1e-6 --features 30 --owners 10 --secure --least 8
    ```

    Args:
        epsilon: Epsilon of the guarantee.
        delta: Delta of the guarantee, far below one over the number of rows.
        features: Number of columns.
        rows: Number of rows of all owners.
        components: Components wanted.
        owners: Number of owners whose releases will be merged.
        scale: std if columns will be scaled. By default they are not.
    """
    secure = terms.sums()
    with wrong_usage():
        privacy = Privacy(epsilon=epsilon, delta=delta, **mechanism.given() | center.given())
    shares = mechanism.bound is None
    result = make_plan(
        privacy,
        features,
        rows,
        None if typical.spectrum is None else _variances(typical.spectrum, shares=shares),
        n_components=components,
        owners=owners,
        typical=typical.typical,
        scale=cast(Literal["std"] | None, scale),
        secure=secure,
    )
    data = {name: getattr(result, name) for name in _FIELDS}
    lines = _lines(result)
    if isinstance(result, SecurePlan):
        data |= {name: getattr(result, name) for name in _SECURE_FIELDS}
        data |= {name: getattr(result, name)._asdict() for name in ("owner", "coordinator")}
        lines |= _secure_lines(result)
    table = "\n".join(f"{name:<12} {value}" for name, value in lines.items())
    output.result(data, f"{table}\n\n{result.advice}\n{NO_LEDGER}")


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
        raise WrongUsage(
            f"--spectrum must be numbers such as 4,2,1, or a file of them, or a model file, got {text!r:.80}."
        ) from error


def _lines(plan: Plan) -> dict[str, str]:
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


def _secure_lines(plan: SecurePlan) -> dict[str, str]:
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


def _costs(costs: Costs) -> str:
    sent, received, seconds = (
        f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
        for value in (costs.sent / 1e6, costs.received / 1e6, costs.seconds)
    )
    return f"{sent} MB sent, {received} MB received, about {seconds} s of one core"
