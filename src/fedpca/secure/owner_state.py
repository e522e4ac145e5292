"""What an owner keeps of a session: its secrets, drawn once, and all that it has sent, each written once.

Whatever is sent is on disk first. So a process that is killed and started again sends the same bytes, and an
owner that has lost its state is never taken for one that has sent nothing.
"""

import hashlib
import json
import secrets as randomness
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fedpca._typing import JSON
from fedpca._util.files import atomic_write, create_exclusive, remove_leftovers
from fedpca._util.locks import file_lock
from fedpca._util.text import join_names
from fedpca.errors import SecureError
from fedpca.secure.owner_secrets import Secrets


class OwnerState(Protocol):
    """Kept in memory or in a folder."""

    def begin(self, facts: JSON, n_sums: int) -> None:
        """Draw the secrets, if the session is new; else refuse facts that differ from those it began with."""

    @property
    def secrets(self) -> Secrets:
        """Those of the sums that have not ended."""

    @property
    def pairs_key(self) -> bytes:
        """32 bytes that random pairs of rows follow from."""

    @property
    def sent(self) -> Mapping[str, bytes]:
        """All messages, by their names on the board."""

    def keep(self, messages: Mapping[str, bytes]) -> None:
        """Write messages down before they are sent."""

    def require_same_rows(self, rows: str, study: str | None) -> None:
        """Note the digest of the rows of a sum; SecureError if another sum of the session is of other rows.

        With the id of a study: or another sum without noise in any session of it. Others can open it
        without this owner as soon as its words have left.
        """

    def require_same_owners(self, study: str, owners: list[str]) -> None:
        """Note who is in a study's sums without noise; SecureError if it was someone else in another
        session."""

    def erase(self, numbers: Iterable[int]) -> None:
        """Forget the secrets of sums that have ended."""

    def erase_all(self) -> None:
        """Forget all secrets: the study has ended."""


class OwnerMemory:
    """The state of an owner that lives as long as its process.

    Args:
        secrets: None to draw them when the session begins.
        sent: before now.
    """

    def __init__(self, secrets: Secrets | None = None, sent: Mapping[str, bytes] | None = None) -> None:
        self._secrets = secrets
        self.sent = dict(sent or {})
        self.pairs_key = randomness.token_bytes(32)

    def begin(self, facts: JSON, n_sums: int) -> None:
        self._secrets = self._secrets or Secrets.new(n_sums)

    @property
    def secrets(self) -> Secrets:
        assert self._secrets is not None
        return self._secrets

    def keep(self, messages: Mapping[str, bytes]) -> None:
        self.sent |= messages

    def require_same_rows(self, rows: str, study: str | None) -> None:
        pass  # it knows one session, of rows in this process

    def require_same_owners(self, study: str, owners: list[str]) -> None:
        pass

    def erase(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._secrets = self.secrets.without_sum(number)

    def erase_all(self) -> None:
        self._secrets = self.secrets.without_any()


class OwnerFiles:
    """The state of an owner in a folder of its own, for every session.

    Args:
        folder: created, for its owner only. Restoring an older copy of it is as bad as losing it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._head: JSON = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time."""
        (self._folder / "sent").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        with file_lock(self._folder / "lock"):
            remove_leftovers(self._folder)  # of one that was killed: they may have secrets
            yield

    def begin(self, facts: JSON, n_sums: int) -> None:
        path = self._folder / "session.json"
        if not path.exists():
            if self.sent:
                raise SecureError(
                    f"{_public(path)} is missing, and messages of this session were sent: the state folder "
                    "is incomplete, and an older copy of it must not be used. Wait for another session."
                )
            head = {
                "facts": facts,
                "pairs": randomness.token_hex(32),
                "secrets": Secrets.new(n_sums).to_json(),
            }
            create_exclusive(path, json.dumps(head).encode(), owner_only=True)
        self.resume(facts)

    def resume(self, facts: JSON) -> None:
        """Go on with a session that has begun; SecureError if it has not, or if facts differ."""
        path = self._folder / "session.json"
        if not path.exists():
            raise SecureError(
                f"the state must be that of a member that takes part in this session, and has no "
                f"{_public(path)}; name the state folder, or take a step first."
            )
        self._head = _read(path)
        if changed := [name for name in facts if self._head["facts"].get(name) != facts[name]]:
            raise _changed(changed)

    @property
    def secrets(self) -> Secrets:
        return Secrets.from_json(self._head["secrets"])

    @property
    def pairs_key(self) -> bytes:
        return bytes.fromhex(self._head["pairs"])

    @property
    def sent(self) -> Mapping[str, bytes]:
        return _SentFiles(self._folder / "sent")

    def keep(self, messages: Mapping[str, bytes]) -> None:
        for name, contents in messages.items():
            path = self._folder / "sent" / _file_name(name)
            if not create_exclusive(path, contents, owner_only=True) and path.read_bytes() != contents:
                raise SecureError(f"{name} was sent before, with other contents: every message is sent once.")

    def require_same_rows(self, rows: str, study: str | None) -> None:
        if not _is_first_or_same(self._folder / "rows", rows):
            raise _changed(["the rows"])
        if study is not None and not _is_first_or_same(path := self._of_study("rows", study), rows):
            raise SecureError(
                "sums without noise must be of the same rows in every session of a study, those in "
                f"{_public(path)}, and these are others: the difference of two sums would show what "
                "changed. Nothing was sent; restore the rows, or agree on a roster of a new study."
            )

    def require_same_owners(self, study: str, owners: list[str]) -> None:
        if not _is_first_or_same(path := self._of_study("owners", study), json.dumps(owners)):
            others = join_names([repr(owner)[:80] for owner in owners])
            raise SecureError(
                "sums without noise must be of the same owners in every session of a study, those in "
                f"{_public(path)}, and this one is of {others}: the difference would show who is in one and "
                "not in the other. Nothing was signed; wait for all, or agree on a roster of a new study."
            )

    def _of_study(self, what: str, study: str) -> Path:
        """What all sums without noise have in common, in any session of a study."""
        return self._folder.parent / f"{what}-{hashlib.sha256(study.encode()).hexdigest()[:16]}"

    def erase(self, numbers: Iterable[int]) -> None:
        secrets = self.secrets
        for number in numbers:
            secrets = secrets.without_sum(number)
        self._keep_only(secrets)

    def erase_all(self) -> None:
        self._keep_only(self.secrets.without_any())

    @property
    def has_secrets(self) -> bool:
        """Whether a session has begun and has not ended here."""
        path = self._folder / "session.json"
        return path.exists() and _read(path)["secrets"]["enc"] is not None

    def _keep_only(self, secrets: Secrets) -> None:
        if secrets == self.secrets:
            return
        self._head = self._head | {"secrets": secrets.to_json()}
        with atomic_write(self._folder / "session.json", owner_only=True) as temporary:
            temporary.write_text(json.dumps(self._head), encoding="utf-8")


class _SentFiles(Mapping[str, bytes]):
    """Messages in files, read when they are needed: masked words are large."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> bytes:
        try:
            return (self._folder / _file_name(name)).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        for path in sorted(self._folder.glob("[!.]*")):
            yield _board_name(path.name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self._folder / _file_name(name)).exists()


def _public(path: Path) -> str:
    """A file by its name in the state folder, for messages that may leave this machine."""
    return f"{path.parent.name}/{path.name}" if path.name == "session.json" else path.name


def _changed(names: list[str]) -> SecureError:
    return SecureError(
        f"{' and '.join(names)} changed since this session began: all sums of a session must be of one "
        "member, with the same rows and settings. Restore them, or let the coordinator open another session."
    )


def _is_first_or_same(path: Path, text: str) -> bool:
    """Note a text in a file, unless there is one; whether it is this one."""
    return create_exclusive(path, text.encode(), owner_only=True) or path.read_bytes() == text.encode()


def _file_name(name: str) -> str:
    return name.replace("/", "-")


def _board_name(name: str) -> str:
    return name.replace("-", "/")


def _read(path: Path) -> JSON:
    try:
        head: JSON = json.loads(path.read_bytes())
        Secrets.from_json(head["secrets"])
        bytes.fromhex(head["pairs"])
        dict(head["facts"])
    except (ValueError, KeyError, TypeError) as error:
        raise SecureError(
            f"{_public(path)} is damaged ({type(error).__name__}): an older copy of the state folder must "
            "not be used. Wait for another session."
        ) from error
    return head
