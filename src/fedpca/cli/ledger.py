"""fedpca ledger: make a ledger with an approved budget, and show what was spent of it."""

from typing import Annotated

from cyclopts import Parameter

from fedpca._typing import JSON
from fedpca._util.text import pluralize, sanitize
from fedpca.cli.options import File, Output, Real
from fedpca.cli.signing import Signing
from fedpca.privacy.accounting import Entry
from fedpca.privacy.calibration import epsilon_of
from fedpca.privacy.ledger import Ledger

LedgerPath = Annotated[File, Parameter(name="LEDGER", help="A ledger file, as fit --ledger writes it.")]

_WORDS = {  # of what an entry paid for
    "gram": "components",
    "sketch": "components",
    "lengths": "lengths of rows",
    "mean": "mean of rows",
    "scales": "scales of columns",
    "evaluation": "how good the components are",
}
_COMPOSITION = (
    "Epsilon of an entry is its cost alone. Costs of the same records add up as their squares do (Gaussian "
    "differential privacy), so the total is less than their sum. Whatever was begun counts, also if nothing "
    "came out."
)


def new(
    ledger: LedgerPath,
    /,
    *,
    epsilon: Real,
    delta: Real,
    signing: Signing = Signing(),
    output: Output = Output(),
) -> None:
    """Make a ledger with the approved budget of all releases. It is fixed from then on.

    Later fits with this ledger are refused once they would cost any record more. With --roster and --key it
    is signed, and so must be every fit with it.

    For example, two releases of epsilon 1 each cost less than 2 together.

    ```
    fedpca ledger new north.ledger --epsilon 2 --delta 1e-6
    fedpca fit 2025.csv --epsilon 1 --delta 1e-6 --ledger north.ledger -o 2025.safetensors
    fedpca ledger show north.ledger
    ```

    Args:
        epsilon: Epsilon that all releases together may cost a record.
        delta: Delta, far below one over the number of records.
    """
    if ledger.exists():
        raise FileExistsError(
            f"{ledger} already exists, and the budget of a ledger is fixed; show it, or name another file."
        )
    signer = signing.signer()
    made = Ledger(ledger, epsilon=epsilon, delta=delta, key=None if signer is None else signer.key)
    output.result(_described(made), f"{ledger}: {_balance(made)}")


def show(ledger: LedgerPath, /, *, output: Output = Output()) -> None:
    """Show what a ledger allows, what was spent of it, and on what. Nothing is written.

    For example:

    ```
    fedpca ledger show north.ledger
    ```
    """
    if not ledger.exists():
        raise FileNotFoundError(f"there is no ledger {ledger}; make one with fedpca ledger new, or fit.")
    opened = Ledger(ledger)
    described = _described(opened)
    lines = [f"{ledger}: {_balance(opened)}", _signed(opened)]
    if described["entries"]:
        lines += ["", "time (UTC)           records          epsilon  state          what"]
    for entry in described["entries"]:
        lines.append(
            f"{entry['time'][:19].replace('T', ' '):<19}  {entry['records']:<15}  {entry['epsilon']:>7.3g}  "
            f"{entry['state']:<13}  {entry['what']}"
        )
    if described["entries"]:
        lines += ["", _COMPOSITION]
    output.result(described, "\n".join(lines))


def _described(ledger: Ledger) -> JSON:
    return {
        "id": ledger.id,
        "epsilon": ledger.epsilon,
        "delta": ledger.delta,
        "spent": ledger.spent(),
        "left": ledger.left(),
        "entries": [_entry(entry, ledger.delta) for entry in ledger.entries],
        "signed_by": [str(key) for key in ledger.signed_by],
        "unsigned_lines": ledger.unsigned_lines,
    }


def _entry(entry: Entry, delta: float) -> JSON:

    state = "cancelled" if entry.cancelled else "came out" if entry.completed else "only begun"
    stop = "the end" if entry.stop is None else f"{entry.stop:,}"
    name = sanitize(entry.mechanism, 60)
    return {
        "time": sanitize(entry.time, 40),
        "release": sanitize(entry.release, 100),
        "records": f"{entry.start + 1:,} to {stop}",
        "epsilon": epsilon_of(entry.mu, delta),
        "mu": entry.mu,
        "state": state,
        "what": _WORDS.get(name, name),
    }


def _balance(ledger: Ledger) -> str:
    entries = pluralize(len(ledger.entries), "entry", "entries")
    return (
        f"epsilon={ledger.spent():.4g} of {ledger.epsilon:g} spent, at delta={ledger.delta:g}; one more "
        f"release of all records may cost {ledger.left():.4g}; {entries}"
    )


def _signed(ledger: Ledger) -> str:
    if not ledger.signed_by:
        return "signed: no; fit --roster --key signs every line"
    lines = pluralize(ledger.unsigned_lines, "earlier line")
    more = f"; {lines} without a key" if ledger.unsigned_lines else ""
    return f"signed: by {', '.join(map(str, ledger.signed_by))}{more}"
