"""Who signed a file, and whether that holds, in words."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedpca._util.text import pluralize, sanitize

if TYPE_CHECKING:
    from fedpca._typing import JSON
    from fedpca.privacy.ledger import Entry
    from fedpca.summaries.certificate import LedgerState
    from fedpca.trust.roster import Roster

_LEDGER = b'{"format": "fedpca ledger'


class Verified(NamedTuple):
    """Whether a file is signed as it must be, and by whom, or why not."""

    holds: bool
    text: str


def describe_signature(contents: bytes, roster: "Roster | None") -> "JSON":
    """Who signed a model file, and whether that holds, as JSON; `text` has all of it in words.

    `holds` is None where that is not known: without a roster that requires it, nobody signed, or the extra
    "secure" is missing.
    """
    from fedpca.errors import SignatureError
    from fedpca.trust.roster import ANYONE
    from fedpca.trust.signature import Signature

    try:
        found, _ = Signature.read(contents)
    except SignatureError as error:
        return {"holds": False, "text": f"does not hold: {sanitize(error, 500)}"}
    described: JSON = {} if found is None else found.to_json()
    described.pop("value", None)
    if roster is not None:
        result = _verify(roster, contents)
        described["holds"] = result.holds
        if found is not None and result.holds:
            described["member"] = roster.member_of(found.key).id
            which = "this roster" if found.roster == roster.hash else "a roster before this one"
            return described | {"text": f"holds: {result.text}, a member, under {which}"}
        return described | {"text": f"does not hold: {result.text}"}
    if found is None:
        return {"holds": None, "text": f"none; {ANYONE}"}
    signer = f"signed with the key {found.key} for study {sanitize(found.study, 100)!r}"
    try:
        holds = found.holds(contents)
    except ImportError as error:  # a signed file is readable everywhere
        return described | {"holds": None, "text": f"not checked: {signer}; {ANYONE}; {error}"}
    described["holds"] = holds
    what = f"holds: {signer}" if holds else f"does not hold: {signer}, and changed since"
    return described | {"text": f"{what}; {ANYONE}"}


def verify_files(roster: "Roster", paths: Sequence[Path]) -> dict[str, Verified]:
    """Which member signed each model file and ledger."""
    models = {path: path.read_bytes() for path in paths}
    ledgers = [path for path, contents in models.items() if contents.startswith(_LEDGER)]
    stated = [
        state for path, contents in models.items() if path not in ledgers for state in _stated(contents)
    ]
    return {
        str(path): _verify_ledger(roster, path, stated) if path in ledgers else _verify(roster, contents)
        for path, contents in models.items()
    }


def _verify(roster: "Roster", contents: bytes) -> Verified:
    try:
        found = roster.check(contents)
    except ValueError as error:
        return Verified(False, sanitize(error, 500))
    return Verified(True, f"signed by {sanitize(roster.member_of(found.key).id, 100)}")


def _verify_ledger(roster: "Roster", path: Path, stated: "list[LedgerState]") -> Verified:
    from fedpca.privacy.ledger import Ledger

    try:
        ledger = Ledger(path)
        if not ledger.signed_by:
            return Verified(False, "must be signed by a member, and is unsigned; write to it with --key.")
        *earlier, last = ledger.signed_by
        member = roster.member_of(last)
    except ValueError as error:
        return Verified(False, sanitize(error, 500))
    least = max((state.entries or 0 for state in stated if state.id == ledger.id), default=0)
    entries = len(ledger.entries)
    if entries < least:
        return Verified(
            False,
            f"has {pluralize(entries, 'entry', 'entries')}, and a certificate states {least}: lines were cut "
            "off at the end; restore it from a backup.",
        )
    text = f"signed by {sanitize(member.id, 100)}; {pluralize(entries, 'entry', 'entries')}"
    if cancelled := [entry for entry in ledger.entries if entry.cancelled]:
        try:
            for entry in cancelled:
                _check_proof(roster, member.id, entry)
        except ValueError as error:
            return Verified(False, sanitize(error, 500))
        text += f", {len(cancelled)} of them cancelled by proof"
    text += "".join(f"; earlier lines with the key {key}" for key in earlier)
    if unsigned := ledger.unsigned_lines:
        text += f"; before them {pluralize(unsigned, 'line')} without a key"
    return Verified(True, text)


def _check_proof(roster: "Roster", member: str, entry: "Entry") -> None:
    """Refuse a ledger with a cancelled debit that nothing proves not to have been spent."""
    from fedpca.secure.proofs import Proof

    try:
        proof = Proof.from_json(json.loads(entry.proof))
        proof.check(roster)
        if proof.release != entry.release or list(roster.members)[proof.member] != member:
            raise ValueError("it is that of another debit or member")
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"the debit {entry.release} was cancelled, and its proof does not hold under this roster: "
            f"{error}; check it under the roster of its session, or count the debit."
        ) from None


def _stated(contents: bytes) -> "list[LedgerState]":
    """What the certificate of a model file says about its ledger."""
    from fedpca.cli import model_files

    try:
        summary, _ = model_files.decode(Path("the file"), contents)
    except ValueError:  # which is said where its signature is checked
        return []
    certificate = summary.certificate
    return [] if certificate is None or certificate.ledger is None else [certificate.ledger]
