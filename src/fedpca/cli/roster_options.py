"""Options of commands that sign, or check who signed."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedpca.privacy import Privacy
    from fedpca.readers import RowReader
    from fedpca.trust.roster import Roster, Signer

_log = logging.getLogger("fedpca.cli")

RosterOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The roster of the study, roster.toml, which lists its members."),
]

KeyOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your key file: signs what is written, as a member of the roster."),
]


def load_roster(path: Path | None) -> "Roster | None":
    """The roster; None, said in the log, if there is none."""
    from fedpca.trust.roster import ANYONE, Roster

    if path is None:
        _log.info(ANYONE)
        return None
    return Roster.load(path)


def load_signer(roster: Path | None, key: Path | None) -> "Signer | None":
    """Who signs what a command writes; None if nobody does."""
    if (roster is None) != (key is None):
        raise typer.BadParameter("--roster and --key need each other: a member signs, with its key.")
    study = load_roster(roster)
    if study is None or key is None:
        return None

    from fedpca.trust.keys import SigningKey

    return study.signer(SigningKey.load(key))


def signed_privacy(signer: "Signer", privacy: "Privacy | None") -> "Privacy | None":
    """The privacy of a member's fit, after a check that it is the roster's; its ledger is signed, too."""
    from fedpca.federation.aggregator import membership

    agreed = membership.agreed(signer.roster, None, None, privacy)[2]
    if privacy is None and agreed is not None:
        raise typer.BadParameter(
            f"the roster requires privacy; add --epsilon {agreed.epsilon:g} --delta {agreed.delta:g}."
        )
    return None if privacy is None else privacy.with_signed_ledger(signer.key)


def check_fit(
    signer: "Signer", rows: "RowReader", centered: bool, scale: object, privacy: "Privacy | None"
) -> None:
    """Refuse a member's fit that is not what the roster says: before anything is spent on the rows."""
    from fedpca.disclosure.row_counts import Rows
    from fedpca.federation.aggregator import membership
    from fedpca.trust import agreement

    found = agreement.of_fit(rows.n_features, rows.feature_names, centered, scale)
    membership.require(signer.roster, found)
    if privacy is not None and signer.member.rows is not None:
        check_rows(signer, Rows.of(rows).length())


def check_rows(signer: "Signer", count: int) -> None:
    """Refuse more rows than the member declared."""
    from fedpca.federation.aggregator import membership

    membership.check_declared(signer.roster, signer.member.id, count)
