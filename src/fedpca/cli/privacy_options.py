"""The privacy settings as options, the same for all commands."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedpca.privacy import Privacy

_PANEL = "Privacy"
_REQUIRED = ("epsilon", "delta")


class Center(StrEnum):
    """What is subtracted from rows."""

    mean = "mean"
    none = "none"
    private = "private"
    pairs = "pairs"


EPSILON = typer.Option(metavar="NUMBER", help="Epsilon of the guarantee.", rich_help_panel=_PANEL)
DELTA = typer.Option(
    metavar="NUMBER",
    help="Delta of the guarantee, far below one over the number of rows.",
    rich_help_panel=_PANEL,
)
BOUND = typer.Option(
    metavar="NUMBER",
    help="Rows are clipped to this length, a public number; sphere scales all to length one. By default "
    "found privately.",
    rich_help_panel=_PANEL,
)
Evaluate = Annotated[
    bool | None,
    typer.Option(
        "--evaluate/--no-evaluate",
        help="Keep 5 % of the budget to measure how much variance the components explain, or not. "
        "[default: evaluate]",
        rich_help_panel=_PANEL,
    ),
]
PrivateCenter = Annotated[
    Center | None,
    typer.Option(
        help="What to subtract: the mean, found privately, or none; or pairs: differences of random pairs of "
        "rows, which show no mean. [default: private]",
        rich_help_panel=_PANEL,
    ),
]
Mechanism = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="gram, or sketch for more than 4096 features. [default: gram]",
        rich_help_panel=_PANEL,
    ),
]
Adjacency = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Which datasets are neighbors: replace-one or zero-out. [default: replace-one]",
        rich_help_panel=_PANEL,
    ),
]
Ledger = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Account of what was spent on these rows; created if missing. Refuses what exceeds its budget.",
        rich_help_panel=_PANEL,
    ),
]

NO_LEDGER = "Fit with --ledger FILE: without it nothing adds up what several fits of the same rows cost."


def privacy_settings(center: Center | None = None, **settings: Any) -> "Privacy | None":
    """The `Privacy` of the options given; None if none are.

    >>> privacy_settings(Center.none, epsilon=1.0, delta=1e-5, bound="40", ledger=None)
    Privacy(epsilon=1.0, delta=1e-05, bound=40.0, center=None)
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if not given and center not in (Center.private, Center.pairs):
        return None
    if missing := [f"--{name}" for name in _REQUIRED if name not in given]:
        raise typer.BadParameter(f"a private model needs --epsilon and --delta; add {' and '.join(missing)}.")
    if center is Center.mean:
        raise typer.BadParameter("--center mean would reveal the mean; pass --center private or none.")

    from fedpca.privacy import Privacy

    if "bound" in given:
        given["bound"] = _parse_bound(given["bound"])
    try:
        return Privacy(**given | {"center": None if center is Center.none else str(center or Center.private)})
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _parse_bound(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
