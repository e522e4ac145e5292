"""Whether a ledger is a member's, complete, and free of debits that were cancelled without proof."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedpca._util.text import pluralize
from fedpca.errors import SignatureError
from fedpca.privacy.accounting import Entry
from fedpca.privacy.ledger import Ledger
from fedpca.secure.proofs import Proof
from fedpca.summaries.certificate import LedgerState
from fedpca.trust.keys import PublicKey
from fedpca.trust.roster import Roster


class CheckedLedger(NamedTuple):
    """What holds of a ledger.

    Attributes:
        member: the id of the member who signs it.
        entries: how many it has.
        cancelled: how many of them are cancelled, each by a proof that holds.
        earlier_keys: that signed lines before those of the member's key.
        unsigned: how many lines come before the first signed one.
    """

    member: str
    entries: int
    cancelled: int
    earlier_keys: tuple[PublicKey, ...]
    unsigned: int


def check_ledger(roster: Roster, path: Path, stated: Sequence[LedgerState]) -> CheckedLedger:
    """Check a ledger against a roster and what certificates state about it.

    Args:
        roster: whose members sign.
        path: of the ledger.
        stated: of ledgers, this one or others, with numbers of entries that this one must have at least.

    Raises:
        SignatureError: the ledger is unsigned, was cut, or cancels a debit without a proof that holds.
        ValueError: the file is not a ledger, its chain is broken, or no member signed it.
    """
    ledger = Ledger(path)
    if not ledger.signed_by:
        raise SignatureError("must be signed by a member, and is unsigned; write to it with --key.")
    *earlier, last = ledger.signed_by
    member = roster.member_of(last)
    least = max((state.entries or 0 for state in stated if state.id == ledger.id), default=0)
    entries = len(ledger.entries)
    if entries < least:
        raise SignatureError(
            f"has {pluralize(entries, 'entry', 'entries')}, and a certificate states {least}: lines were cut "
            "off at the end; restore it from a backup."
        )
    cancelled = [entry for entry in ledger.entries if entry.cancelled]
    for entry in cancelled:
        _check_proof(roster, member.id, entry)
    return CheckedLedger(member.id, entries, len(cancelled), tuple(earlier), ledger.unsigned_lines)


def _check_proof(roster: Roster, member: str, entry: Entry) -> None:
    """Refuse a cancelled debit that nothing proves not to have been spent."""
    try:
        proof = Proof.from_json(json.loads(entry.proof))
        proof.check(roster)
        if proof.release != entry.release or list(roster.members)[proof.member] != member:
            raise ValueError("it is that of another debit or member")
    except (ValueError, IndexError) as error:
        raise SignatureError(
            f"the debit {entry.release} was cancelled, and its proof does not hold under this roster: "
            f"{error}; check it under the roster of its session, or count the debit."
        ) from None
