"""Options of commands that sign, or check who signed."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedpca.trust.roster import Roster

_log = logging.getLogger("fedpca.cli")

RosterOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The roster of the study, roster.toml: only its members are heard."),
]


def load_roster(path: Path | None) -> "Roster | None":
    """The roster; None, said in the log, if there is none."""
    from fedpca.trust.roster import ANYONE, Roster

    if path is None:
        _log.info(ANYONE)
        return None
    return Roster.load(path)
