"""Sessions of the vectors, as the library and the second implementation read them, for several tests."""

import base64
import json
from types import SimpleNamespace

import make_secure_vectors
import numpy as np
import secure_reference as reference

from fedpca.errors import SecureError
from fedpca.secure import Coordinator, Owner, Record, Secrets
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import Member, Roster

FOLDER = make_secure_vectors.FOLDER
SESSIONS = ("all-present", "drop-outs", "levels", "fewest", "without-noise")


def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def decoded(contents):
    return base64.b64decode(contents)


class Scene:
    """A session's vector, as both implementations read it."""

    def __init__(self, vector):
        self.board = {name: decoded(contents) for name, contents in vector["board"].items()}
        self.owners, self.sums, self.roster_hash = vector["owners"], vector["sums"], vector["roster_hash"]
        found = vector["roster"]
        members = [Member(item["id"], item["key"], item["rows"]) for item in found["members"]]
        self.roster = Roster(found["study"], members, found["settings"])
        self.keys = [make_secure_vectors.signing_key(bytes.fromhex(of["signing_key"])) for of in self.owners]
        self.study = reference.Study(
            found["study"],
            vector["roster_hash"],
            tuple(item["id"] for item in found["members"]),
            tuple(key.public_key().public_bytes_raw() for key in self.keys),
            tuple(item["rows"] for item in found["members"]),
            found["settings"]["least"],
            found["settings"]["colluding"],
            len(self.sums),
        )

    def before(self, name):
        names = [*self.board, "end"]
        return {other: self.board[other] for other in names[: names.index(name)]}

    # --- by the reference ---

    def by_reference(self, name, board):
        """The message of this name."""
        session = reference.Session.of(self.study, board["session"])
        kind, index, n = parts(name)
        if index is None:
            if kind == "announced":
                before = board["members" if n == 0 else f"{n - 1:02}/total"]
                a = len(reference.read_members(session, board))
                of_levels = reference.levels(a, self.study.least, self.study.colluding)
                blocks = [
                    [length, sd, reference.shift_of(of_levels, self.study.colluding, sd)]
                    for length, sd in self.sums[n]["blocks"]
                ]
                fields = {"name": self.sums[n]["name"], "blocks": blocks}
                digest = reference.sha256(before).hex()
                return reference.coordinator_message(session, before=digest, **fields), {}
            return getattr(reference, kind)(session, board, *([] if n is None else [n]))
        of = self.owners[index]
        sums = tuple({key: bytes.fromhex(value) for key, value in item.items()} for item in of["sums"])
        secrets = reference.Secrets(bytes.fromhex(of["enc"]), sums)
        owner = reference.Owner(session, index, self.keys[index], of["rows"], secrets)
        if kind == "keys":
            return owner.keys()
        if kind == "masked":
            return owner.masked(board, n, self.vector(n, index), self.expected(n))
        return getattr(owner, kind)(board, *([] if n is None else [n]))

    def expected(self, n):
        return [self.sums[n]["name"], self.sums[n]["blocks"]] if n < len(self.sums) else None

    def vector(self, n, index):
        return self.sums[n]["vectors"][index] if n < len(self.sums) else None

    # --- by the library ---

    def owner(self, index, board, sent=None):
        """`sent`: a board with what it has sent; by default this one."""
        of = self.owners[index]
        sums = [
            {"surplus" if name == "chain" else name: value for name, value in item.items()}
            for item in of["sums"]
        ]
        secrets = Secrets.from_json({"enc": of["enc"], "sums": sums})
        sent = board if sent is None else sent
        sent = {name: contents for name, contents in sent.items() if parts(name)[1] == index}
        key = SigningKey(self.keys[index])
        return Owner(self.roster, board["session"], key, of["rows"], secrets, sent)

    def reply(self, index, board, sent=None):
        """Everything that an owner sends, as a study makes it: it reads all totals before the next sum."""
        owner = self.owner(index, board, sent)

        def vector(announced):
            totals = Record(owner.session, board).totals
            blocks = [[length, sd] for length, sd, _ in announced.blocks]
            if [announced.name, blocks] != self.expected(len(totals)):
                raise SecureError("another sum was announced than follows")
            return np.array(self.vector(announced.number, index))

        return owner.reply(board, vector)

    def refuse(self, index, board, n):
        """What an owner sends that refuses a sum."""
        return self.owner(index, board).refuse(n, board)

    def publish(self, board):
        """What the coordinator publishes, and what it finds wrong."""
        coordinator = Coordinator(self.roster, board["session"])

        def announce():
            n = sum(name.endswith("/total") for name in board)
            if n == len(self.sums):
                return None
            return SimpleNamespace(name=self.sums[n]["name"], blocks=self.sums[n]["blocks"])

        return coordinator.next(board, closing=True, announce=announce), coordinator.problems


def parts(name):
    """Kind, index and number of the sum in a board name; None where there is none."""
    words = name.split("/")
    n = int(words.pop(0)) if words[0].isdigit() else None
    return words[0], int(words[1]) if len(words) > 1 else None, n
