"""Sessions of the vectors, as the library and the second implementation read them, for several tests."""

import base64
import json

import make_secure_vectors
import numpy as np
import secure_reference as reference
from secure_sessions import ListedSums, Sum, rows_of

from fedpca.secure import Coordinator, Owner, OwnerMemory, Progress, Secrets, Session
from fedpca.secure.owner import refusal
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

    def fit(self, index=None):
        sums = [Sum(item["name"], [tuple(block) for block in item["blocks"]]) for item in self.sums]
        return ListedSums(sums, lambda n: np.array(self.vector(n, index)))

    def reply(self, index, board, sent=None):
        """Everything that an owner sends; `sent`: a board with what it has sent, by default this one."""
        of = self.owners[index]
        progress = Progress(Session(self.roster, board["session"]), self.fit(index))
        return Owner(progress, self.key(index), rows_of(of["rows"]), self.state(index, sent or board)).reply(
            board
        )

    def refuse(self, index, board, n):
        """What an owner sends that refuses a sum."""
        session = Session(self.roster, board["session"])
        return refusal(session, self.key(index), self.state(index, board), n, board)

    def key(self, index):
        return SigningKey(self.keys[index])

    def state(self, index, board):
        of = self.owners[index]
        sums = [
            {"surplus" if name == "chain" else name: value for name, value in item.items()}
            for item in of["sums"]
        ]
        secrets = Secrets.from_json({"enc": of["enc"], "sums": sums})
        sent = {name: contents for name, contents in board.items() if parts(name)[1] == index}
        return OwnerMemory(secrets, sent)

    def publish(self, board):
        """What the coordinator publishes, and what it finds wrong."""
        coordinator = Coordinator(Progress(Session(self.roster, board["session"]), self.fit()))
        return coordinator.advance(board, closing=True), coordinator.problems


def parts(name):
    """Kind, index and number of the sum in a board name; None where there is none."""
    words = name.split("/")
    n = int(words.pop(0)) if words[0].isdigit() else None
    return words[0], int(words[1]) if len(words) > 1 else None, n
