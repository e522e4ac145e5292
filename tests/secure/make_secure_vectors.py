"""Makes the test vectors of secure sums again: `python tests/secure/make_secure_vectors.py`.

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

FOLDER = Path(__file__).parent / "vectors"
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
        """The board as it was before something was on it; all of it before the "end"."""
        names = [*self.board, "end"]
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
    return reference.header_line({"format": "fedpca roster 1", **roster})[:-1]


def coded(contents):
    return base64.b64encode(contents).decode()


def scenes():
    noisy = [("first", [[5, 900.0], [3, 40.25]]), ("second", [[4, 12345.6787109375]])]
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
        rule: that is broken, by its name on the page.
        scene: the session it is a change of.
        before: the board is that before this message was on it; "end" for all of it.
        change: what is on it instead: by name, bytes, or None for nothing.
        who: the index of the owner who must refuse, or "coordinator".
        refused: what that owner must not send, or the message that the coordinator must name as bad.
        expected: what the coordinator publishes all the same, or None for nothing.
        given: what else differs: "settings" and "roster_hash" of the study, or the owner's "vector"; or
            "sent": "before", if what is changed of the owner's own messages is not what it has sent.
    """

    def __init__(self, rule, about, scene, before, change, who, refused, expected=None, **given):
        self.rule, self.about, self.scene, self.before, self.change = rule, about, scene, before, change
        self.who, self.refused, self.expected, self.given = who, refused, expected, given

    def to_json(self):
        return {
            "rule": self.rule,
            "about": self.about,
            "session": self.scene.name,
            "before": self.before,
            "change": {name: value and coded(value) for name, value in self.change.items()},
            "who": self.who,
            "refused": self.refused,
            "expected": self.expected and {name: coded(value) for name, value in self.expected.items()},
            **self.given,
        }


def signed_by(signer, header, payload):
    """A message with this header, whatever it says."""
    body = reference.header_line({**header, "bytes": len(payload)}) + payload
    return body + signer.sign(b"fedpca secure message 1\n" + reference.sha256(body))


def owners(scene, name, change, payload=None, key=None):
    """An owner's message with another header or payload, signed again, with its key or that of another."""
    header, old = reference.split(scene.board[name][:-64])
    payload = old if payload is None else payload
    signer = scene.owners[header["from"] if key is None else key].key
    if "bytes" not in change:
        return signed_by(signer, {**header, **change}, payload)
    body = reference.header_line({**header, **change}) + payload
    return body + signer.sign(b"fedpca secure message 1\n" + reference.sha256(body))


def published(scene, board_name, payload=None, **change):
    """A coordinator's message with another header or payload."""
    header, old = reference.split(scene.board[board_name])
    return reference.header_line({**header, **change}) + (old if payload is None else payload)


def followed(scene, before, change):
    """The changes, and with them every message that names a changed one by its hash: it names the new one.

    So a lie is not found by a hash that does not fit, but where it is the only one.
    """
    found, renamed = dict(change), {}
    for name, old in scene.before(before).items():
        if name not in change:
            line, rest = old.split(b"\n", 1)
            for digest, now in renamed.items():
                line = line.replace(digest, now)
            if line + b"\n" + rest == old:
                continue
            found[name] = line + b"\n" + rest
            if name[-3:].isdigit():
                signer = scene.owners[int(name[-3:])].key
                found[name] = signed_by(signer, json.loads(line), rest[:-64])
        if found[name] is not None:
            renamed[reference.sha256(old).hex().encode()] = reference.sha256(found[name]).hex().encode()
    return found


def dealt_again(scene, dealer, receiver, dealt, *, n=0, committed=None):
    """A dealer's `shares` in which a receiver finds other shares of a sum, as committed to.

    Args:
        dealt: makes the two shares of two.
        committed: makes the shares of which the commitments are, if they are of others.
    """
    header, payload = reference.split(scene.board[f"shares/{dealer:03}"][:-64])
    receivers = sorted([dealer, *map(int, header["sealed"])])
    public = reference.public_of(scene.secrets[receiver].enc)
    info = b"fedpca secure shares\n" + reference.number(dealer) + reference.number(receiver)
    key = scene.session.hkdf(reference.x25519(scene.secrets[dealer].enc, public), info)
    sealed = reference.ChaCha20Poly1305(key)
    plain = sealed.decrypt(bytes(12), bytes.fromhex(header["sealed"][str(receiver)]), None)
    pair = plain[66 * n : 66 * n + 33], plain[66 * n + 33 : 66 * n + 66]
    plain = plain[: 66 * n] + b"".join(dealt(*pair)) + plain[66 * n + 66 :]
    for what, share in enumerate((committed or dealt)(*pair)):
        at = 32 * (len(receivers) * (2 * n + what) + receivers.index(receiver))
        payload = payload[:at] + reference.committed(share) + payload[at + 32 :]
    again = {**header["sealed"], str(receiver): sealed.encrypt(bytes(12), plain, None).hex()}
    return owners(scene, f"shares/{dealer:03}", {"sealed": again}, payload=payload)


def plus_prime(share):
    """The same number modulo P, in as many bytes."""
    return (int.from_bytes(share, "big") + reference.PRIME).to_bytes(33, "big")


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
    """All of them: every rule of the page is broken by some. Owner 1 looks, unless another is named."""
    four, eight, thirteen, plain = (
        scenes[name] for name in ("all-present", "drop-outs", "levels", "without-noise")
    )
    yield from _bad_sessions(four)
    yield from _bad_keys(four)
    yield from _bad_shares(four)
    yield from _bad_agreements(four)
    yield from _bad_announcements(four)
    yield from _bad_words(four, plain)
    yield from _bad_present(four, eight, plain)
    yield from _bad_openings(four, eight)
    yield from _bad_totals(four)
    yield from _seen_by_the_coordinator(four, eight, thirteen, plain)


def _bad_sessions(scene):
    def case(rule, about, contents, **given):
        return Bad(rule, about, scene, "keys/000", {"session": contents}, 1, "keys/001", **given)

    def terms(rule, about, **changed):
        settings = {**scene.settings, **changed}
        digest = f"sha256:{hashlib.sha256(roster_bytes({**scene.roster, 'settings': settings})).hexdigest()}"
        return case(
            rule, about, published(scene, "session", roster=digest), settings=settings, roster_hash=digest
        )

    yield terms("roster-size", "only one member may be honest", colluding=3)
    yield terms("roster-least", "fewer than threshold in a sum", least=2)
    yield terms("roster-least", "more in a sum than there are", least=5)
    other = f"sha256:{'0' * 64}"
    yield case("session-roster", "a session under another roster", published(scene, "session", roster=other))
    yield case("session-study", "a session of another study", published(scene, "session", study="another"))
    another = published(scene, "session", format="fedpca secure session 2")
    yield case("session-format", "a session of another format", another)
    yield case("session-nonce", "a nonce that is too short", published(scene, "session", nonce="00" * 31))
    for about, opened in (
        ("a session opened at no time", "soon"),
        ("a session opened at a time that is no text", 20250102),
        ("a session opened nobody knows where", "2025-01-02T03:04:05"),
    ):
        yield case("session-opened", about, published(scene, "session", opened=opened))
    late = published(scene, "session", opened="9999-01-02T03:04:05+00:00")
    yield case("session-future", "a session of the future", late)
    spaced = scene.board["session"].replace(b'","', b'", "', 1)
    yield case("header", "a session whose header has a space", spaced)
    twice = scene.board["session"].replace(b"{", b'{"study":"x",', 1)
    yield case("header", "a session with a field twice", twice)
    yield case("header-fields", "a session with a further field", published(scene, "session", more=1))
    yield case("payload", "a session with a payload", published(scene, "session", b"more"))


def _bad_keys(scene):
    listed = entries(scene, "keyring", "keys")

    def case(rule, about, keyring=None, given=None, **change):
        changed = {name.replace("_", "/"): value for name, value in change.items()}
        if keyring is None:
            keyring = published(scene, "keyring", keys=listed)
        changed = {"keyring": keyring, **changed}
        return Bad(rule, about, scene, "shares/000", changed, 1, "shares/001", **(given or {}))

    def named(rule, about, found):
        return case(rule, about, published(scene, "keyring", keys=found))

    def of_keys(rule, about, contents, index=2):
        keyring = published(scene, "keyring", keys=with_hash(listed, index, contents))
        return case(rule, about, keyring, **{f"keys_{index:03}": contents})

    def keys(rule, about, payload=None, key=None, **change):
        return of_keys(rule, about, owners(scene, "keys/002", change, payload, key))

    yield named("keyring-least", "a keyring below least", listed[:2])
    yield named("keyring-own", "a keyring without this owner", [listed[0], *listed[2:]])
    yield named("list-order", "a keyring that is not in order", listed[::-1])
    yield named("list-order", "a keyring with a member twice", [listed[0], *listed])
    beyond = [*listed, [4, "0" * 64]]
    yield named("list-entries", "a keyring with an index beyond the roster", beyond)
    yield named("list-entries", "a keyring with true for 1", [listed[0], [True, listed[1][1]], *listed[2:]])
    yield named("list-entries", "a keyring with a hash too short", [[0, "00" * 31], *listed[1:]])
    yield named("list-entries", "a keyring with a hash too many", [[*listed[0], "00" * 32], *listed[1:]])
    yield named("list-entries", "a keyring that is no list", {})
    other = published(scene, "keyring", session="0" * 64)
    yield case("message-session", "a keyring of another session", other)
    yield case("header-fields", "a keyring with a further field", published(scene, "keyring", more=1))
    yield case("payload", "a keyring with a payload", published(scene, "keyring", b"more"))
    other = with_hash(listed, 1, b"")
    yield named("keyring-hash", "a keyring that names other keys of this owner", other)
    again = owners(scene, "keys/001", {"rows": 1})  # signed, but not by the owner's own program
    keyring = published(scene, "keyring", keys=with_hash(listed, 1, again))
    yield case("keyring-own", "other keys of this owner", keyring, {"sent": "before"}, keys_001=again)
    other = with_hash(listed, 2, b"")
    yield named("keyring-hash", "a keyring that names other keys than are there", other)
    yield case("header", "keys that are not there", **{"keys_002": None})
    contents = scene.board["keys/002"]
    yield of_keys("header-fields", "keys with a changed byte in the header", flipped(contents, 3))
    yield of_keys("message-signature", "keys with a changed byte in the signature", flipped(contents, -1))
    yield of_keys("header", "keys that were cut off", contents[:-1])
    yield of_keys("message-length", "keys with a byte too many", contents + b"x")
    yield keys("message-signature", "keys signed with the key of another member", key=3)
    yield of_keys("message-place", "keys of another member in this one's place", scene.board["keys/003"])
    yield of_keys(
        "message-place", "keys that say they are from another", owners(scene, "keys/002", {"from": 3}, key=2)
    )
    yield keys("message-place", "keys of the wrong kind", kind="shares")
    yield keys("message-place", "keys of a sum", sum=0)
    yield keys("message-place", "keys from 2.0", **{"from": 2.0})
    yield keys("message-place", "keys of another session", session="0" * 64)
    yield keys("message-place", "keys of another study", study="another")
    yield keys("message-place", "keys under another roster", roster=f"sha256:{'0' * 64}")
    yield keys("payload", "keys with a payload", payload=b"12345678")
    yield keys("message-length", "keys that state another length", bytes=8)
    yield keys("message-length", "keys that state a length of 0.0", bytes=0.0)
    yield keys("header-fields", "keys with a further field", more=1)
    yield keys("keys-declared", "keys with more rows than declared", rows=scene.rows[2] + 1)
    yield keys("keys-rows", "keys for no rows", rows=0)
    yield keys("keys-rows", "keys with rows that are no whole number", rows=5.0)
    yield keys("keys-x25519", "keys of small order", enc=SMALL_ORDER)
    sums = reference.split(contents[:-64])[0]["sums"]
    yield keys("keys-sums", "keys for fewer sums", sums=sums[:1])
    yield keys("keys-sums", "keys for more sums", sums=[*sums, sums[0]])
    small = [{**of, "key": SMALL_ORDER} for of in sums]
    yield keys("keys-x25519", "step keys of small order", sums=small)
    enc = reference.split(contents[:-64])[0]["enc"]
    yield keys("keys-values", "keys in capital letters", enc=enc.upper())
    yield keys("keys-values", "a seed's hash that is too short", sums=[{**of, "seed": "00"} for of in sums])
    yield keys("keys-values", "a sum without an anchor", sums=[{"key": of["key"]} for of in sums])
    yield keys("keys-values", "sums that are no list", sums={"0": sums[0]})


def _bad_shares(scene):
    listed = entries(scene, "members", "members")

    def case(rule, about, members, given=None, **change):
        changed = {name.replace("_", "/"): value for name, value in change.items()}
        changed = {"members": members, **changed}
        return Bad(rule, about, scene, "agreed/000", changed, 1, "agreed/001", **(given or {}))

    def named(rule, about, found):
        return case(rule, about, published(scene, "members", members=found))

    def of_shares(rule, about, contents):
        members = published(scene, "members", members=with_hash(listed, 2, contents, place=2))
        return case(rule, about, members, shares_002=contents)

    def shares(rule, about, payload=None, **change):
        return of_shares(rule, about, owners(scene, "shares/002", change, payload))

    def dealt(rule, about, change, **options):
        return of_shares(rule, about, dealt_again(scene, 2, 1, change, **options))

    yield named("members-least", "members below least", listed[:2])
    yield named("members-own", "members without this owner", [listed[0], *listed[2:]])
    other = with_hash(listed, 1, b"", place=2)
    yield named("members-hash", "members with other shares of this owner", other)
    again = dealt_again(scene, 1, 2, lambda seed, key: (key, seed))
    members = published(scene, "members", members=with_hash(listed, 1, again, place=2))
    yield case("members-own", "other shares of this owner", members, {"sent": "before"}, shares_001=again)
    other = with_hash(listed, 2, b"", place=1)
    yield named("members-keyring", "members with other keys than the keyring", other)
    other = with_hash(listed, 2, b"", place=2)
    yield named("members-hash", "members with other shares than are there", other)
    signature = flipped(scene.board["shares/002"], -65)
    yield of_shares("message-signature", "shares with a changed byte in a commitment", signature)
    header, payload = reference.split(scene.board["shares/002"][:-64])
    receivers = 4
    at = 32 * (receivers * 2 + 1)  # sum 1, of the seed, for receiver 1
    lie = payload[:at] + bytes(32) + payload[at + 32 :]
    yield shares("share-committed", "a share that does not have its commitment", lie)
    at = 32 * (receivers + 1)  # sum 0, of the key, for receiver 1
    lie = payload[:at] + bytes(32) + payload[at + 32 :]
    yield shares("share-committed", "a key share that does not have its commitment", lie)
    yield dealt(
        "share-prime", "a share plus P, with its commitment", lambda seed, key: (plus_prime(seed), key)
    )
    yield dealt(
        "share-prime", "a key share plus P, with its commitment", lambda seed, key: (seed, plus_prime(key))
    )
    above = reference.PRIME.to_bytes(33, "big")
    yield dealt("share-prime", "a share of P, with its commitment", lambda _, key: (above, key), n=1)
    yield dealt(
        "share-committed",
        "shares of seed and key in each other's place, committed to in theirs",
        lambda seed, key: (key, seed),
        committed=lambda seed, key: (seed, key),
    )
    garbled = {**header["sealed"], "1": flipped(header["sealed"]["1"].encode(), 10).decode()}
    garbled["1"] = "".join(digit if digit in "0123456789abcdef" else "0" for digit in garbled["1"])
    yield shares("share-sealed", "shares that do not open", sealed=garbled)
    swapped = {**header["sealed"], "1": header["sealed"]["3"]}
    yield shares("share-sealed", "shares sealed for another member", sealed=swapped)
    fewer = {key: value for key, value in header["sealed"].items() if key != "1"}
    yield shares("shares-receivers", "no shares for this owner", sealed=fewer)
    more = {**header["sealed"], "2": header["sealed"]["1"]}
    yield shares("shares-receivers", "shares for their dealer", sealed=more)
    short = {**header["sealed"], "3": header["sealed"]["3"][:-2]}
    yield shares("shares-length", "sealed shares that are too short, for another", sealed=short)
    capital = {**header["sealed"], "3": header["sealed"]["3"].upper()}
    yield shares("shares-length", "sealed shares in capital letters, for another", sealed=capital)
    yield shares("shares-commitments", "too few commitments", payload[:-32])
    yield shares("shares-keyring", "shares for another keyring", keyring="0" * 64)


def _bad_agreements(scene):
    def case(rule, about, **change):
        return Bad(
            rule,
            about,
            scene,
            "00/masked/000",
            {f"agreed/00{name[-1]}": value for name, value in change.items()},
            1,
            "00/masked/001",
        )

    def agreed(about, contents):
        return case("agreed-threshold", about, of_2=contents, of_3=None)

    yield agreed("fewer than threshold have agreed", None)
    forged = owners(scene, "agreed/002", {}, key=3)
    yield agreed("threshold have agreed, one with a forged signature", forged)
    other = owners(scene, "agreed/002", {"members": "0" * 64})
    yield agreed("threshold have agreed, one to other members", other)
    yield agreed("an agreement of another member in its place", scene.board["agreed/000"])
    yield agreed("an agreement with a payload", owners(scene, "agreed/002", {}, payload=b"more"))
    # Those of a session that this owner is not in agree without it.
    three = [entry for entry in entries(scene, "members", "members") if entry[0] != 1]
    members = published(scene, "members", members=three)
    fields = {"blocks": scene.shifted(scene.sums[0][1], 3), "before": reference.sha256(members).hex()}
    change = {
        "members": members,
        "agreed/001": None,
        "00/announced": published(scene, "00/announced", **fields),
    }
    changed = followed(scene, "00/masked/000", change)
    yield Bad(
        "masked-member", "members without this owner", scene, "00/masked/000", changed, 1, "00/masked/001"
    )


def _bad_announcements(scene):
    name, (first, second) = "00/announced", entries(scene, "00/announced", "blocks")

    def case(rule, about, **change):
        contents = published(scene, name, **change)
        return Bad(rule, about, scene, "00/masked/000", {name: contents}, 1, "00/masked/001")

    def blocks(rule, about, *found):
        return case(rule, about, blocks=list(found))

    yield case("announced-next", "another sum than the next", name="another")
    a, c = scene.study.size, scene.study.colluding
    levels = reference.levels(a, scene.study.least, c)
    less = [5, 450.0, reference.shift_of(levels, c, 450.0)]
    yield blocks("announced-next", "less noise than was agreed", less, second)
    yield blocks("announced-next", "no noise", [5, 0.0, 0], second)
    yield blocks("announced-next", "a block too few", first)
    yield blocks("announced-next", "a longer block", [6, *first[1:]], second)
    yield blocks("announced-shift", "a shift that is too small", [5, 900.0, first[2] - 1], second)
    yield blocks("announced-shift", "a shift that is too large", [5, 900.0, first[2] + 1], second)
    yield blocks("announced-parts", "parts of the noise that are too small", [5, 1e-12, 40], second)
    yield blocks("announced-parts", "parts of the noise that are too large", [5, 1e30, 0], second)
    yield blocks("announced-form", "a negative shift", [5, 900.0, -1], second)
    yield blocks("announced-form", "a shift that is too large for any noise", [5, 900.0, 41], second)
    yield blocks("announced-form", "a block without a length", [0, 900.0, first[2]], second)
    yield blocks("announced-form", "a length with a fraction", [5.0, 900.0, first[2]], second)
    yield blocks("announced-form", "a negative standard deviation", [5, -900.0, first[2]], second)
    yield blocks("announced-form", "a standard deviation that is a whole number", [5, 900, first[2]], second)
    yield blocks("announced-form", "a block without a shift", first[:2], second)
    yield blocks("announced-form", "no blocks")
    yield blocks("announced-form", "too many blocks", *[[1, 0.0, 0]] * 257)
    yield blocks("announced-form", "too many words", [2**28, *first[1:]], second)
    yield case("announced-form", "a name that is no text", name=1)
    yield case("announced-before", "an announcement that follows nothing", before="0" * 64)
    second_sum = {"01/announced": scene.board["00/announced"]}
    yield Bad(
        "announced-before",
        "the announcement of sum 0 as that of sum 1",
        scene,
        "01/masked/000",
        second_sum,
        1,
        "01/masked/001",
    )
    further = published(scene, "01/announced", before=reference.sha256(scene.board["01/total"]).hex())
    yield Bad(
        "announced-number",
        "a sum for which nobody has keys",
        scene,
        "end",
        {"02/announced": further},
        1,
        "02/masked/001",
    )


def _bad_words(scene, plain):
    changed = {"00/present": scene.board["00/present"]}
    yield Bad(
        "masked-late",
        "words after those present were named",
        scene,
        "00/masked/000",
        changed,
        1,
        "00/masked/001",
    )
    shift = entries(scene, "00/announced", "blocks")[0][2]
    for size in (2 ** (62 - shift), -(2 ** (62 - shift))):
        vector = [size, *scene.vectors[0][1][1:]]
        about = f"an integer of {size}, which may wrap around"
        yield Bad("masked-integers", about, scene, "00/masked/000", {}, 1, "00/masked/001", vector=vector)
    # Without noise, the first sum was of the three others.
    three = [entry for entry in entries(plain, "00/present", "present") if entry[0] != 1]
    change = {"00/present": published(plain, "00/present", present=three), "00/signed/001": None}
    rows = sum(plain.rows[i] for i, _ in three)
    noise = reference.noise_of(plain.study, 4, 3, 0)
    changed = followed(plain, "01/masked/000", change)
    changed["00/opened/001"] = None
    total = {"present": reference.sha256(change["00/present"]).hex(), "rows": rows, "noise": noise}
    changed["00/total"] = published(plain, "00/total", **total, opened=[])
    before = reference.sha256(changed["00/total"]).hex()
    changed["01/announced"] = published(plain, "01/announced", before=before)
    yield Bad(
        "masked-owners",
        "without noise, words of one who was not in the sum before",
        plain,
        "01/masked/000",
        changed,
        1,
        "01/masked/001",
    )


def _bad_present(four, eight, plain):
    listed = entries(four, "00/present", "present")

    def case(rule, about, found=None, **change):
        contents = published(four, "00/present", **change, **({} if found is None else {"present": found}))
        return Bad(rule, about, four, "00/signed/000", {"00/present": contents}, 1, "00/signed/001")

    yield case("present-least", "present below least", listed[:2])
    yield case("present-own", "present without this owner", [listed[0], *listed[2:]])
    yield case("present-own", "present with other words of this owner", with_hash(listed, 1, b""))
    yield case("present-announced", "present of another announcement", announced="0" * 64)
    yield case("list-order", "present that is not in order", listed[::-1])
    yield case("list-order", "present with an owner twice", [listed[0], *listed])
    yield case("message-session", "present of another session", session="0" * 64)
    announced = published(four, "00/announced", name="another")
    present = published(four, "00/present", announced=reference.sha256(announced).hex(), present=listed)
    changed = {"00/announced": announced, "00/present": present}
    yield Bad(
        "present-masked",
        "present of an announcement that was exchanged",
        four,
        "00/signed/000",
        changed,
        1,
        "00/signed/001",
    )
    stranger = [*entries(eight, "00/present", "present"), [5, "0" * 64]]
    stranger.sort()
    contents = published(eight, "00/present", present=stranger)
    yield Bad(
        "present-members",
        "present with one who is no member of the session",
        eight,
        "00/signed/000",
        {"00/present": contents},
        3,
        "00/signed/003",
    )
    yield Bad(
        "present-owners",
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
        "signed-threshold",
        "two presents: another than this owner has signed",
        four,
        "00/opened/000",
        changed,
        1,
        "00/opened/001",
    )
    third = owners(four, "00/signed/003", {"present": reference.sha256(second).hex()})
    yield Bad(
        "signed-threshold",
        "the same, and threshold have signed it",
        four,
        "00/opened/000",
        {**changed, "00/signed/003": third},
        1,
        "00/opened/001",
    )


def _bad_openings(four, eight):
    def case(about, contents):
        changed = {"00/signed/002": contents, "00/signed/003": None}
        return Bad("signed-threshold", about, four, "00/opened/000", changed, 1, "00/opened/001")

    def signed(about, **change):
        return case(about, owners(four, "00/signed/002", change))

    yield case("fewer than threshold have signed", None)
    yield case("threshold have signed, one forged", owners(four, "00/signed/002", {}, key=3))
    yield signed("threshold have signed, one another set", present="0" * 64)
    yield signed("a signature of another kind", kind="opened")
    yield signed("a signature of another sum", sum=1)
    yield signed("a signature of sum false", sum=False)
    yield case("a signature in another's place", four.board["00/signed/000"])
    refused = {"00/refused/001": four.owners[1].refused({}, 0)}
    yield Bad(
        "opened-refused",
        "opened after it was refused",
        four,
        "00/opened/000",
        refused,
        1,
        "00/opened/001",
    )
    yield Bad("refused-opened", "refused after it was opened", four, "00/total", {}, 1, "00/refused/001")
    # Owner 1 of eight is not present, and opens for the others.
    none = {"00/signed/000": None}
    yield Bad(
        "signed-threshold",
        "too few signatures for one who is not present",
        eight,
        "00/opened/000",
        none,
        1,
        "00/opened/001",
    )
    # It has shares of all, and the others go on as members without it.
    rest = [entry for entry in entries(eight, "members", "members") if entry[0] != 1]
    members = published(eight, "members", members=rest)
    fields = {
        "blocks": eight.shifted(eight.sums[0][1], len(rest)),
        "before": reference.sha256(members).hex(),
    }
    change = {
        "members": members,
        "agreed/001": None,
        "00/announced": published(eight, "00/announced", **fields),
    }
    yield Bad(
        "opened-member",
        "opened by one who is no member of the session",
        eight,
        "00/opened/000",
        followed(eight, "00/opened/000", change),
        1,
        "00/opened/001",
    )


def _bad_totals(scene):
    header, payload = reference.split(scene.board["00/total"])

    def case(rule, about, payload=None, **change):
        total = published(scene, "00/total", payload, **change)
        announced = published(scene, "01/announced", before=reference.sha256(total).hex())
        changed = {"00/total": total, "01/announced": announced}
        return Bad(rule, about, scene, "01/masked/000", changed, 1, "01/masked/001")

    yield case("total-present", "a total of another set", present="0" * 64)
    yield case("total-rows", "a total of other rows", rows=header["rows"] + 1)
    yield case("total-rows", "a total of rows with a fraction", rows=float(header["rows"]))
    yield case("total-noise", "a total with other noise", noise=header["noise"] / 2)
    yield case("total-length", "a total with a word too few", payload[:-8])
    yield case("total-length", "a total with part of a word", payload[:-1])
    yield case("total-opened", "a total that opened a stranger", opened=[*header["opened"], 4])
    yield case("total-opened", "a total that opened true", opened=[0, True, 2, 3])
    yield case("total-opened", "a total that opened 1.0", opened=[0, 1.0, 2, 3])
    yield case("total-opened", "a total that opened in another order", opened=header["opened"][::-1])
    yield case("message-session", "a total of another session", session="0" * 64)
    changed = {"00/total": flipped(scene.board["00/total"], -1)}
    yield Bad(
        "announced-before",
        "a total that changed after the next sum",
        scene,
        "01/masked/000",
        changed,
        1,
        "01/masked/001",
    )


def _seen_by_the_coordinator(four, eight, thirteen, plain):
    def case(rule, about, scene, before, change, refused, publish=None):
        return Bad(rule, about, scene, before, change, "coordinator", refused, publish)

    def keyring(rule, about, contents):
        board = {**four.before("keyring"), "keys/002": contents}
        expected = {"keyring": reference.keyring(four.session, board)[0]}
        return case(rule, about, four, "keyring", {"keys/002": contents}, "keys/002", expected)

    changed = flipped(four.board["keys/002"], -1)
    yield keyring("message-signature", "keys with a changed byte", changed)
    yield keyring("keys-x25519", "keys of small order", owners(four, "keys/002", {"enc": SMALL_ORDER}))
    yield keyring(
        "keys-declared", "keys with more rows than declared", owners(four, "keys/002", {"rows": 10**6})
    )
    change = {"keys/001": None, "keys/002": changed}
    yield case("keyring-least", "too few keys without bad ones", four, "keyring", change, "keys/002")

    def members(rule, about, contents):
        board = {**four.before("members"), "shares/002": contents}
        expected = {"members": reference.members(four.session, board)[0]}
        return case(rule, about, four, "members", {"shares/002": contents}, "shares/002", expected)

    changed = flipped(four.board["shares/002"], -70)
    yield members("message-signature", "shares with a changed byte", changed)
    yield members(
        "shares-keyring", "shares for another keyring", owners(four, "shares/002", {"keyring": "0" * 64})
    )
    short = reference.split(four.board["shares/002"][:-64])[1][:-32]
    yield members("shares-commitments", "too few commitments", owners(four, "shares/002", {}, payload=short))
    change = {"shares/001": None, "shares/002": changed}
    yield case("members-least", "too few shares without bad ones", four, "members", change, "shares/002")

    def present(rule, about, contents, n=0):
        name = f"{n:02}/masked/002"
        board = {**four.before(f"{n:02}/present"), name: contents}
        expected = {f"{n:02}/present": reference.present(four.session, board, n)[0]}
        return case(rule, about, four, f"{n:02}/present", {name: contents}, name, expected)

    words = reference.split(four.board["00/masked/002"][:-64])[1]
    changed = flipped(four.board["00/masked/002"], -80)
    yield present("message-signature", "words with a changed byte", changed)
    yield present("message-place", "words of another sum", four.board["00/masked/002"], n=1)
    yield present("message-place", "words of another member", four.board["00/masked/003"])
    yield present("masked-length", "a word too few", owners(four, "00/masked/002", {}, payload=words[:-8]))
    yield present(
        "masked-announced",
        "words of another announcement",
        owners(four, "00/masked/002", {"announced": "0" * 64}),
    )
    yield present("masked-rows", "words of other rows", owners(four, "00/masked/002", {"rows": 1}))
    rows = float(four.rows[2])
    yield present(
        "masked-rows", "words of rows with a fraction", owners(four, "00/masked/002", {"rows": rows})
    )
    change = {"00/masked/001": None, "00/masked/002": changed}
    yield case("present-least", "too few words without bad ones", four, "00/present", change, "00/masked/002")
    change = {"01/masked/002": flipped(plain.board["01/masked/002"], -80)}
    about = "bad words of one without whom there is no sum without noise"
    yield case("present-owners", about, plain, "01/present", change, "01/masked/002")
    other = owners(four, "00/masked/002", {}, payload=flipped(words, 0))
    yield case(
        "present-hash",
        "words that changed after those present were named",
        four,
        "00/total",
        {"00/masked/002": other},
        "00/masked/002",
    )

    def total(rule, about, scene, index, contents, n=0):
        name, result = f"{n:02}/opened/{index:03}", f"{n:02}/total"
        board = {**scene.before(result), name: contents}
        expected = {result: reference.total(scene.session, board, n)[0]}
        return case(rule, about, scene, result, {name: contents}, name, expected)

    def opened(scene, index, field, **change):
        """What an owner opens, with another share or several."""
        name = f"00/opened/{index:03}"
        header, _ = reference.split(scene.board[name][:-64])
        return owners(
            scene, name, {field: {**header[field], **{key[1:]: value for key, value in change.items()}}}
        )

    def surplus(about, scene, index, text, n=0):
        contents = owners(scene, f"{n:02}/opened/{index:03}", {"surplus": text})
        return total("opened-surplus", about, scene, index, contents, n)

    false, seed = "00" * 33, reference.split(four.board["00/opened/002"][:-64])[0]["seeds"]["0"]
    lie = opened(four, 2, "seeds", _0=false)
    yield total("opened-share", "a share without its commitment", four, 2, lie)
    lie = opened(four, 2, "seeds", _0=plus_prime(bytes.fromhex(seed)).hex())
    yield total("opened-share", "a share plus P", four, 2, lie)
    lie = opened(thirteen, 2, "keys", _7=false)
    yield total("opened-share", "a key share without its commitment", thirteen, 2, lie)
    lie = opened(four, 2, "keys", _0=seed)
    yield total("opened-indices", "shares of seed and key of one owner", four, 2, lie)
    yield surplus("a surplus that does not reach its anchor", four, 2, "11" * 32)
    first = four.secrets[2].sums[0]["chain"].hex()
    yield surplus("a surplus at another place in the chain", four, 2, first)
    yield surplus("no surplus where there is some", four, 2, "")
    yield surplus("a surplus of one who is not present", thirteen, 7, "")
    yield surplus("a surplus where nothing is taken off", eight, 3, "11" * 32, n=1)
    other = owners(four, "00/opened/002", {"present": "0" * 64})
    yield total("opened-present", "opened for another set", four, 2, other)
    changed = flipped(four.board["00/opened/002"], -1)
    yield total("message-signature", "opened with a changed byte", four, 2, changed)
    # Of eight, five open; without one of them there are too few.
    lie = {"00/opened/003": opened(eight, 3, "keys", _1=false)}
    about = "too few shares without a false one"
    yield case("opened-threshold", about, eight, "00/total", lie, "00/opened/003")

    def dealt(rule, about, scene, dealer, field):
        """All shares are as committed to, and give no secret that was published."""
        sums = reference.split(scene.board[f"keys/{dealer:03}"][:-64])[0]["sums"]
        other = reference.public_of(drawn("another secret", 32)).hex()
        lie = owners(scene, f"keys/{dealer:03}", {"sums": [{**sums[0], field: other}, *sums[1:]]})
        change = followed(scene, "00/total", {f"keys/{dealer:03}": lie})
        return case(rule, about, scene, "00/total", change, f"shares/{dealer:03}")

    yield dealt("dealt-seed", "shares that do not give the seed", four, 2, "seed")
    yield dealt("dealt-key", "shares that do not give the step key", eight, 1, "key")


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
