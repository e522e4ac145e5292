"""Roster: who takes part in a study, with which keys, and on which settings all have agreed."""

import hashlib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Self

from fedpca._typing import JSON
from fedpca._util.files import atomic_write, local_path
from fedpca._util.text import join_names, looks
from fedpca.errors import OutdatedRoster, SignatureError
from fedpca.summaries import validation
from fedpca.trust import agreement, envelope
from fedpca.trust.envelope import Signature
from fedpca.trust.keys import PublicKey, SigningKey

ANYONE = "no roster: senders are not verified"
"""What logs and reports say where there is none."""

_FORMAT = "fedpca roster 1"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_BYTES = 2**24
_MAX_PREDECESSORS = 10_000


@dataclass(frozen=True)
class Member:
    """One who takes part in a study.

    Attributes:
        id: its name in the study, that of the child in its messages.
        key: its public key; a `PublicKey`, or its text.
        rows: how many rows it has declared to have: no message of more is accepted; None for any number.
    """

    id: str
    key: PublicKey
    rows: int | None = None

    def __post_init__(self) -> None:
        validation.child_name(self.id, "a member's id")
        if not isinstance(self.key, PublicKey):
            object.__setattr__(self, "key", PublicKey(self.key))
        if self.rows is not None:
            object.__setattr__(self, "rows", validation.integer(self.rows, "rows", at_least=1))

    def to_json(self) -> JSON:
        """Plain values; rows that were not declared are left out."""
        declared = {} if self.rows is None else {"rows": self.rows}
        return {"id": self.id, "key": self.key.text, **declared}


class Roster:
    """Who takes part in a study, and on what all have agreed: what `roster.toml` contains. Immutable.

    A message counts if a member signed it with the key that is here, for this study, under this roster or a
    predecessor of it. A change gives another roster of the same study, which names its predecessors, so that
    what was signed before still counts while its member's key is unchanged.

    Args:
        study: the id of the study, which never changes. Take one that no other study has.
        members: a `Member` each.
        settings: what all must share; any of `rank`, `features` (names) or `n_features`, `center` (true or
            false), `scale` ("std", "binomial" or "none"), `epsilon` with `delta`, `bound`, `adjacency` and
            `mechanism`, and, of a study with secure sums, `colluding`, `least` and, without privacy,
            `largest`.
        predecessors: hashes of the rosters before, oldest first.

    >>> north, south = SigningKey.new(), SigningKey.new()
    >>> roster = Roster("heart-2f81", [Member("north", north.public, rows=500)], {"rank": 5})
    >>> larger = roster.with_member(Member("south", south.public))
    >>> list(larger.members), larger.predecessors == (roster.hash,)
    (['north', 'south'], True)
    >>> larger.signer(south).member.id
    'south'
    """

    def __init__(
        self,
        study: str,
        members: Iterable[Member],
        settings: Mapping[str, object] = MappingProxyType({}),
        predecessors: Iterable[str] = (),
    ) -> None:
        self._study = validation.child_name(study, "study")
        listed = list(members)
        if strange := [member for member in listed if not isinstance(member, Member)]:
            raise TypeError(f"members must be a Member each, got {strange[0]!r:.80}.")
        listed.sort(key=lambda member: member.id)
        for what, found in (
            ("an id", Counter(member.id for member in listed)),
            ("a key", Counter(member.key.text for member in listed)),
        ):
            if (twice := found.most_common(1)) and twice[0][1] > 1:
                raise ValueError(
                    f"every member must have {what} of its own, and two have {twice[0][0]!r:.80}."
                )
        for member, other in pairwise(sorted(listed, key=lambda member: looks(member.id))):
            if looks(member.id) == looks(other.id):
                raise ValueError(
                    f"every member must have an id that looks like no other's, and {member.id!a:.200} and "
                    f"{other.id!a:.200} look alike; give one of them another."
                )
        self._members = MappingProxyType({member.id: member for member in listed})
        self._settings = MappingProxyType(agreement.checked(settings))
        self._predecessors = tuple(predecessors)
        if len(self._predecessors) > _MAX_PREDECESSORS:
            raise ValueError(f"there must be at most {_MAX_PREDECESSORS} predecessors; begin another study.")
        for item in self._predecessors:
            if not isinstance(item, str) or not _HASH.fullmatch(item):
                raise ValueError(f"predecessors must be hashes, sha256:..., got {item!r:.80}.")
        line = envelope.canonical({"format": _FORMAT, **self._to_json()})
        self._hash = f"sha256:{hashlib.sha256(line).hexdigest()}"

    @property
    def study(self) -> str:
        """The id of the study."""
        return self._study

    @property
    def members(self) -> Mapping[str, Member]:
        """The members, by id."""
        return self._members

    @property
    def settings(self) -> Mapping[str, Any]:
        """What all must share."""
        return self._settings

    @property
    def predecessors(self) -> tuple[str, ...]:
        """Hashes of the rosters before, oldest first."""
        return self._predecessors

    @property
    def hash(self) -> str:
        """Of the contents, "sha256:..."; not of white space, comments or the order of members."""
        return self._hash

    def _to_json(self) -> JSON:
        return {
            "study": self.study,
            "predecessors": list(self.predecessors),
            "settings": dict(self.settings),
            "members": [member.to_json() for member in self.members.values()],
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roster) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"Roster({self.study!r}, {len(self.members)} members, {self.hash[:15]}...)"

    # --- the file ---

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a roster.toml; unknown keys are rejected."""
        path = local_path(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such roster; check the path, or begin one with `fedpca roster new`."
            )
        with path.open("rb") as file:
            contents = file.read(_MAX_BYTES + 1)
        if len(contents) > _MAX_BYTES:
            raise ValueError(f"{path} is not a roster: it has more than {_MAX_BYTES} bytes.")
        try:
            return cls._from_toml(tomllib.loads(contents.decode()))
        except (TypeError, ValueError, RecursionError) as error:  # of TOML and of UTF-8, too
            raise ValueError(f"{path} is not a valid roster: {error}") from error

    @classmethod
    def _from_toml(cls, found: JSON) -> Self:
        agreement.refuse_unknown(found, ("study", "predecessors", "settings", "members"), "a roster")
        members, settings = found.get("members", []), found.get("settings", {})
        predecessors = found.get("predecessors", [])
        if not isinstance(settings, dict) or not isinstance(predecessors, list):
            raise ValueError("predecessors must be a list of hashes, and [settings] a table.")
        if not isinstance(members, list) or not all(isinstance(item, dict) for item in members):
            raise ValueError("members must be tables: [[members]].")
        for item in members:
            agreement.refuse_unknown(item, ("id", "key", "rows"), "a member")
        listed = [Member(item.get("id"), item.get("key"), item.get("rows")) for item in members]
        return cls(found.get("study"), listed, settings, predecessors)  # type: ignore[arg-type]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a roster.toml, atomically."""
        path = local_path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"cannot save {path}: there is no folder {path.parent}.")
        with atomic_write(path) as temporary:
            temporary.write_text(self.to_toml(), encoding="utf-8")

    def to_toml(self) -> str:
        """The text of its roster.toml."""
        lines = [f"study = {_toml(self.study)}", f"predecessors = {_toml(list(self.predecessors))}"]
        lines += ["", "[settings]", *(f"{name} = {_toml(value)}" for name, value in self.settings.items())]
        for member in self.members.values():
            lines += [
                "",
                "[[members]]",
                *(f"{name} = {_toml(value)}" for name, value in member.to_json().items()),
            ]
        return "\n".join(lines) + "\n"

    # --- changes: each gives the next roster of the study ---

    def with_member(self, member: Member) -> "Roster":
        """The next roster, with one member more."""
        if member.id in self.members:
            raise ValueError(
                f"{member.id!r:.80} is a member already; remove it first if its key is lost: what was signed "
                "with the old key stops counting."
            )
        return self._next(members=[*self.members.values(), member])

    def without_member(self, id: str) -> "Roster":
        """The next roster, without a member: what it has sent no longer counts."""
        if id not in self.members:
            raise ValueError(f"{id!r:.80} is not a member; members are {join_names(list(self.members))}.")
        return self._next(members=[member for name, member in self.members.items() if name != id])

    def with_settings(self, **settings: object) -> "Roster":
        """The next roster, with settings added or changed; None removes one."""
        merged = {name: value for name, value in ({**self.settings, **settings}).items() if value is not None}
        return self._next(settings=merged)

    def _next(self, **changes: Any) -> "Roster":
        kept = {"members": self.members.values(), "settings": self.settings}
        return Roster(self.study, predecessors=(*self.predecessors, self.hash), **{**kept, **changes})

    # --- signatures ---

    def signer(self, key: SigningKey) -> "Signer":
        """Signs what the member with this key sends; ValueError if the key is nobody's."""
        if not isinstance(key, SigningKey):
            raise TypeError(f"key must be a SigningKey, got {key!r:.80}; load it with SigningKey.load(path).")
        return Signer(self, self.member_of(key.public), key)

    def member_of(self, key: PublicKey) -> Member:
        """The member with this key; ValueError if it is nobody's."""
        for member in self.members.values():
            if member.key == key:
                return member
        raise SignatureError(
            f"the key {key.text} is that of no member of study {self.study!r:.80}; let whoever keeps the "
            "roster add it."
        )

    def check(self, contents: bytes, child: str | None = None, name: object = "the file") -> Signature:
        """The signature of a model file, after every check.

        Args:
            contents: of the file.
            child: who it must be from; None for any member.
            name: of the file, for error messages.

        Raises:
            SignatureError: it is unsigned; from a stranger; of another study; signed with a wrong key or
                under an unknown roster; was changed; or names another child than its signer.
            ModelFileError: it is no model file.
        """
        file = envelope.read(contents, name)
        member = self.check_signature(file.signature, child, name)
        if file.metadata.get("child", member.id) != member.id:
            raise SignatureError(
                f"{name} is signed by {member.id!r:.80}, and names {file.metadata['child']!r:.80} as its "
                "owner; every member speaks for itself alone."
            )
        assert file.signature is not None
        return file.signature

    def check_signature(
        self, signature: Signature | None, child: str | None, name: object = "the message"
    ) -> Member:
        """The member who has signed a file that was read; see `check`."""
        if signature is None:
            raise SignatureError(
                f"{name} must be signed by a member of study {self.study!r:.80}, and is unsigned; let its "
                "owner sign it with its key and the roster."
            )
        member = self.check_member(signature, child)
        if not signature.holds():
            raise SignatureError(
                f"{name} was changed after {member.id!r:.80} signed it: the signature does not hold; let the "
                "owner send it again."
            )
        if signature.roster != self.hash and signature.roster not in self.predecessors:
            raise OutdatedRoster(
                f"{name} was signed by {member.id!r:.80} under the roster {signature.roster[:19]}..., which "
                f"is neither this one ({self.hash[:19]}...) nor one before it; get the newest roster, or let "
                "the owner sign under this one."
            )
        return member

    def check_member(self, signature: Signature, child: str | None) -> Member:
        """The member whose signature it claims to be, of this study and with its key of today."""
        if signature.study != self.study:
            raise SignatureError(
                f"it was signed for study {signature.study!r:.80}, and this is {self.study!r:.80}; messages "
                "of one study do not count in another."
            )
        if child is None:
            return self.member_of(signature.key)
        member = self.members.get(child)
        if member is None:
            raise SignatureError(
                f"{child!r:.80} is not a member of study {self.study!r:.80}; let whoever keeps the roster "
                "add it, and get the newest roster."
            )
        if member.key != signature.key:
            others = [other.id for other in self.members.values() if other.key == signature.key]
            whose = f"that of {others[0]!r:.80}" if others else "no member's"
            raise SignatureError(
                f"it was signed with a wrong key, {whose}: that of {child!r:.80} is {member.key.text}; sign "
                "with the key in the roster."
            )
        return member


@dataclass(frozen=True)
class Signer:
    """Signs what a member sends; made by `Roster.signer`. To sign under a roster is to agree on it.

    Attributes:
        roster: that the member agrees on.
        member: who signs.
        key: the member's.
    """

    roster: Roster
    member: Member
    key: SigningKey

    def sign(self, contents: bytes) -> bytes:
        """A model file with the member's signature, which replaces one that it may have."""
        return envelope.sign(contents, self.key, study=self.roster.study, roster=self.roster.hash)


def require_roster(value: object) -> Roster | None:
    """The value, if it is a roster or None."""
    if value is not None and not isinstance(value, Roster):
        raise TypeError(f"roster must be a Roster, got {value!r:.80}; load it with Roster.load(path).")
    return value


def require_signer(value: object) -> Signer | None:
    """The value, if it is a signer or None."""
    if value is not None and not isinstance(value, Signer):
        raise TypeError(f"signer must be a Signer, got {value!r:.80}; make it with roster.signer(key).")
    return value


def _toml(value: object) -> str:
    """A value as TOML: strings, numbers, truth values and lists of strings are as in JSON, but for one."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
