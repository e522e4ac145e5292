"""fedpca secure: a study by secure sums through a shared folder, where nobody sees more than the sums."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from fedpca._util.text import join_names, sanitize
from fedpca.cli.options import (
    DataPaths,
    File,
    Flag,
    Out,
    Output,
    PolicyPath,
    WrongUsage,
    note,
    option,
)
from fedpca.cli.reading import PrivateTable, Reading
from fedpca.cli.signing import Member
from fedpca.disclosure.policy import Policy
from fedpca.errors import BudgetExceeded, SecureError
from fedpca.federation.folder.board import FolderBoard, file_name
from fedpca.federation.folder.secure import SharedSession, Visit, check_state
from fedpca.privacy import Ledger
from fedpca.secure.rows import OwnerRows
from fedpca.secure.settings import Terms
from fedpca.secure.study import privacy_of
from fedpca.trust.roster import Roster, Signer

WAITING = 3  # the exit code of one who has nothing to do yet

Folder = Annotated[
    File,
    Parameter(name="FOLDER", help="A folder that all members and the coordinator read and write."),
]
StudyRoster = Annotated[File, option("--roster", help="The roster of the study, roster.toml.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Owner(Member):
    """A member with its secrets."""

    state: Annotated[File | None, Parameter(metavar="DIR")] = None
    """A folder of your own for secrets and what was sent. Losing it ends your part in the session. By default
    the key file's name with .state."""

    @property
    def folder(self) -> Path:
        """Of its secrets."""
        return self.key.with_suffix(".state") if self.state is None else self.state

    @contextmanager
    def named(self, signer: Signer) -> Iterator[None]:
        """Say in refusals whose key it is: with that of another member they are about its rows and budget."""
        try:
            yield
        except (BudgetExceeded, SecureError) as error:
            if repr(signer.member.id) in str(error):
                raise
            raise type(error)(f"{self.key} is the key of {signer.member.id!r}: {error}") from error


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Payer(Owner):
    """The same with the account that pays."""

    ledger: File | None = None
    """Account of what was spent on these rows; created if missing. By default ledger.jsonl in the state
    folder."""

    def account(self, signer: Signer) -> Ledger | None:
        """The ledger that pays, signed; None without privacy."""
        privacy = privacy_of(signer.roster)
        if privacy is None:
            return None
        path = self.ledger
        if path is None:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            path = self.folder / "ledger.jsonl"
        return Ledger.planned(path, privacy.epsilon, privacy.delta, key=signer.key)


def new(folder: Folder, /, *, roster: StudyRoster, output: Output = Output()) -> None:
    """Open a session in an empty folder, as the coordinator: one attempt at a study, with keys of its own.

    The coordinator is whoever collects, and needs no key: it learns sums and nothing else.

    For example:

    ```
    fedpca secure new shared --roster roster.toml
    ```
    """
    loaded = Roster.load(roster)
    terms = Terms.of(loaded)
    SharedSession.new(folder, loaded)
    text = (
        f"{folder}: a session of study {sanitize(loaded.study)!r} for {terms.n_members} members, at least "
        f"{terms.least} in every sum, of whom {terms.colluding} may collude"
    )
    data = {"folder": str(folder), "study": loaded.study, "members": terms.n_members, "least": terms.least}
    output.result(data | {"colluding": terms.colluding}, text)


def step(
    folder: Folder,
    path: DataPaths,
    /,
    *,
    owner: Payer,
    policy: PolicyPath = None,
    table: PrivateTable = PrivateTable(),
    output: Output = Output(),
    reading: Reading = Reading(),
) -> None:
    """Do whatever is next for you as an owner, and nothing twice. Made for cron.

    Prints one line: what was sent, and what the study waits for. Exit code 0 if something was sent or the
    study has ended, 3 if there is nothing to do yet, 1 after an error.

    For example:

    ```
    fedpca secure step shared north.csv --roster roster.toml --key north.key
    ```
    """
    if "-" in path:
        raise WrongUsage("rows are read once per sum: name files, not standard input.")
    signer = owner.signer()
    rules = None if policy is None else Policy.load(policy)

    def rows() -> OwnerRows:
        private = privacy_of(signer.roster) is not None
        return OwnerRows.of_reader(table.open(path, reading, private=private))

    with output.progress(), owner.named(signer):
        check_state(owner.folder, folder)
        account = owner.account(signer)
        shared = SharedSession(folder, signer.roster)
        done = shared.visit(signer.key, rows, owner.folder, ledger=account, policy=rules)
    _print_visit(signer.member.id, done, output)


def coordinate(
    folder: Folder,
    /,
    *,
    roster: StudyRoster,
    close: Flag = False,
    wait: Annotated[float | None, Parameter(metavar="SECONDS", validator=Number(gte=0))] = None,
    output: Output = Output(),
) -> None:
    """Do whatever is next for the coordinator. Made for cron.

    Exit codes are those of step.

    For example:

    ```
    fedpca secure coordinate shared --roster roster.toml --wait 86400
    ```

    Args:
        close: End the round that is open now with those who are there, if they are enough.
        wait: End every round so, after so many seconds. By default all members are waited for.
    """
    done, problems = SharedSession(folder, Roster.load(roster)).coordinate(closing=close, wait=wait)
    for problem in problems.values():
        note(f"warning: {sanitize(problem)}")
    _print_visit("coordinator", done, output)


def status(folder: Folder, /, *, roster: StudyRoster, output: Output = Output()) -> None:
    """Show who has sent what, and what the study waits for.

    For example:

    ```
    fedpca secure status shared --roster roster.toml
    ```
    """
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
    output.result(data, "\n".join(lines))


def model(folder: Folder, /, *, roster: StudyRoster, out: Out, output: Output = Output()) -> None:
    """Compute the model of a study that has ended, from its totals.

    Every owner and the coordinator do this for themselves: nobody publishes a model.

    For example:

    ```
    fedpca secure model shared --roster roster.toml -o model.safetensors
    ```

    Args:
        out: The model file to write.
    """
    found = SharedSession(folder, Roster.load(roster)).model()
    found.save(out)
    text = f"{out}: {found.rank} components of {found.count:.0f} rows"
    output.result({"model": str(out), "components": found.rank, "rows": found.count}, text)


def verify(folder: Folder, /, *, roster: StudyRoster, output: Output = Output()) -> None:
    """Compute all totals again from what owners have signed: the coordinator may lie.

    Anybody who can read the folder can do this, without a key. Exit code 0 if all is as published, else 1.

    For example:

    ```
    fedpca secure verify shared --roster roster.toml
    ```
    """
    n_totals = SharedSession(folder, Roster.load(roster)).verify()
    text = f"{folder}: {n_totals} totals are those of the messages that owners have signed"
    output.result({"folder": str(folder), "totals": n_totals}, text)


def refuse(folder: Folder, /, *, owner: Payer, output: Output = Output()) -> None:
    """Never answer the sum that is open now. If enough members do, nobody can open it.

    Then its debit is cancelled, by this command or the next step: the ledger keeps the proof.

    For example:

    ```
    fedpca secure refuse shared --roster roster.toml --key north.key
    ```
    """
    signer = owner.signer()
    with owner.named(signer):
        check_state(owner.folder, folder)
        account = owner.account(signer)
        done = SharedSession(folder, signer.roster).refuse(signer.key, owner.folder, ledger=account)
    _print_visit(signer.member.id, done, output)


def forget(folder: Folder, /, *, owner: Owner, output: Output = Output()) -> None:
    """Erase your secrets of a session that you have given up. You drop out of it, for good.

    What you have sent stays in the state folder, so that nothing is ever sent twice, and debits stay in the
    ledger; refuse can still be run. Erasing is not secure deletion: disks, snapshots and backups may keep
    what a file had.

    For example:

    ```
    fedpca secure forget shared --roster roster.toml --key north.key
    ```
    """
    signer = owner.signer()
    with owner.named(signer):
        check_state(owner.folder, folder)
        shared = SharedSession(folder, signer.roster)
        shared.forget(signer.key, owner.folder)
    text = (
        f"{sanitize(signer.member.id, 100)}: erased the secrets of session {shared.session.id[:16]}; what "
        "was sent and debited stays"
    )
    output.result({"session": shared.session.id}, text)


def _print_visit(who: str, done: Visit, output: Output) -> None:
    """One line; exit code 3 if nothing was done and something is left to do."""
    parts = []
    if done.sent:
        parts.append(f"wrote {join_names([file_name(name) for name in done.sent], limit=20)}")
    if done.cancelled:
        parts.append(f"cancelled {join_names(list(done.cancelled))}")
    parts.append(done.waits_for or "the study has ended: `fedpca secure model` writes its model")
    data = {"wrote": list(done.sent), "cancelled": list(done.cancelled), "waits_for": done.waits_for or None}
    output.result(data, f"{sanitize(who, 100)}: {'; '.join(parts)}")
    if done.waits_for and not done.sent and not done.cancelled:
        raise SystemExit(WAITING)


def _table(board: FolderBoard, terms: Terms) -> list[list[str]]:
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
