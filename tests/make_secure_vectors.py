"""Makes the test vectors of secure sums again: `python tests/make_secure_vectors.py`.

All randomness is fixed: words of SHAKE256 of what it is for. Good vectors are whole sessions, with every
secret; bad ones are changes of these, each with whoever must refuse it.
"""

import base64
import hashlib
import json
import struct
from decimal import Decimal, localcontext
from pathlib import Path

import secure_reference as reference
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FOLDER = Path(__file__).parent / "vectors" / "secure"
OPENED = "2026-01-02T03:04:05+00:00"
SMALL_ORDER = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"


def drawn(purpose, length):
    return hashlib.shake_256(purpose.encode()).digest(length)


# --- sessions ---


class Scene:
    """A session as its vector has it: members, secrets, what is summed, and who is there when.

    Args:
        name: of the file.
        size, least, colluding: of the roster.
        sums: name and [length, sd, shift] of the blocks, per sum.
        here: by kind of message, who sends it; all members if it is not there. "masked", "signed" and "opened" are
            lists of one set per sum.
    """

    def __init__(self, name, about, *, size, least, colluding, sums, here=None, study=None):
        self.name, self.about, self.sums, self.here = name, about, sums, here or {}
        self.keys = [drawn(f"{name} key {i}", 32) for i in range(size)]
        signing = [Ed25519PrivateKey.from_private_bytes(key) for key in self.keys]
        public = tuple(key.public_key().public_bytes_raw() for key in signing)
        ids = tuple(f"owner-{i}" for i in range(size))
        self.rows = [100 + 7 * i for i in range(size)]
        self.settings = {"rank": 2, "n_features": 3, "colluding": colluding, "least": least, "largest": 1.0}
        self.roster = roster_json(study or f"vectors-{name}", ids, public, self.rows, self.settings)
        self.study = reference.Study(
            self.roster["study"],
            f"sha256:{hashlib.sha256(roster_bytes(self.roster)).hexdigest()}",
            ids,
            public,
            tuple(self.rows),
            least,
            colluding,
            len(sums),
        )
        opening = reference.session_message(self.study, drawn(f"{name} nonce", 32), OPENED)
        self.session = reference.Session.of(self.study, opening)
        self.board = {"session": opening}
        self.secrets = [self._secrets(i) for i in range(size)]
        self.owners = [
            reference.Owner(self.session, i, signing[i], self.rows[i], self.secrets[i]) for i in range(size)
        ]
        self.vectors = [[self._vector(n, i) for i in range(size)] for n in range(len(sums))]
        self._play()

    def _secrets(self, i):
        def coefficients(n, what):
            found = (drawn(f"{self.name} {n} {what} {i} {power}", 48) for power in range(1, self.study.threshold))
            return tuple(found)

        sums = tuple(
            {
                **{what: drawn(f"{self.name} {n} {what} {i}", 32) for what in ("key", "seed", "chain")},
                "seed coefficients": coefficients(n, "seed"),
                "key coefficients": coefficients(n, "key"),
            }
            for n in range(len(self.sums))
        )
        return reference.Secrets(drawn(f"{self.name} enc {i}", 32), sums)

    def _vector(self, n, i):
        length = sum(block[0] for block in self.sums[n][1])
        words = struct.unpack(f"<{length}i", drawn(f"{self.name} vector {n} {i}", 4 * length))
        return [word >> 6 for word in words]

    def _who(self, kind, n=None):
        who = self.here.get(kind, range(self.study.size))
        return who if n is None or kind not in self.here else who[n]

    def _play(self):
        board, session = self.board, self.session
        for i in self._who("keys"):
            board[reference.path("keys", i)] = self.owners[i].keys()
        board["keyring"], _ = reference.keyring(session, board)
        inside = set(self._who("keys"))
        for i in [i for i in self._who("shares") if i in inside]:
            board[reference.path("shares", i)] = self.owners[i].shares(board)
        board["members"], _ = reference.members(session, board)
        inside = list(reference.read_members(session, board))
        for i in inside:
            board[reference.path("agreed", i)] = self.owners[i].agreed(board)
        for n, (name, blocks) in enumerate(self.sums):
            before = reference.sha256(board["members" if n == 0 else f"{n - 1:02}/total"]).hex()
            announced = {"name": name, "blocks": blocks, "before": before}
            board[f"{n:02}/announced"] = reference.coordinator_message(session, **announced)
            for i in [i for i in self._who("masked", n) if i in inside]:
                board[reference.path("masked", i, n)] = self.owners[i].masked(
                    board, n, self.vectors[n][i], self.expected(n)
                )
            board[f"{n:02}/present"], _ = reference.present(session, board, n)
            there = reference.read_present(session, board, n)
            for i in [i for i in self._who("signed", n) if i in there]:
                board[reference.path("signed", i, n)] = self.owners[i].signed(board, n)
            for i in [i for i in self._who("opened", n) if i in inside]:
                board[reference.path("opened", i, n)] = self.owners[i].opened(board, n)
            board[f"{n:02}/total"], problems = reference.total(session, board, n)
            assert not problems

    def expected(self, n):
        name, blocks = self.sums[n]
        return [name, [block[:2] for block in blocks]]

    def before(self, name):
        """The board as it was before something was on it."""
        names = list(self.board)
        return {other: self.board[other] for other in names[: names.index(name)]}

    def to_json(self):
        return {
            "about": self.about,
            "roster": self.roster,
            "roster_hash": self.study.roster,
            "threshold": self.study.threshold,
            "owners": [
                {
                    "signing_key": key.hex(),
                    "rows": rows,
                    "enc": secrets.enc.hex(),
                    "sums": [
                        {
                            what: value.hex() if isinstance(value, bytes) else [item.hex() for item in value]
                            for what, value in of.items()
                        }
                        for of in secrets.sums
                    ],
                }
                for key, rows, secrets in zip(self.keys, self.rows, self.secrets, strict=True)
            ],
            "sums": [
                {"name": name, "blocks": blocks, "vectors": vectors}
                for (name, blocks), vectors in zip(self.sums, self.vectors, strict=True)
            ],
            "board": {name: coded(contents) for name, contents in self.board.items()},
        }


def roster_json(study, ids, public, rows, settings):
    members = [
        {"id": name, "key": f"ed25519:{base64.b64encode(key).decode()}", "rows": n}
        for name, key, n in zip(ids, public, rows, strict=True)
    ]
    return {"study": study, "predecessors": [], "settings": settings, "members": members}


def roster_bytes(roster):
    contents = {"format": "fedpca roster 1", **roster}
    return json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()


def coded(contents):
    return base64.b64encode(contents).decode()


def scenes():
    noisy = [("first", [[5, 900.0, 3], [3, 40.25, 7]]), ("second", [[4, 12345.678, 0]])]
    yield Scene(
        "all-present",
        "Four owners, all there in both sums: every surplus is taken off.",
        size=4,
        least=3,
        colluding=1,
        sums=noisy,
    )
    yield Scene(
        "drop-outs",
        "Seven owners. Number 6 sends no keys, number 5 no shares of its own; number 1 misses the masking of sum 0, "
        "number 4 that of sum 1; number 2 does not open sum 0, and its surplus stays in. The study's id is no ASCII.",
        size=8,
        least=5,
        colluding=1,
        sums=noisy,
        here={
            "keys": [0, 1, 2, 3, 4, 5, 7],
            "shares": [0, 1, 2, 3, 4, 7],
            "masked": [[0, 2, 3, 4, 7], [0, 1, 2, 3, 7]],
            "signed": [[0, 2, 3, 4, 7], [0, 1, 2, 3, 7]],
            "opened": [[0, 1, 3, 4, 7], [0, 1, 2, 3, 4, 7]],
        },
        study="vectors-größe-λ",
    )
    yield Scene(
        "levels",
        "Thirteen owners, two of whom may collude: levels 13, 12, 11, 10, 9, 8; of twelve with keys eleven are there, "
        "and two of them do not open their surplus.",
        size=13,
        least=8,
        colluding=2,
        sums=[("only", [[2, 2000.0, 4]])],
        here={
            "keys": range(12),
            "masked": [[0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]],
            "signed": [[1, 2, 3, 4, 5, 6, 8, 9, 10]],
            "opened": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]],
        },
    )
    yield Scene(
        "without-noise",
        "Three owners, the fewest there can be, and sums without noise.",
        size=3,
        least=3,
        colluding=1,
        sums=[("sums", [[4, 0.0, 0]]), ("products", [[6, 0.0, 0]])],
    )
