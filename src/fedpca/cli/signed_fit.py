"""What a member's fit must be: what the roster of its study says."""

from fedpca.cli.options import WrongUsage
from fedpca.disclosure.row_counts import Rows
from fedpca.federation.aggregator import membership
from fedpca.privacy import Privacy
from fedpca.readers import RowReader
from fedpca.trust import agreement
from fedpca.trust.roster import Signer


def signed_privacy(signer: Signer, privacy: Privacy | None) -> Privacy | None:
    """The privacy of a member's fit, after a check that it is the roster's; its ledger is signed, too."""
    agreed = membership.agreed(signer.roster, None, None, privacy)[2]
    if privacy is None and agreed is not None:
        raise WrongUsage(
            f"the roster requires privacy; add --epsilon {agreed.epsilon:g} --delta {agreed.delta:g}."
        )
    return None if privacy is None else privacy.with_signed_ledger(signer.key)


def check_fit(
    signer: Signer, rows: RowReader, centered: bool, scale: object, privacy: Privacy | None
) -> None:
    """Refuse a member's fit that is not what the roster says: before anything is spent on the rows."""
    found = agreement.of_fit(rows.n_features, rows.feature_names, centered, scale)
    membership.require(signer.roster, found)
    if privacy is not None and signer.member.rows is not None:
        check_rows(signer, Rows.of(rows).length())


def check_rows(signer: Signer, count: int) -> None:
    """Refuse more rows than the member declared."""
    membership.check_declared(signer.roster, signer.member.id, count)
