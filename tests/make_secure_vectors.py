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
OPENED = "2025-01-02T03:04:05+00:00"
SMALL_ORDER = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"


def drawn(purpose, length):
    return hashlib.shake_256(purpose.encode()).digest(length)


def signing_key(seed):
    return Ed25519PrivateKey.from_private_bytes(seed)


# --- sessions ---


class Scene:
    """A session as its vector has it: members, secrets, what is summed, and who is there when.

    Args:
        name: of the file.
        size, least, colluding: of the roster.
        sums: name and [length, sd] of the blocks, per sum.
        here: by kind of message, who sends it; all members if it is not there. "masked", "signed" and
            "opened" are lists of one set per sum.
    """

    def __init__(self, name, about, *, size, least, colluding, sums, here=None, study=None):
        self.name, self.about, self.sums, self.here = name, about, sums, here or {}
        self.keys = [drawn(f"{name} key {i}", 32) for i in range(size)]
        signing = [signing_key(key) for key in self.keys]
        public = tuple(key.public_key().public_bytes_raw() for key in signing)
        ids = tuple(f"owner-{i:02}" for i in range(size))
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
        sums = tuple(
            {
                what: drawn(f"{self.name} {n} {what} {i}", 32)
                for what in ("key", "seed", "chain", "coefficients")
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
            announced = {"name": name, "blocks": self.shifted(blocks, len(inside)), "before": before}
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
        return list(self.sums[n])

    def shifted(self, blocks, a):
        of_levels = reference.levels(a, self.study.least, self.study.colluding)
        c = self.study.colluding
        return [[length, sd, reference.shift_of(of_levels, c, sd)] for length, sd in blocks]

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
                    "sums": [{what: value.hex() for what, value in of.items()} for of in secrets.sums],
                }
                for key, rows, secrets in zip(self.keys, self.rows, self.secrets, strict=True)
            ],
            "sums": [
                {"name": name, "blocks": blocks, "vectors": of_sum}
                for (name, blocks), of_sum in zip(self.sums, self.vectors, strict=True)
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
    noisy = [("first", [[5, 900.0], [3, 40.25]]), ("second", [[4, 12345.678]])]
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
        "Eight owners. Number 6 sends no keys, number 5 no shares; number 1 misses the masking of sum 0, "
        "number 4 that of sum 1; number 2 does not open sum 0. The study's id is not ASCII.",
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
        "Thirteen owners, two of whom may collude. Of twelve members of the session eleven are present, "
        "and two of these do not open their surplus, which stays in.",
        size=13,
        least=8,
        colluding=2,
        sums=[("only", [[2, 2000.0]])],
        here={
            "keys": range(12),
            "masked": [[0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]],
            "signed": [[1, 2, 3, 4, 5, 6, 8, 9, 10]],
            "opened": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]],
        },
    )
    yield Scene(
        "fewest",
        "Three owners, the fewest there can be: all must be there, and there is no surplus.",
        size=3,
        least=3,
        colluding=1,
        sums=[("only", [[3, 77.0]])],
    )
    yield Scene(
        "without-noise",
        "Sums without noise, in which the owners must be the same.",
        size=4,
        least=3,
        colluding=1,
        sums=[("sums", [[4, 0.0]]), ("products", [[6, 0.0]])],
    )


# --- bad ones ---


class Bad:
    """A case: a board with something wrong on it, and whoever must not go on.

    Attributes:
        scene: the session it is a change of.
        before: the board is that before this message was on it.
        change: what is on it instead: by name, bytes, or None for nothing.
        who: the index of the owner who must refuse, or "coordinator".
        refused: what that owner must not send, or the message that the coordinator must name as bad.
        expected: what the coordinator publishes all the same, or None for nothing.
    """

    def __init__(self, about, scene, before, change, who, refused, expected=None):
        self.about, self.scene, self.before, self.change = about, scene, before, change
        self.who, self.refused, self.expected = who, refused, expected

    def board(self):
        board = {**self.scene.before(self.before), **self.change}
        return {name: contents for name, contents in board.items() if contents is not None}

    def to_json(self):
        return {
            "about": self.about,
            "session": self.scene.name,
            "before": self.before,
            "change": {name: value and coded(value) for name, value in self.change.items()},
            "who": self.who,
            "refused": self.refused,
            "expected": self.expected and {name: coded(value) for name, value in self.expected.items()},
        }


def owners(scene, name, change, payload=None, key=None):
    """An owner's message with another header or payload, signed again, with its key or that of another."""
    header, old = reference.split(scene.board[name][:-64])
    payload = old if payload is None else payload
    header = {**header, "bytes": len(payload), **change}
    body = reference.header_line(header) + payload
    signer = scene.owners[header["from"] if key is None else key].key
    return body + signer.sign(b"fedpca secure message 1\n" + reference.sha256(body))


def published(scene, board_name, payload=None, **change):
    """A coordinator's message with another header or payload."""
    header, old = reference.split(scene.board[board_name])
    return reference.header_line({**header, **change}) + (old if payload is None else payload)


def flipped(contents, place):
    place %= len(contents)
    return contents[:place] + bytes([contents[place] ^ 1]) + contents[place + 1 :]


def entries(scene, name, key):
    return reference.split(scene.board[name])[0][key]


def with_hash(listed, index, contents, place=1):
    """A list of [index, hash ...] with another hash of one."""
    digest = reference.sha256(contents).hex()
    return [[*entry[:place], digest, *entry[place + 1 :]] if entry[0] == index else entry for entry in listed]


def bad_cases(scenes):
    """All of them. Owner 1 looks, unless another is named."""
    four, eight, thirteen, plain = (
        scenes[name] for name in ("all-present", "drop-outs", "levels", "without-noise")
    )
    yield from _bad_sessions(four)
    yield from _bad_keys(four)
    yield from _bad_shares(four)
    yield from _bad_agreements(four)
    yield from _bad_announcements(four)
    yield from _bad_present(four, eight, plain)
    yield from _bad_openings(four, eight)
    yield from _bad_totals(four)
    yield from _seen_by_the_coordinator(four, eight, thirteen)


def _bad_sessions(scene):
    def case(about, contents):
        return Bad(about, scene, "keys/000", {"session": contents}, 1, "keys/001")

    other = f"sha256:{'0' * 64}"
    yield case("a session under another roster", published(scene, "session", roster=other))
    yield case("a session of another study", published(scene, "session", study="another"))
    yield case("a session of another format", published(scene, "session", format="fedpca secure session 2"))
    spaced = scene.board["session"].replace(b'","', b'", "', 1)
    yield case("a session whose header has a space", spaced)
    yield case("a session with a field twice", scene.board["session"].replace(b"{", b'{"study":"x",', 1))


def _bad_keys(scene):
    listed = entries(scene, "keyring", "keys")

    def case(about, keyring=None, **change):
        changed = {name.replace("_", "/"): value for name, value in change.items()}
        if keyring is None:
            keyring = published(scene, "keyring", keys=listed)
        return Bad(about, scene, "shares/000", {"keyring": keyring, **changed}, 1, "shares/001")

    def of_keys(about, contents, index=2):
        keyring = published(scene, "keyring", keys=with_hash(listed, index, contents))
        return case(about, keyring, **{f"keys_{index:03}": contents})

    yield case("a keyring below least", published(scene, "keyring", keys=listed[:2]))
    yield case("a keyring without this owner", published(scene, "keyring", keys=[listed[0], *listed[2:]]))
    yield case("a keyring that is not in order", published(scene, "keyring", keys=listed[::-1]))
    yield case("a keyring with a member twice", published(scene, "keyring", keys=[listed[0], *listed]))
    yield case(
        "a keyring with an index beyond the roster",
        published(scene, "keyring", keys=[*listed, [4, "0" * 64]]),
    )
    yield case("a keyring of another session", published(scene, "keyring", session="0" * 64))
    yield case("a keyring with a further field", published(scene, "keyring", more=1))
    changed = with_hash(listed, 1, b"")
    yield case("a keyring that names other keys of this owner", published(scene, "keyring", keys=changed))
    changed = with_hash(listed, 2, b"")
    yield case("a keyring that names other keys than are there", published(scene, "keyring", keys=changed))
    yield case("keys that are not there", **{"keys_002": None})
    keys = scene.board["keys/002"]
    yield of_keys("keys with a changed byte in the header", flipped(keys, 40))
    yield of_keys("keys with a changed byte in the signature", flipped(keys, -1))
    yield of_keys("keys that were cut off", keys[:-1])
    yield of_keys("keys signed with the key of another member", owners(scene, "keys/002", {}, key=3))
    yield of_keys("keys of another member under this one's name", scene.board["keys/003"])
    yield of_keys("keys that say they are from another member", owners(scene, "keys/002", {"from": 3}, key=2))
    yield of_keys("keys of the wrong kind", owners(scene, "keys/002", {"kind": "shares"}))
    yield of_keys("keys of a sum", owners(scene, "keys/002", {"sum": 0}))
    yield of_keys("keys of another session", owners(scene, "keys/002", {"session": "0" * 64}))
    yield of_keys("keys of another study", owners(scene, "keys/002", {"study": "another"}))
    yield of_keys("keys under another roster", owners(scene, "keys/002", {"roster": f"sha256:{'0' * 64}"}))
    yield of_keys("keys with a payload", owners(scene, "keys/002", {}, payload=b"12345678"))
    yield of_keys("keys that state another length", owners(scene, "keys/002", {"bytes": 8}))
    yield of_keys("keys with a further field", owners(scene, "keys/002", {"more": 1}))
    yield of_keys("keys with more rows than declared", owners(scene, "keys/002", {"rows": scene.rows[2] + 1}))
    yield of_keys("keys for no rows", owners(scene, "keys/002", {"rows": 0}))
    yield of_keys("keys with rows that are no whole number", owners(scene, "keys/002", {"rows": 5.0}))
    yield of_keys("keys of small order", owners(scene, "keys/002", {"enc": SMALL_ORDER}))
    header, _ = reference.split(keys[:-64])
    yield of_keys("keys for fewer sums", owners(scene, "keys/002", {"sums": header["sums"][:1]}))
    small = [{**of, "key": SMALL_ORDER} for of in header["sums"]]
    yield of_keys("step keys of small order", owners(scene, "keys/002", {"sums": small}))
    yield of_keys("keys in capital letters", owners(scene, "keys/002", {"enc": header["enc"].upper()}))


def _bad_shares(scene):
    listed = entries(scene, "members", "members")

    def case(about, members=None, **change):
        changed = {name.replace("_", "/"): value for name, value in change.items()}
        if members is None:
            members = published(scene, "members", members=listed)
        return Bad(about, scene, "agreed/000", {"members": members, **changed}, 1, "agreed/001")

    def of_shares(about, contents):
        members = published(scene, "members", members=with_hash(listed, 2, contents, place=2))
        return case(about, members, shares_002=contents)

    yield case("members below least", published(scene, "members", members=listed[:2]))
    yield case("members without this owner", published(scene, "members", members=[listed[0], *listed[2:]]))
    changed = with_hash(listed, 1, b"", place=2)
    yield case("members with other shares of this owner", published(scene, "members", members=changed))
    changed = with_hash(listed, 2, b"", place=1)
    yield case("members with other keys than the keyring", published(scene, "members", members=changed))
    changed = with_hash(listed, 2, b"", place=2)
    yield case("members with other shares than are there", published(scene, "members", members=changed))
    yield of_shares("shares with a changed byte in a commitment", flipped(scene.board["shares/002"], -65))
    header, payload = reference.split(scene.board["shares/002"][:-64])
    receivers = 4
    at = 32 * (receivers * 2 + 1)  # sum 1, of the seed, for receiver 1
    lie = payload[:at] + bytes(32) + payload[at + 32 :]
    yield of_shares("a share that does not have its commitment", owners(scene, "shares/002", {}, payload=lie))
    at = 32 * (receivers + 1)  # sum 0, of the key, for receiver 1
    lie = payload[:at] + bytes(32) + payload[at + 32 :]
    yield of_shares(
        "a key share that does not have its commitment", owners(scene, "shares/002", {}, payload=lie)
    )
    garbled = {**header["sealed"], "1": flipped(header["sealed"]["1"].encode(), 10).decode()}
    garbled["1"] = "".join(digit if digit in "0123456789abcdef" else "0" for digit in garbled["1"])
    yield of_shares("shares that do not open", owners(scene, "shares/002", {"sealed": garbled}))
    swapped = {**header["sealed"], "1": header["sealed"]["3"]}
    yield of_shares("shares sealed for another member", owners(scene, "shares/002", {"sealed": swapped}))
    fewer = {key: value for key, value in header["sealed"].items() if key != "1"}
    yield of_shares("no shares for this owner", owners(scene, "shares/002", {"sealed": fewer}))
    yield of_shares("too few commitments", owners(scene, "shares/002", {}, payload=payload[:-32]))
    yield of_shares("shares for another keyring", owners(scene, "shares/002", {"keyring": "0" * 64}))


def _bad_agreements(scene):
    def case(about, **change):
        return Bad(
            about,
            scene,
            "00/masked/000",
            {f"agreed/00{name[-1]}": value for name, value in change.items()},
            1,
            "00/masked/001",
        )

    none = {"of_2": None, "of_3": None}
    yield case("fewer than threshold have agreed", **none)
    forged = owners(scene, "agreed/002", {}, key=3)
    yield case("threshold have agreed, one with a forged signature", of_2=forged, of_3=None)
    other = owners(scene, "agreed/002", {"members": "0" * 64})
    yield case("threshold have agreed, one to other members", of_2=other, of_3=None)
    yield case("an agreement of another member in its place", of_2=scene.board["agreed/000"], of_3=None)


def _bad_announcements(scene):
    name, (first, second) = "00/announced", entries(scene, "00/announced", "blocks")

    def case(about, **change):
        contents = published(scene, name, **change)
        return Bad(about, scene, "00/masked/000", {name: contents}, 1, "00/masked/001")

    def blocks(about, *found):
        return case(about, blocks=list(found))

    yield case("another sum than the next", name="another")
    yield blocks("less noise than was agreed", [5, 450.0, first[2]], second)
    yield blocks("no noise", [5, 0.0, 0], second)
    yield blocks("a block too few", first)
    yield blocks("a longer block", [6, *first[1:]], second)
    yield blocks("a shift that is too small", [5, 900.0, first[2] - 1], second)
    yield blocks("a shift that is too large", [5, 900.0, first[2] + 1], second)
    yield blocks("a negative shift", [5, 900.0, -1], second)
    yield blocks("a block without a length", [0, 900.0, first[2]], second)
    yield blocks("a negative standard deviation", [5, -900.0, first[2]], second)
    yield case("an announcement that follows nothing", before="0" * 64)
    changed = {"00/present": scene.board["00/present"]}
    yield Bad("words after those present were named", scene, "00/masked/000", changed, 1, "00/masked/001")
    second_sum = {"01/announced": scene.board["00/announced"]}
    yield Bad(
        "the announcement of sum 0 as that of sum 1", scene, "01/masked/000", second_sum, 1, "01/masked/001"
    )


def _bad_present(four, eight, plain):
    listed = entries(four, "00/present", "present")

    def case(about, found=None, **change):
        contents = published(four, "00/present", **change, **({} if found is None else {"present": found}))
        return Bad(about, four, "00/signed/000", {"00/present": contents}, 1, "00/signed/001")

    yield case("present below least", listed[:2])
    yield case("present without this owner", [listed[0], *listed[2:]])
    yield case("present with other words of this owner", with_hash(listed, 1, b""))
    yield case("present of another announcement", announced="0" * 64)
    yield case("present that is not in order", listed[::-1])
    yield case("present with an owner twice", [listed[0], *listed])
    yield case("present of another session", session="0" * 64)
    stranger = [*entries(eight, "00/present", "present"), [5, "0" * 64]]
    stranger.sort()
    contents = published(eight, "00/present", present=stranger)
    yield Bad(
        "present with one who is no member of the session",
        eight,
        "00/signed/000",
        {"00/present": contents},
        3,
        "00/signed/003",
    )
    yield Bad(
        "without noise, another set than in the sum before",
        plain,
        "01/signed/000",
        {"01/present": published(plain, "01/present", present=entries(plain, "01/present", "present")[:3])},
        1,
        "01/signed/001",
    )
    # This owner has signed the first already; the second would let it open for another set.
    second = published(four, "00/present", present=listed[:3])
    others = {
        f"00/signed/{i:03}": owners(four, f"00/signed/{i:03}", {"present": reference.sha256(second).hex()})
        for i in (0, 2)
    }
    changed = {"00/present": second, **others, "00/signed/003": None}
    yield Bad(
        "two presents: another than this owner has signed", four, "00/opened/000", changed, 1, "00/opened/001"
    )


def _bad_openings(four, eight):
    def case(about, **change):
        changed = {f"00/signed/00{name[-1]}": value for name, value in change.items()}
        return Bad(about, four, "00/opened/000", changed, 1, "00/opened/001")

    yield case("fewer than threshold have signed", of_2=None, of_3=None)
    yield case("threshold have signed, one forged", of_2=owners(four, "00/signed/002", {}, key=3), of_3=None)
    other = owners(four, "00/signed/002", {"present": "0" * 64})
    yield case("threshold have signed, one another set", of_2=other, of_3=None)
    yield case(
        "a signature of another kind", of_2=owners(four, "00/signed/002", {"kind": "opened"}), of_3=None
    )
    yield case("a signature of another sum", of_2=owners(four, "00/signed/002", {"sum": 1}), of_3=None)
    yield case("a signature in another's place", of_2=four.board["00/signed/000"], of_3=None)
    refused = {"00/refused/001": four.owners[1].refused(0)}
    yield Bad("opened after it was refused", four, "00/opened/000", refused, 1, "00/opened/001")
    # Owner 1 of eight is not present, and opens for the others.
    none = {"00/signed/000": None}
    yield Bad(
        "too few signatures for one who is not present", eight, "00/opened/000", none, 1, "00/opened/001"
    )


def _bad_totals(scene):
    header, payload = reference.split(scene.board["00/total"])

    def case(about, payload=None, **change):
        total = published(scene, "00/total", payload, **change)
        announced = published(scene, "01/announced", before=reference.sha256(total).hex())
        changed = {"00/total": total, "01/announced": announced}
        return Bad(about, scene, "01/masked/000", changed, 1, "01/masked/001")

    yield case("a total of another set", present="0" * 64)
    yield case("a total of other rows", rows=header["rows"] + 1)
    yield case("a total with other noise", noise=header["noise"] / 2)
    yield case("a total with a word too few", payload[:-8])
    yield case("a total with part of a word", payload[:-1])
    yield case("a total that opened a stranger", opened=[*header["opened"], 4])
    yield case("a total of another session", session="0" * 64)
    changed = {"00/total": flipped(scene.board["00/total"], -1)}
    yield Bad("a total that changed after the next sum", scene, "01/masked/000", changed, 1, "01/masked/001")


def _seen_by_the_coordinator(four, eight, thirteen):
    def case(about, scene, before, change, refused, publish=None):
        return Bad(about, scene, before, change, "coordinator", refused, publish)

    def keyring(about, contents):
        board = {**four.before("keyring"), "keys/002": contents}
        expected = {"keyring": reference.keyring(four.session, board)[0]}
        return case(about, four, "keyring", {"keys/002": contents}, "keys/002", expected)

    yield keyring("keys with a changed byte", flipped(four.board["keys/002"], 40))
    yield keyring("keys of small order", owners(four, "keys/002", {"enc": SMALL_ORDER}))
    yield keyring("keys with more rows than declared", owners(four, "keys/002", {"rows": 10**6}))

    def members(about, contents):
        board = {**four.before("members"), "shares/002": contents}
        expected = {"members": reference.members(four.session, board)[0]}
        return case(about, four, "members", {"shares/002": contents}, "shares/002", expected)

    yield members("shares with a changed byte", flipped(four.board["shares/002"], -70))
    yield members("shares for another keyring", owners(four, "shares/002", {"keyring": "0" * 64}))
    short = reference.split(four.board["shares/002"][:-64])[1][:-32]
    yield members("too few commitments", owners(four, "shares/002", {}, payload=short))

    def present(about, contents, n=0):
        name = f"{n:02}/masked/002"
        board = {**four.before(f"{n:02}/present"), name: contents}
        expected = {f"{n:02}/present": reference.present(four.session, board, n)[0]}
        return case(about, four, f"{n:02}/present", {name: contents}, name, expected)

    words = reference.split(four.board["00/masked/002"][:-64])[1]
    yield present("words with a changed byte", flipped(four.board["00/masked/002"], -80))
    yield present("words of another sum", four.board["00/masked/002"], n=1)
    yield present("words of another member", four.board["00/masked/003"])
    yield present("a word too few", owners(four, "00/masked/002", {}, payload=words[:-8]))
    yield present("words of another announcement", owners(four, "00/masked/002", {"announced": "0" * 64}))
    yield present("words of other rows", owners(four, "00/masked/002", {"rows": 1}))

    def total(about, scene, index, contents):
        name = f"00/opened/{index:03}"
        board = {**scene.before("00/total"), name: contents}
        expected = {"00/total": reference.total(scene.session, board, 0)[0]}
        return case(about, scene, "00/total", {name: contents}, name, expected)

    def opened(scene, index, field, **change):
        """What an owner opens, with another share or several."""
        name = f"00/opened/{index:03}"
        header, _ = reference.split(scene.board[name][:-64])
        return owners(
            scene, name, {field: {**header[field], **{key[1:]: value for key, value in change.items()}}}
        )

    def surplus(scene, index, text):
        return owners(scene, f"00/opened/{index:03}", {"surplus": text})

    false, seed = "00" * 33, reference.split(four.board["00/opened/002"][:-64])[0]["seeds"]["0"]
    yield total("a share without its commitment", four, 2, opened(four, 2, "seeds", _0=false))
    yield total("a key share without its commitment", thirteen, 2, opened(thirteen, 2, "keys", _7=false))
    yield total("shares of seed and key of one owner", four, 2, opened(four, 2, "keys", _0=seed))
    yield total("a surplus that does not reach its anchor", four, 2, surplus(four, 2, "11" * 32))
    first = four.secrets[2].sums[0]["chain"].hex()
    yield total("a surplus at another place in the chain", four, 2, surplus(four, 2, first))
    yield total("no surplus where there is some", four, 2, surplus(four, 2, ""))
    yield total("a surplus of one who is not present", thirteen, 7, surplus(thirteen, 7, ""))
    yield total("opened for another set", four, 2, owners(four, "00/opened/002", {"present": "0" * 64}))
    yield total("opened with a changed byte", four, 2, flipped(four.board["00/opened/002"], -1))
    # Of eight, five open; without one of them there are too few.
    lie = {"00/opened/003": opened(eight, 3, "keys", _1=false)}
    yield case("too few shares without a false one", eight, "00/total", lie, "00/opened/003")


# --- single parts ---


def primitives():
    """Values that no message shows."""
    key, session = drawn("primitives key", 32), drawn("primitives session", 32)
    first, second = drawn("primitives first", 32), drawn("primitives second", 32)
    public = reference.public_of(second)
    shared = reference.x25519(first, public)
    info = b"fedpca secure pair\n" + drawn("primitives context", 32) + reference.number(3)
    derived = reference.Session(None, session).hkdf(shared, info)
    element = drawn("primitives chain", 32)
    sd, label = boundary(key)
    sizes = [(3, 3, 1), (7, 5, 1), (10, 6, 1), (50, 26, 1), (100, 51, 1), (100, 90, 40), (1000, 600, 150)]
    parts = [(10, 6, 1, 88604000.5), (100, 51, 1, 3.7), (7, 5, 1, 1e-9), (7, 5, 1, 0.0)]
    draws = [(0, 24, 4.0), (1, 24, 1024.5), (2, 24, 2.0**47), (label, 1, sd)]
    return {
        "x25519": {"private": first.hex(), "public": public.hex(), "shared": shared.hex()},
        "hkdf": {"key": shared.hex(), "salt": session.hex(), "info": info.hex(), "out": derived.hex()},
        "keystream": {"key": key.hex(), "words": reference.keystream(key, 12)},
        "shares": [_shares(drawn("primitives seed", 32)), _shares(b"\xff" * 32), _shares(bytes(32))],
        "chain": {"first": element.hex(), "elements": [reference.chain(element, k).hex() for k in range(5)]},
        "levels": [
            {"members": a, "least": least, "colluding": c, "levels": reference.levels(a, least, c)}
            for a, least, c in sizes
        ],
        "deviations": [_deviations(*item) for item in parts],
        "noise": [
            {
                "key": key.hex(),
                "label": number,
                "sd": deviation,
                "entries": reference.rounded_gaussians(key, number, count, deviation),
            }
            for number, count, deviation in draws
        ],
    }


def _shares(secret):
    of = {"seed": secret, "coefficients": drawn("primitives coefficients", 32)}
    shares = reference.shares_of(of, "seed", 4, range(6))
    return {
        "secret": secret.hex(),
        "coefficients": of["coefficients"].hex(),
        "threshold": 4,
        "shares": [share.hex() for share in shares],
        "commitments": [reference.committed(share).hex() for share in shares],
    }


def _deviations(a, least, c, sd):
    levels = reference.levels(a, least, c)
    shift = reference.shift_of(levels, c, sd)
    sds = reference.deviations(levels, c, sd, shift)
    return {"members": a, "least": least, "colluding": c, "sd": sd, "shift": shift, "sds": sds}


def boundary(key):
    """A standard deviation and a label whose first entry 64 bits do not decide."""
    label, half = 10, 100000
    tail = int.from_bytes(hashlib.shake_128(key + label.to_bytes(8, "little")).digest(8), "little") % 2**63
    with localcontext() as context:
        context.prec = 60
        low, high = (quantile(Decimal(tail + side) / 2**64) for side in (1, 0))
        while True:
            half += 1
            sd = float((half + Decimal("0.5")) / low)
            if low < (half + Decimal("0.5")) / Decimal(sd) < high:
                return sd, label


def quantile(tail):
    """The point with this upper tail, by bisection."""
    low, high = Decimal(0), Decimal(12)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (middle, high) if reference.upper_tail(middle) > tail else (low, middle)
    return low


def vectors():
    """Contents of the files, by name."""
    made = {scene.name: scene for scene in scenes()}
    return {
        **{name: scene.to_json() for name, scene in made.items()},
        "primitives": primitives(),
        "bad": [case.to_json() for case in bad_cases(made)],
    }


def text(contents):
    return json.dumps(contents, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, contents in vectors().items():
        (FOLDER / f"{name}.json").write_text(text(contents), encoding="utf-8")
