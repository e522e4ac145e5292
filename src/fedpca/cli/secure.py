"""fedpca secure: a study by secure sums through a shared folder, where nobody sees more than the sums."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpca._util.text import join_names, sanitize
from fedpca.cli.common import (
    AsJson,
    BatchRows,
    Columns,
    DataPaths,
    Drop,
    NumericOnly,
    PolicyPath,
    RowsStated,
    Width,
    parse_names,
    print_result,
    progress_bars,
    reading_options,
)

if TYPE_CHECKING:
    from fedpca.federation.folder.board import FolderBoard
    from fedpca.federation.folder.secure import Visit
    from fedpca.privacy import Ledger
    from fedpca.secure.settings import Terms
    from fedpca.trust.roster import Signer

WAITING = 3  # the exit code of one who has nothing to do yet

Folder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="A folder that all members and the coordinator read and write."),
]
StudyRoster = Annotated[
    Path, typer.Option("--roster", metavar="FILE", help="The roster of the study, roster.toml.")
]
OwnKey = Annotated[
    Path, typer.Option("--key", metavar="FILE", help="Your key file, as a member of the roster.")
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A folder of your own for secrets and what was sent. Losing it ends your part in the session. "
        "By default the key file's name with .state.",
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Account of what was spent on these rows; created if missing. By default ledger.jsonl in the "
        "state folder.",
    ),
]


def new(folder: Folder, roster: StudyRoster, as_json: AsJson = False) -> None:
    """Open a session in an empty folder, as the coordinator: one attempt at a study, with keys of its own.

    The coordinator is whoever collects, and needs no key: it learns sums and nothing else.

    Example:

    ```
    fedpca secure new shared --roster roster.toml
    ```
    """
    from fedpca.federation.folder.secure import SharedSession
    from fedpca.secure.settings import Terms
    from fedpca.trust.roster import Roster

    loaded = Roster.load(roster)
    terms = Terms.of(loaded)
    SharedSession.new(folder, loaded)
    text = (
        f"{folder}: a session of study {sanitize(loaded.study)!r} for {terms.n_members} members, at least "
        f"{terms.least} in every sum, of whom {terms.colluding} may collude"
    )
    data = {"folder": str(folder), "study": loaded.study, "members": terms.n_members, "least": terms.least}
    print_result(data | {"colluding": terms.colluding}, as_json, text)


@reading_options
def step(
    folder: Folder,
    path: DataPaths,
    roster: StudyRoster,
    key: OwnKey,
    state: State = None,
    ledger: LedgerFile = None,
    policy: PolicyPath = None,
    columns: Columns = None,
    drop: Drop = None,
    numeric_only: NumericOnly = False,
    width: Width = None,
    n_rows: RowsStated = None,
    batch_rows: BatchRows = None,
    as_json: AsJson = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Do whatever is next for you as an owner, and nothing twice. Made for cron.

    Prints one line: what was sent, and what the study waits for. Exit code 0 if something was sent or the
    study has ended, 3 if there is nothing to do yet, 1 after an error.

    Example:

    ```
    fedpca secure step shared north.csv --roster roster.toml --key north.key
    ```
    """
    from fedpca.disclosure.policy import Policy
    from fedpca.federation.folder.secure import SharedSession, check_state
    from fedpca.readers import open_rows
    from fedpca.secure.rows import OwnerRows
    from fedpca.secure.study import privacy_of

    if "-" in path:
        raise typer.BadParameter("rows are read once per sum: name files, not standard input.")
    signer = _signer(roster, key)
    rules = None if policy is None else Policy.load(policy)
    own_state = _state(state, key)

    def rows() -> OwnerRows:
        reader = open_rows(
            path,
            columns=parse_names(columns),
            drop=parse_names(drop) or (),
            numeric_only=numeric_only,
            private=privacy_of(signer.roster) is not None,
            width=width,
            n_rows=n_rows,
            batch_rows=batch_rows,
            **reading,
        )
        return OwnerRows.of_reader(reader)

    with progress_bars(), _naming_the_key(signer, key):
        check_state(own_state, folder)
        account = _ledger(signer, ledger, own_state)
        shared = SharedSession(folder, signer.roster)
        done = shared.visit(signer.key, rows, own_state, ledger=account, policy=rules)
    _print_visit(signer.member.id, done, as_json)


def coordinate(
    folder: Folder,
    roster: StudyRoster,
    close: Annotated[
        bool,
        typer.Option(
            "--close", help="End the round that is open now with those who are there, if they are enough."
        ),
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="End every round so, after so many seconds. By default all members are waited for.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Do whatever is next for the coordinator. Made for cron.

    Exit codes are those of step.

    Example:

    ```
    fedpca secure coordinate shared --roster roster.toml --wait 86400
    ```
    """
    from fedpca.federation.folder.secure import SharedSession
    from fedpca.trust.roster import Roster

    done, problems = SharedSession(folder, Roster.load(roster)).coordinate(closing=close, wait=wait)
    for problem in problems.values():
        typer.echo(f"fedpca: warning: {sanitize(problem)}", err=True)
    _print_visit("coordinator", done, as_json)


def status(folder: Folder, roster: StudyRoster, as_json: AsJson = False) -> None:
    """Show who has sent what, and what the study waits for.

    Example:

    ```
    fedpca secure status shared --roster roster.toml
    ```
    """
    from fedpca.federation.folder.secure import SharedSession
    from fedpca.secure.settings import Terms
    from fedpca.trust.roster import Roster

    loaded = Roster.load(roster)
    terms, shared = Terms.of(loaded), SharedSession(folder, loaded)
    if not shared.is_open:
        raise FileNotFoundError(f"{folder} has no session; open one with `fedpca secure new`.")
    session, board, waits_for = shared.session, shared.board, shared.waits_for()
    skipped = {item.file: item.reason for item in board.skipped}
    table = _table(board, terms)
    lines = [
        f"study:    {sanitize(loaded.study)}",
        f"session:  {session.id[:16]}, opened {session.opened.isoformat()}",
        f"members:  {terms.n_members}, at least {terms.least} in a sum, {terms.colluding} may collude",
        f"now:      {sanitize(waits_for, 1000) or 'the study has ended'}",
        "",
        *_aligned(table),
        *(f"{file} does not count: {reason}" for file, reason in skipped.items()),
    ]
    data = {
        "study": loaded.study,
        "session": session.id,
        "opened": session.opened.isoformat(),
        "waits_for": waits_for or None,
        "members": [dict(zip(table[0], row, strict=True)) for row in table[1:]],
        "skipped": skipped,
    }
    print_result(data, as_json, "\n".join(lines))


def model(
    folder: Folder,
    roster: StudyRoster,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The model file to write.")],
    as_json: AsJson = False,
) -> None:
    """Compute the model of a study that has ended, from its totals.

    Every owner and the coordinator do this for themselves: nobody publishes a model.

    Example:

    ```
    fedpca secure model shared --roster roster.toml -o model.safetensors
    ```
    """
    from fedpca.federation.folder.secure import SharedSession
    from fedpca.trust.roster import Roster

    found = SharedSession(folder, Roster.load(roster)).model()
    found.save(out)
    text = f"{out}: {found.rank} components of {found.count:.0f} rows"
    print_result({"model": str(out), "components": found.rank, "rows": found.count}, as_json, text)


def verify(folder: Folder, roster: StudyRoster, as_json: AsJson = False) -> None:
    """Compute all totals again from what owners have signed: the coordinator may lie.

    Anybody who can read the folder can do this, without a key. Exit code 0 if all is as published, else 1.

    Example:

    ```
    fedpca secure verify shared --roster roster.toml
    ```
    """
    from fedpca.federation.folder.secure import SharedSession
    from fedpca.trust.roster import Roster

    n_totals = SharedSession(folder, Roster.load(roster)).verify()
    text = f"{folder}: {n_totals} totals are those of the messages that owners have signed"
    print_result({"folder": str(folder), "totals": n_totals}, as_json, text)


def refuse(
    folder: Folder,
    roster: StudyRoster,
    key: OwnKey,
    state: State = None,
    ledger: LedgerFile = None,
    as_json: AsJson = False,
) -> None:
    """Never answer the sum that is open now. If enough members do, nobody can open it.

    Then its debit is cancelled, by this command or the next step: the ledger keeps the proof.

    Example:

    ```
    fedpca secure refuse shared --roster roster.toml --key north.key
    ```
    """
    from fedpca.federation.folder.secure import SharedSession, check_state

    signer, own_state = _signer(roster, key), _state(state, key)
    with _naming_the_key(signer, key):
        check_state(own_state, folder)
        account = _ledger(signer, ledger, own_state)
        done = SharedSession(folder, signer.roster).refuse(signer.key, own_state, ledger=account)
    _print_visit(signer.member.id, done, as_json)


def forget(
    folder: Folder, roster: StudyRoster, key: OwnKey, state: State = None, as_json: AsJson = False
) -> None:
    """Erase your secrets of a session that you have given up. You drop out of it, for good.

    What you have sent stays in the state folder, so that nothing is ever sent twice, and debits stay in the
    ledger; refuse can still be run. Erasing is not secure deletion: disks, snapshots and backups may keep
    what a file had.

    Example:

    ```
    fedpca secure forget shared --roster roster.toml --key north.key
    ```
    """
    from fedpca.federation.folder.secure import SharedSession, check_state

    signer, own_state = _signer(roster, key), _state(state, key)
    with _naming_the_key(signer, key):
        check_state(own_state, folder)
        shared = SharedSession(folder, signer.roster)
        shared.forget(signer.key, own_state)
    text = (
        f"{sanitize(signer.member.id, 100)}: erased the secrets of session {shared.session.id[:16]}; what "
        "was sent and debited stays"
    )
    print_result({"session": shared.session.id}, as_json, text)


def _signer(roster: Path, key: Path) -> "Signer":
    from fedpca.trust.keys import SigningKey
    from fedpca.trust.roster import Roster

    return Roster.load(roster).signer(SigningKey.load(key))


@contextmanager
def _naming_the_key(signer: "Signer", key: Path) -> Iterator[None]:
    """Say in refusals whose key it is: with that of another member they are about its rows and budget."""
    from fedpca.errors import BudgetExceeded, SecureError

    try:
        yield
    except (BudgetExceeded, SecureError) as error:
        if repr(signer.member.id) in str(error):
            raise
        raise type(error)(f"{key} is the key of {signer.member.id!r}: {error}") from error


def _state(state: Path | None, key: Path) -> Path:
    return key.with_suffix(".state") if state is None else state


def _ledger(signer: "Signer", path: Path | None, state: Path) -> "Ledger | None":
    """The ledger that pays, signed; None without privacy."""
    from fedpca.privacy import Ledger
    from fedpca.secure.study import privacy_of

    privacy = privacy_of(signer.roster)
    if privacy is None:
        return None
    if path is None:
        state.mkdir(mode=0o700, exist_ok=True)
        path = state / "ledger.jsonl"
    return Ledger.planned(path, privacy.epsilon, privacy.delta, key=signer.key)


def _print_visit(who: str, done: "Visit", as_json: bool) -> None:
    """One line; exit code 3 if nothing was done and something is left to do."""
    from fedpca.federation.folder.board import file_name

    parts = []
    if done.sent:
        parts.append(f"wrote {join_names([file_name(name) for name in done.sent], limit=20)}")
    if done.cancelled:
        parts.append(f"cancelled {join_names(list(done.cancelled))}")
    parts.append(done.waits_for or "the study has ended: `fedpca secure model` writes its model")
    data = {"wrote": list(done.sent), "cancelled": list(done.cancelled), "waits_for": done.waits_for or None}
    print_result(data, as_json, f"{sanitize(who, 100)}: {'; '.join(parts)}")
    if done.waits_for and not done.sent and not done.cancelled:
        raise typer.Exit(WAITING)


def _table(board: "FolderBoard", terms: "Terms") -> list[list[str]]:
    """One row per member: what it has sent."""
    numbers = [number for number in range(100) if f"{number:02}/announced" in board]
    rows = [["member", "keys", "shares", "agreed", *(f"sum {number:02}" for number in numbers)]]
    for index, id in enumerate(terms.ids):
        row = ["yes" if f"{kind}/{index:03}" in board else "-" for kind in ("keys", "shares", "agreed")]
        for number in numbers:
            kinds = [kind for kind in _STAGES if f"{number:02}/{kind}/{index:03}" in board]
            row.append(_STAGES[kinds[0]] if kinds else "-")
        rows.append([sanitize(id, 100), *row])
    return rows


_STAGES = {"refused": "refused", "opened": "answered", "signed": "signed", "masked": "masked"}


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
