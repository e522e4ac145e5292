"""What the command line says about a policy: in a line, and as JSON."""

from pathlib import Path

from fedpca._typing import JSON
from fedpca.disclosure.policy import NO_POLICY, Policy


def policy_line(path: Path | None) -> str:
    """That every rule holds of the policy in a file, or that there is none."""
    return NO_POLICY if path is None else f"{path}: every rule holds"


def policy_json(rules: Policy | None) -> JSON | None:
    """The rules, and their hash."""
    return None if rules is None else {"hash": rules.hash, **rules.to_json()}
