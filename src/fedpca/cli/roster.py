"""fedpca roster: who takes part in a study, their keys, and who signed a file."""

import json
import secrets
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedpca._typing import JSON
from fedpca._util.files import local_path
from fedpca._util.locks import file_lock
from fedpca._util.option_text import split_names
from fedpca._util.text import join_names, pluralize, sanitize, told_apart
from fedpca.cli.options import (
    File,
    Files,
    Force,
    Out,
    Output,
    WrongUsage,
    at_least,
    check_output_path,
    option,
)
from fedpca.cli.signatures import verify_files
from fedpca.federation.aggregator import membership
from fedpca.trust.keys import PublicKey, SigningKey
from fedpca.trust.roster import Member, Roster

RosterPath = Annotated[File, Parameter(name="ROSTER", help="The roster of the study, roster.toml.")]
MemberId = Annotated[str, Parameter(name="ID", help="The member's name in the study and in its messages.")]


def key(file: Annotated[File, Parameter(name="FILE")], /, *, output: Output = Output()) -> None:
    """Make a signing key, and print its public key, which the roster needs.

    Only its owner can read the file, and it is never overwritten. Keep a copy in a safe place.

    For example:

    ```
    fedpca roster key north.key
    ```

    Args:
        file: The key file to write, as in north.key.
    """
    made = SigningKey.new()
    made.save(file)
    output.result({"file": str(file), "public": made.public.text}, made.public.text)


def new(
    study: Annotated[str, Parameter(name="NAME")],
    /,
    *,
    out: Out = Path("roster.toml"),
    setting: Annotated[list[str] | None, option("--set", metavar="NAME=VALUE")] = None,
    force: Force = False,
    output: Output = Output(),
) -> None:
    """Begin the roster of a new study, with the settings that all must share, and no members yet.

    For example:

    ```
    fedpca roster new heart --set rank=5 --set scale=std -o roster.toml
    ```

    Args:
        study: A name for the study; its id is this and a random number.
        out: The roster to write.
        setting: What all members must share, as in rank=5 or scale=std: rank, features, n_features, center,
            scale, epsilon, delta, bound, adjacency or mechanism; for secure sums colluding, least or largest.
            May be repeated.
    """
    check_output_path(out, force)
    roster = Roster(f"{study}-{secrets.token_hex(4)}", (), dict(map(_setting, setting or ())))
    _check_settings(roster)
    roster.save(out)
    _print_written(roster, out, output)


def add(
    roster: RosterPath,
    id: MemberId,
    key: Annotated[str, Parameter(name="KEY")],
    /,
    *,
    rows: Annotated[int | None, at_least(1)] = None,
    output: Output = Output(),
) -> None:
    """Add a member: the file becomes the next roster of the study, which names the one before it.

    For example:

    ```
    fedpca roster add roster.toml north ed25519:dc0q... --rows 500
    ```

    Args:
        key: Its public key, as `fedpca roster key` prints it.
        rows: How many rows it declares: no model of more is accepted.
    """
    member = Member(id, PublicKey(key), rows)
    with _alone(roster) as path:
        following = Roster.load(path).with_member(member)
        following.save(path)
    _print_written(following, roster, output)


def remove(roster: RosterPath, id: MemberId, /, *, output: Output = Output()) -> None:
    """Remove a member: what it has signed no longer counts under the new roster.

    If a member has lost its key, remove it, and add it again with a new one.

    For example:

    ```
    fedpca roster remove roster.toml north
    ```
    """
    with _alone(roster) as path:
        following = Roster.load(path).without_member(id)
        following.save(path)
    _print_written(following, roster, output)


def show(roster: RosterPath, /, *, output: Output = Output()) -> None:
    """Show a roster: study, hash, settings and members.

    Members compare the hash before they agree, for example by telephone.

    For example:

    ```
    fedpca roster show roster.toml
    ```
    """
    loaded = Roster.load(roster)
    _check_settings(loaded)
    output.result(_described(loaded), "\n".join(_lines(loaded)))


def verify(
    roster: RosterPath,
    file: Annotated[Files | None, Parameter(name="FILE")] = None,
    /,
    *,
    after: File | None = None,
    output: Output = Output(),
) -> None:
    """Check who signed model files and ledgers, or that a roster continues another. Exit code 1 if not.

    A ledger must have as many entries as the certificates of the model files state.

    For example:

    ```
    fedpca roster verify roster.toml north.safetensors ledger.jsonl
    fedpca roster verify new-roster.toml --after roster.toml
    ```

    Args:
        file: Model files and ledgers that members have signed.
        after: A roster agreed on before, which this one must continue.
    """
    loaded = Roster.load(roster)
    _check_settings(loaded)
    changes = [] if after is None else _changes(Roster.load(after), loaded)
    found = verify_files(loaded, file or [])
    lines = [f"{roster}: {loaded.hash}", *changes]
    lines += [f"{name}: {result.text}" for name, result in found.items()]
    holds = all(result.holds for result in found.values())
    data = {
        "hash": loaded.hash,
        "changes": changes,
        "holds": holds,
        "files": {name: {"holds": result.holds, "text": result.text} for name, result in found.items()},
    }
    output.result(data, "\n".join(lines))
    if not holds:
        bad = [name for name, result in found.items() if not result.holds]
        raise ValueError(f"{pluralize(len(bad), 'file')} must not be used: {join_names(bad)}.")


def _setting(text: str) -> tuple[str, object]:
    """A setting as it is typed: a TOML value, or a plain word."""
    name, separator, value = text.partition("=")
    if not separator:
        raise WrongUsage(f"--set must be NAME=VALUE, as in rank=5, got {text!r}.")
    if name == "features":
        return name, split_names(value)
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _check_settings(roster: Roster) -> None:
    """Refuse settings that no private fit can have."""
    membership.agreed(roster, None, None, None)


@contextmanager
def _alone(roster: Path) -> Iterator[Path]:
    """The file itself, behind links, while nobody else changes it: two changes at once would fork it."""
    path = local_path(roster).resolve()
    if not path.is_file():
        yield path  # which cannot be loaded
        return
    with file_lock(path, create=False):
        yield path


def _print_written(roster: Roster, path: Path, output: Output) -> None:
    members = pluralize(len(roster.members), "member")
    text = f"{path}: {members} of study {sanitize(roster.study)!r}\n{roster.hash}"
    output.result({"out": str(path), **_described(roster)}, text)


def _described(roster: Roster) -> JSON:
    return {
        "study": roster.study,
        "hash": roster.hash,
        "settings": dict(roster.settings),
        "members": [member.to_json() for member in roster.members.values()],
        "predecessors": list(roster.predecessors),
    }


def _lines(roster: Roster) -> list[str]:
    settings = ", ".join(f"{name}={json.dumps(value)}" for name, value in roster.settings.items())
    lines = [
        f"study:        {sanitize(roster.study)}",
        f"hash:         {roster.hash}",
        f"predecessors: {len(roster.predecessors)}",
        f"settings:     {sanitize(settings) or 'none'}",
        f"members:      {len(roster.members) or 'none'}",
    ]
    for member in roster.members.values():
        rows = "any number of rows" if member.rows is None else f"up to {pluralize(member.rows, 'row')}"
        lines.append(f"  {told_apart(member.id)}  {member.key}  {rows}")
    return lines


def _changes(before: Roster, after: Roster) -> list[str]:
    """What changed, in sentences; ValueError if one roster does not continue the other."""
    if after.study != before.study:
        raise ValueError(
            f"both rosters must be of one study, and are of {before.study!r:.80} and {after.study!r:.80}."
        )
    if before.hash not in (after.hash, *after.predecessors):
        raise ValueError(
            f"the roster must continue {before.hash[:19]}..., and does not name it among its predecessors; "
            "ask whoever keeps it which one is right."
        )
    found = []
    for id in sorted({*before.members, *after.members}):
        old, new = before.members.get(id), after.members.get(id)
        if old is None:
            found.append(f"added {told_apart(id)}")
        elif new is None:
            found.append(f"removed {told_apart(id)}")
        elif old != new:
            found.append(f"another {'key' if old.key != new.key else 'number of rows'} of {told_apart(id)}")
    for name in sorted({*before.settings, *after.settings}):
        values = [json.dumps(roster.settings.get(name)) for roster in (before, after)]
        if values[0] != values[1]:
            found.append(sanitize(f"{name}: {values[0]} before, {values[1]} now"))
    return found or ["nothing changed"]
