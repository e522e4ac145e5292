"""Who signed a file, and whether that holds, in words."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedpca._typing import JSON
from fedpca._util.text import pluralize, sanitize
from fedpca.cli import model_files
from fedpca.errors import SignatureError
from fedpca.secure.ledger_check import check_ledger
from fedpca.summaries.certificate import LedgerState
from fedpca.trust import envelope
from fedpca.trust.roster import ANYONE, Roster

_LEDGER = b'{"format": "fedpca ledger'


class Verified(NamedTuple):
    """Whether a file is signed as it must be, and by whom, or why not."""

    holds: bool
    text: str


def describe_signature(contents: bytes, roster: Roster | None) -> JSON:
    """Who signed a model file, and whether that holds, as JSON; `text` has all of it in words.

    `holds` is None where that is not known: without a roster that requires it, nobody signed, or the extra
    "secure" is missing.
    """
    try:
        found = envelope.read(contents).signature
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
        holds = found.holds()
    except ImportError as error:  # a signed file is readable everywhere
        return described | {"holds": None, "text": f"not checked: {signer}; {ANYONE}; {error}"}
    described["holds"] = holds
    what = f"holds: {signer}" if holds else f"does not hold: {signer}, and changed since"
    return described | {"text": f"{what}; {ANYONE}"}


def verify_files(roster: Roster, paths: Sequence[Path]) -> dict[str, Verified]:
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


def _verify(roster: Roster, contents: bytes) -> Verified:
    try:
        found = roster.check(contents)
    except ValueError as error:
        return Verified(False, sanitize(error, 500))
    return Verified(True, f"signed by {sanitize(roster.member_of(found.key).id, 100)}")


def _verify_ledger(roster: Roster, path: Path, stated: list[LedgerState]) -> Verified:

    try:
        found = check_ledger(roster, path, stated)
    except ValueError as error:
        return Verified(False, sanitize(error, 500))
    text = f"signed by {sanitize(found.member, 100)}; {pluralize(found.entries, 'entry', 'entries')}"
    if found.cancelled:
        text += f", {found.cancelled} of them cancelled by proof"
    text += "".join(f"; earlier lines with the key {key}" for key in found.earlier_keys)
    if found.unsigned:
        text += f"; before them {pluralize(found.unsigned, 'line')} without a key"
    return Verified(True, text)


def _stated(contents: bytes) -> list[LedgerState]:
    """What the certificate of a model file says about its ledger."""
    try:
        summary, _ = model_files.decode(Path("the file"), contents)
    except ValueError:  # which is said where its signature is checked
        return []
    certificate = summary.certificate
    return [] if certificate is None or certificate.ledger is None else [certificate.ledger]
