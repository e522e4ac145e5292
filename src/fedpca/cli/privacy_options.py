"""The privacy settings as options, the same for all commands."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from fedpca.cli.options import PRIVACY, Real, Text, WrongUsage, wrong_usage
from fedpca.privacy import Privacy

NO_LEDGER = "Fit with --ledger FILE: without it nothing adds up what several fits of the same rows cost."


@Parameter(name="*", group=PRIVACY)
@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """How a private model is made."""

    bound: Annotated[str | None, Parameter(metavar="NUMBER")] = None
    """Rows are clipped to this length, a public number; sphere scales all to length one. By default found
    privately."""
    evaluate: Annotated[bool | None, Parameter(negative="--no-evaluate")] = None
    """Keep 5 % of the budget to measure how much variance the components explain, or not. By default it is
    kept."""
    mechanism: Text | None = None
    """gram, or sketch for more than 4096 features. By default gram."""
    adjacency: Text | None = None
    """Which datasets are neighbors: replace-one or zero-out. By default replace-one."""

    def given(self) -> dict[str, Any]:
        """The settings that are given."""
        settings = {name: getattr(self, name) for name in ("evaluate", "mechanism", "adjacency")}
        settings["bound"] = None if self.bound is None else _number_or_name(self.bound)
        return {name: value for name, value in settings.items() if value is not None}


@Parameter(name="*", group=PRIVACY)
@dataclass(frozen=True, kw_only=True)
class PrivateCenter:
    """What is subtracted from private rows."""

    center: Literal["private", "pairs", "none"] | None = None
    """What to subtract: private, the mean, found privately; pairs, differences of random pairs of rows, which
    show no mean; or none. By default private."""

    def given(self) -> dict[str, Any]:
        """The setting, if it is given."""
        if self.center is None:
            return {}
        return {"center": None if self.center == "none" else self.center}


@Parameter(name="*", group=PRIVACY)
@dataclass(frozen=True, kw_only=True)
class Private:
    """Whether a fit is private, and how."""

    epsilon: Real | None = None
    """Epsilon of the guarantee."""
    delta: Real | None = None
    """Delta of the guarantee, far below one over the number of rows."""
    ledger: Annotated[str | None, Parameter(metavar="FILE")] = None
    """Account of what was spent on these rows; created if missing. Refuses what exceeds its budget."""

    def privacy(self, center: str | None, mechanism: Mechanism) -> Privacy | None:
        """The `Privacy` of the options given; None if none are.

        >>> Private(epsilon=1.0, delta=1e-5).privacy("none", Mechanism(bound="40"))
        Privacy(epsilon=1.0, delta=1e-05, bound=40.0, center=None)
        """
        budget = {name: getattr(self, name) for name in ("epsilon", "delta", "ledger")}
        given = mechanism.given() | {name: value for name, value in budget.items() if value is not None}
        if not given and center not in ("private", "pairs"):
            return None
        if missing := [f"--{name}" for name in ("epsilon", "delta") if name not in given]:
            raise WrongUsage(f"a private model needs --epsilon and --delta; add {' and '.join(missing)}.")
        if center == "mean":
            raise WrongUsage("--center mean would reveal the mean; pass --center private or none.")
        with wrong_usage():
            return Privacy(**given | {"center": None if center == "none" else center or "private"})


def _number_or_name(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
