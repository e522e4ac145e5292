"""A second implementation of secure sums, small and slow, written from docs/reference/secure-protocol.md.

It shares no code with fedpca. An owner here is a function of what it was given: it keeps nothing, and so does
not see to it that it signs, masks and opens once. Every rule has its name on that page, and a bad vector.
"""

import functools
import hashlib
import itertools
import json
import math
import statistics
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PRIME = 2**256 + 297
WORD = 2**64
KEYS_OF = {
    "keys": {"rows", "enc", "sums"},
    "shares": {"keyring", "sealed"},
    "agreed": {"members"},
    "masked": {"announced", "rows"},
    "signed": {"present"},
    "opened": {"present", "seeds", "keys", "surplus"},
    "refused": set(),
}
OF_COORDINATOR = {
    "keyring": {"keys"},
    "members": {"members"},
    "announced": {"name", "blocks", "before"},
    "present": {"announced", "present"},
    "total": {"present", "opened", "rows", "noise"},
}


class Refused(ValueError):
    """A rule of the protocol is broken: `rule` is its name on the page.

    `problems`: by the name of each message that did not count before, the rule that it breaks.
    """

    def __init__(self, rule, about="", problems=None):
        super().__init__(f"{rule} {about}".strip())
        self.rule = rule
        self.problems = problems or {}


def require(holds, rule, about=""):
    if not holds:
        raise Refused(rule, about)


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def number(index):
    return index.to_bytes(4, "big")


def path(name, index, n=None):
    return f"{name}/{index:03}" if n is None else f"{n:02}/{name}/{index:03}"


# --- messages ---


def header_line(header):
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def split(message):
    line, newline, rest = message.partition(b"\n")
    try:
        header = json.loads(line)
        canonical = isinstance(header, dict) and header_line(header) == line + newline
    except (ValueError, RecursionError):
        canonical = False
    require(canonical, "header")
    return header, rest


@dataclass(frozen=True)
class Study:
    """What a roster says. `ids` are sorted; `rows` are those declared, None for any number."""

    study: str
    roster: str
    ids: tuple
    public: tuple
    rows: tuple
    least: int
    colluding: int
    n_sums: int

    @property
    def size(self):
        return len(self.ids)

    @property
    def threshold(self):
        return (self.size + self.colluding) // 2 + 1


def check_study(study):
    require(3 <= study.size <= 1000 and 1 <= study.colluding <= study.size - 2, "roster-size")
    require(study.threshold <= study.least <= study.size, "roster-least")


@dataclass(frozen=True)
class Session:
    study: Study
    id: bytes

    @classmethod
    def of(cls, study, contents):
        check_study(study)
        header, rest = split(contents)
        require(set(header) == {"format", "study", "roster", "nonce", "opened"}, "header-fields")
        require(not rest, "payload")
        require(header["format"] == "fedpca secure session 1", "session-format")
        require(header["study"] == study.study, "session-study")
        require(header["roster"] == study.roster, "session-roster")
        require(is_hex(header["nonce"], 32), "session-nonce")
        opened = time_of(header["opened"])
        require(opened is not None, "session-opened")
        require(opened <= datetime.now(UTC) + timedelta(hours=1), "session-future")
        return cls(study, sha256(contents))

    def coordinator(self, kind, contents):
        """Header and payload of a coordinator's message."""
        header, payload = split(contents)
        require(set(header) == OF_COORDINATOR[kind] | {"session"}, "header-fields", kind)
        require(header["session"] == self.id.hex(), "message-session", kind)
        require(kind == "total" or not payload, "payload", kind)
        return header, payload

    def sign(self, key, kind, index, n, payload=b"", **header):
        common = {
            "kind": kind,
            "session": self.id.hex(),
            "study": self.study.study,
            "roster": self.study.roster,
            "from": index,
            "sum": n,
            "bytes": len(payload),
        }
        body = header_line(common | header) + payload
        return body + key.sign(b"fedpca secure message 1\n" + sha256(body))

    def owner(self, kind, index, n, contents):
        """Header and payload of an owner's message, if it counts."""
        body, signature = contents[:-64], contents[-64:]
        header, payload = split(body)
        expected = {
            "kind": kind,
            "session": self.id.hex(),
            "study": self.study.study,
            "roster": self.study.roster,
            "from": index,
            "sum": n,
        }
        require(set(header) == set(expected) | {"bytes"} | KEYS_OF[kind], "header-fields", kind)
        found = {name: header[name] for name in expected}
        require(header_line(found) == header_line(expected), "message-place", path(kind, index, n))
        require(type(header["bytes"]) is int and header["bytes"] == len(payload), "message-length")
        text = b"fedpca secure message 1\n" + sha256(body)
        require(verifies(self.study.public[index], signature, text), "message-signature")
        require(kind in ("shares", "masked") or not payload, "payload", kind)
        return header, payload

    def hkdf(self, key, info):
        return HKDF(SHA256(), 32, salt=self.id, info=info).derive(key)


def time_of(text):
    """A time with its distance from UTC, or None."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return None if found.tzinfo is None else found


def is_hex(text, length):
    return isinstance(text, str) and len(text) == 2 * length and set(text) <= set("0123456789abcdef")


def is_count(value):
    return type(value) is int and 0 <= value < 2**53


def listed(entries, width, size):
    """{index: hashes} of a list that is in ascending order."""
    require(
        isinstance(entries, list)
        and all(isinstance(entry, list) and len(entry) == width + 1 for entry in entries)
        and all(is_count(entry[0]) and entry[0] < size for entry in entries)
        and all(is_hex(item, 32) for entry in entries for item in entry[1:]),
        "list-entries",
    )
    indices = [entry[0] for entry in entries]
    require(indices == sorted(set(indices)), "list-order")
    return {entry[0]: tuple(entry[1:]) for entry in entries}


# --- primitives ---


@functools.cache
def verifies(public, signature, text):
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except InvalidSignature:
        return False
    return True


@functools.cache
def x25519(private, public):
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:
        raise Refused("keys-x25519") from error


def public_of(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def keystream(key, n_words):
    raw = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * n_words))
    return list(struct.unpack(f"<{n_words}Q", raw))


def shares_of(of, what, threshold, receivers):
    """Values of the polynomial of a seed or key, 33 bytes each."""
    label = b"fedpca secure coefficients\n" + of["coefficients"] + what.encode()
    drawn = hashlib.shake_256(label).digest(48 * (threshold - 1))
    coefficients = [drawn[at : at + 48] for at in range(0, len(drawn), 48)]
    terms = [int.from_bytes(item, "big") for item in (of[what], *coefficients)]
    values = [sum(term * pow(j + 1, power, PRIME) for power, term in enumerate(terms)) for j in receivers]
    return [(value % PRIME).to_bytes(33, "big") for value in values]


def secret_of(shares):
    """From {index: share}: 32 bytes, or None."""
    total = 0
    for i, share in shares.items():
        factor = 1
        for j in shares:
            if j != i:
                factor = factor * (j + 1) * pow(j - i, -1, PRIME) % PRIME
        total += int.from_bytes(share, "big") * factor
    total %= PRIME
    return total.to_bytes(32, "big") if total < 2**256 else None


def committed(share):
    return sha256(b"fedpca secure share\n", share)


def chain(first, steps):
    for _ in range(steps):
        first = sha256(b"fedpca secure surplus\n", first)
    return first


# --- noise ---


def levels(a, least, colluding):
    found = [a]
    while found[-1] > least:
        after = colluding - (-10 * (found[-1] - colluding) // 11)
        found.append(min(found[-1] - 1, max(least, after)))
    return found


def deviations(of_levels, colluding, sd, shift):
    rates = [1 / (v - colluding) for v in of_levels]
    fractions = [rates[0], *(now - before for before, now in itertools.pairwise(rates))]
    return [sd * math.sqrt(fraction) * 2.0**shift for fraction in fractions]


def shift_of(of_levels, colluding, sd):
    smallest = min(deviations(of_levels, colluding, sd, 0))
    return 0 if sd == 0 else next((k for k in range(40) if smallest * 2.0**k >= 2.0**10), 40)


def shake(key, *numbers):
    """Words of SHAKE128, one by one."""
    packed, taken = key + b"".join(item.to_bytes(8, "little") for item in numbers), 0
    while True:
        taken += 1
        yield int.from_bytes(hashlib.shake_128(packed).digest(8 * taken)[-8:], "little")


def rounded_gaussians(key, label, count, sd):
    """The entries of one part of one block."""
    stream = hashlib.shake_128(key + label.to_bytes(8, "little")).digest(8 * count)
    words = struct.unpack(f"<{count}Q", stream)
    return [_entry(word, shake(key, label, 2**63, e), Decimal(sd)) for e, word in enumerate(words)]


def _entry(word, more, sd):
    sign, tail, bits = -1 if word >> 63 else 1, word % 2**63, 64
    guess = max(tail, 0.5) / 2.0**64
    size = max(0, round(-float(sd) * statistics.NormalDist().inv_cdf(min(guess, 0.5))))
    while True:
        with localcontext() as context:
            context.prec = 40 + bits // 2
            least, most = Decimal(tail) / 2**bits, Decimal(tail + 1) / 2**bits
            while most <= upper_tail((size + Decimal("0.5")) / sd):
                size += 1
            while size and least >= upper_tail((size - Decimal("0.5")) / sd):
                size -= 1
            beyond, within = upper_tail((size + Decimal("0.5")) / sd), Decimal("0.5")
            if size:
                within = upper_tail((size - Decimal("0.5")) / sd)
            if beyond <= least and most <= within:
                return sign * size
        tail, bits = (tail << 64) + next(more), bits + 64


def upper_tail(z):
    """P(Z > z) for z >= 0: 1/2 - density(z) (z + z³/3 + z⁵/15 + ...)."""
    pi = Decimal(
        "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
    )
    term = total = z
    divisor = 1
    while term > Decimal(10) ** -80 * total:
        divisor += 2
        term = term * z * z / divisor
        total += term
    return Decimal("0.5") - (-z * z / 2).exp() / (2 * pi).sqrt() * total


def parts_of(blocks, of_levels, colluding, first, which):
    """The sum of the parts `which` of an owner, whose element h_(which[0]) is `first`, over all words."""
    words = []
    for label, (length, sd, shift) in enumerate(blocks):
        total = [0] * length
        if sd > 0:
            of_parts = deviations(of_levels, colluding, sd, shift)
            for k in which:
                key = sha256(b"fedpca secure noise\n", chain(first, k - which[0]))
                drawn = rounded_gaussians(key, label, length, of_parts[k])
                total = [one + other for one, other in zip(total, drawn, strict=True)]
        words += total
    return words


# --- an owner ---


@dataclass(frozen=True)
class Secrets:
    """`sums`: per sum a dict of 32 bytes each: step key, seed, h_0 ("chain") and "coefficients"."""

    enc: bytes
    sums: tuple


@dataclass(frozen=True)
class Owner:
    session: Session
    index: int
    key: Ed25519PrivateKey
    rows: int
    secrets: Secrets

    def _sign(self, kind, n=None, payload=b"", **header):
        return self.session.sign(self.key, kind, self.index, n, payload, **header)

    def keys(self):
        study = self.session.study
        sums = [
            {
                "key": public_of(of["key"]).hex(),
                "seed": sha256(b"fedpca secure seed\n", of["seed"]).hex(),
                "surplus": chain(of["chain"], study.size - study.least + 1).hex(),
            }
            for of in self.secrets.sums
        ]
        return self._sign("keys", rows=self.rows, enc=public_of(self.secrets.enc).hex(), sums=sums)

    def shares(self, board):
        keyring = read_keyring(self.session, board)
        require(keyring.get(self.index) == (sha256(self.keys()).hex(),), "keyring-own")
        receivers, commitments, plain = list(keyring), b"", dict.fromkeys(keyring, b"")
        for of in self.secrets.sums:
            for what in ("seed", "key"):
                dealt = shares_of(of, what, self.session.study.threshold, receivers)
                commitments += b"".join(map(committed, dealt))
                for j, share in zip(receivers, dealt, strict=True):
                    plain[j] += share
        sealed = {
            str(j): ChaCha20Poly1305(self._seal_key(board, j, self.index, j))
            .encrypt(bytes(12), plain[j], None)
            .hex()
            for j in receivers
            if j != self.index
        }
        return self._sign(
            "shares", payload=commitments, keyring=sha256(board["keyring"]).hex(), sealed=sealed
        )

    def _seal_key(self, board, other, dealer, receiver):
        enc = bytes.fromhex(read_keys(self.session, board, other)["enc"])
        info = b"fedpca secure shares\n" + number(dealer) + number(receiver)
        return self.session.hkdf(x25519(self.secrets.enc, enc), info)

    def received(self, board, dealer):
        """All shares from a dealer: per sum, of the seed and of the step key."""
        receivers = list(read_keyring(self.session, board))
        header, payload = read_shares(self.session, board, dealer)
        if dealer == self.index:
            t = self.session.study.threshold
            pairs = [
                tuple(shares_of(of, what, t, [self.index])[0] for what in ("seed", "key"))
                for of in self.secrets.sums
            ]
        else:
            try:
                opener = ChaCha20Poly1305(self._seal_key(board, dealer, dealer, self.index))
                plain = opener.decrypt(bytes(12), bytes.fromhex(header["sealed"][str(self.index)]), None)
            except (InvalidTag, KeyError, ValueError) as error:
                raise Refused("share-sealed", f"from {dealer}") from error
            pairs = [(plain[at : at + 33], plain[at + 33 : at + 66]) for at in range(0, len(plain), 66)]
        for n, pair in enumerate(pairs):
            for what, share in enumerate(pair):
                hashed = commitment(payload, receivers, n, what, self.index)
                require(int.from_bytes(share, "big") < PRIME, "share-prime", f"from {dealer}")
                require(committed(share) == hashed, "share-committed", f"from {dealer}")
        return pairs

    def agreed(self, board):
        members = read_members(self.session, board)
        mine = (sha256(self.keys()).hex(), sha256(self.shares(board)).hex())
        require(members.get(self.index) == mine, "members-own")
        for dealer in members:
            self.received(board, dealer)
        return self._sign("agreed", members=sha256(board["members"]).hex())

    def masked(self, board, n, vector, expected):
        """`expected`: name and [length, sd] of the blocks that follow for this owner."""
        study = self.session.study
        members = read_members(self.session, board)
        require(self.index in members, "masked-member")
        named = sha256(board["members"]).hex()
        agreed = counted(
            self.session, board, "agreed", None, members, lambda header: header["members"] == named
        )
        require(self.index in agreed and len(agreed) >= study.threshold, "agreed-threshold")
        announced = read_announced(self.session, board, n)
        blocks = announced["blocks"]
        require([announced["name"], [block[:2] for block in blocks]] == expected, "announced-next")
        require(f"{n:02}/present" not in board, "masked-late")
        require(self.index in (must_be_in(self.session, board, n) or members), "masked-owners")
        of_levels = levels(len(members), study.least, study.colluding)
        of = self.secrets.sums[n]
        noise = parts_of(blocks, of_levels, study.colluding, of["chain"], range(len(of_levels)))
        shifts = [block[2] for block in blocks for _ in range(block[0])]
        small = all(abs(x) < 2 ** (62 - shift) for x, shift in zip(vector, shifts, strict=True))
        require(small, "masked-integers")
        words = [(x << shift) + z for x, shift, z in zip(vector, shifts, noise, strict=True)]
        for mask in [
            self_mask(self.session, board, n, self.index, of["seed"], len(words)),
            *(
                pair_mask(self.session, board, n, self.index, of["key"], j, len(words))
                for j in members
                if j != self.index
            ),
        ]:
            words = [(one + other) % WORD for one, other in zip(words, mask, strict=True)]
        payload = struct.pack(f"<{len(words)}Q", *words)
        digest = sha256(board[f"{n:02}/announced"]).hex()
        return self._sign("masked", n, payload, announced=digest, rows=self.rows)

    def signed(self, board, n):
        present = self._present(board, n)
        message = board.get(path("masked", self.index, n))
        require(message is not None and present.get(self.index) == (sha256(message).hex(),), "present-own")
        return self._sign("signed", n, present=sha256(board[f"{n:02}/present"]).hex())

    def _present(self, board, n):
        """What every owner checks in `present` before it signs or opens."""
        present = read_present(self.session, board, n)
        if mine := board.get(path("masked", self.index, n)):
            header, _ = self.session.owner("masked", self.index, n, mine)
            require(header["announced"] == sha256(board[f"{n:02}/announced"]).hex(), "present-masked")
        if (same := must_be_in(self.session, board, n)) is not None:
            require(list(present) == same, "present-owners")
        return present

    def opened(self, board, n):
        study = self.session.study
        present, members = self._present(board, n), read_members(self.session, board)
        named = sha256(board[f"{n:02}/present"]).hex()
        signed = counted(self.session, board, "signed", n, members, lambda header: header["present"] == named)
        require(
            len(signed) >= study.threshold and (self.index not in present or self.index in signed),
            "signed-threshold",
        )
        require(self.index in members, "opened-member")
        require(path("refused", self.index, n) not in board, "opened-refused")
        shares = {dealer: self.received(board, dealer)[n] for dealer in members}
        surplus = None
        if self.index in present:
            of_levels = levels(len(members), study.least, study.colluding)
            k = kept(of_levels, len(present))
            surplus = "" if k == len(of_levels) - 1 else chain(self.secrets.sums[n]["chain"], k + 1).hex()
        return self._sign(
            "opened",
            n,
            present=named,
            seeds={str(j): shares[j][0].hex() for j in members if j in present},
            keys={str(j): shares[j][1].hex() for j in members if j not in present},
            surplus=surplus,
        )

    def refused(self, board, n):
        require(path("opened", self.index, n) not in board, "refused-opened")
        return self._sign("refused", n)


def kept(of_levels, u):
    return next(k for k, v in enumerate(of_levels) if v <= u)


def self_mask(session, board, n, index, seed, n_words):
    info = b"fedpca secure self\n" + sha256(board[f"{n:02}/announced"]) + number(index)
    return keystream(session.hkdf(seed, info), n_words)


def pair_mask(session, board, n, i, private, j, n_words):
    """What owner i adds for j, with the private step key of either."""
    public = {other: bytes.fromhex(read_keys(session, board, other)["sums"][n]["key"]) for other in (i, j)}
    theirs = j if public_of(private) == public[i] else i
    info = (
        b"fedpca secure pair\n" + sha256(board[f"{n:02}/announced"]) + number(min(i, j)) + number(max(i, j))
    )
    mask = keystream(session.hkdf(x25519(private, public[theirs]), info), n_words)
    return mask if i < j else [-word for word in mask]


# --- reading a board ---


def counted(session, board, kind, n, indices, accept):
    """Those of the indices whose message counts and is accepted."""
    found = []
    for index in indices:
        try:
            header, _ = session.owner(kind, index, n, board.get(path(kind, index, n), b""))
        except Refused:
            continue
        if accept(header):
            found.append(index)
    return found


def read_keys(session, board, index):
    study = session.study
    header, _ = session.owner("keys", index, None, board.get(path("keys", index), b""))
    sums = header["sums"]
    require(
        is_hex(header["enc"], 32)
        and isinstance(sums, list)
        and all(isinstance(of, dict) and set(of) == {"key", "seed", "surplus"} for of in sums)
        and all(is_hex(value, 32) for of in sums for value in of.values()),
        "keys-values",
    )
    require(len(sums) == study.n_sums, "keys-sums")
    require(type(header["rows"]) is int and 1 <= header["rows"] <= 2**48, "keys-rows")
    require(study.rows[index] is None or header["rows"] <= study.rows[index], "keys-declared")
    for value in (header["enc"], *(of["key"] for of in sums)):
        x25519(bytes(32), bytes.fromhex(value))
    return header


def read_keyring(session, board):
    header, _ = session.coordinator("keyring", board["keyring"])
    found = listed(header["keys"], 1, session.study.size)
    require(len(found) >= session.study.least, "keyring-least")
    for index, (digest,) in found.items():
        read_keys(session, board, index)
        require(sha256(board[path("keys", index)]).hex() == digest, "keyring-hash", f"of {index}")
    return found


def read_shares(session, board, index):
    receivers = list(read_keyring(session, board))
    header, payload = session.owner("shares", index, None, board.get(path("shares", index), b""))
    require(header["keyring"] == sha256(board["keyring"]).hex(), "shares-keyring")
    others = {str(j) for j in receivers if j != index}
    require(isinstance(header["sealed"], dict) and set(header["sealed"]) == others, "shares-receivers")
    length = 66 * session.study.n_sums + 16
    require(all(is_hex(text, length) for text in header["sealed"].values()), "shares-length")
    require(len(payload) == 64 * session.study.n_sums * len(receivers), "shares-commitments")
    return header, payload


def commitment(payload, receivers, n, what, receiver):
    at = 32 * (len(receivers) * (2 * n + what) + receivers.index(receiver))
    return payload[at : at + 32]


def read_members(session, board):
    header, _ = session.coordinator("members", board["members"])
    found, keyring = listed(header["members"], 2, session.study.size), read_keyring(session, board)
    require(len(found) >= session.study.least, "members-least")
    for index, (of_keys, of_shares) in found.items():
        require(keyring.get(index) == (of_keys,), "members-keyring", f"{index}")
        read_shares(session, board, index)
        require(sha256(board[path("shares", index)]).hex() == of_shares, "members-hash", f"of {index}")
    return found


def read_announced(session, board, n):
    study = session.study
    header, _ = session.coordinator("announced", board[f"{n:02}/announced"])
    require(n < study.n_sums, "announced-number")
    if n:
        read_total(session, board, n - 1)
    before = board["members" if n == 0 else f"{n - 1:02}/total"]
    require(header["before"] == sha256(before).hex(), "announced-before")
    require(isinstance(header["name"], str) and is_blocks(header["blocks"]), "announced-form")
    of_levels = levels(len(read_members(session, board)), study.least, study.colluding)
    for _, sd, shift in header["blocks"]:
        require(shift == shift_of(of_levels, study.colluding, sd), "announced-shift")
        if sd:
            of_parts = deviations(of_levels, study.colluding, sd, shift)
            require(min(of_parts) >= 4 and max(of_parts) < 2.0**48, "announced-parts")
    return header


def is_blocks(blocks):
    return (
        isinstance(blocks, list)
        and 1 <= len(blocks) <= 256
        and all(isinstance(block, list) and len(block) == 3 for block in blocks)
        and all(is_count(length) and length > 0 for length, _, _ in blocks)
        and sum(length for length, _, _ in blocks) <= 2**28
        and all(type(sd) is float and 0 <= sd < math.inf for _, sd, _ in blocks)
        and all(type(shift) is int and 0 <= shift <= 40 for _, _, shift in blocks)
    )


def read_masked(session, board, n, index):
    header, payload = session.owner("masked", index, n, board.get(path("masked", index, n), b""))
    blocks = read_announced(session, board, n)["blocks"]
    require(header["announced"] == sha256(board[f"{n:02}/announced"]).hex(), "masked-announced")
    rows = read_keys(session, board, index)["rows"]
    require(type(header["rows"]) is int and header["rows"] == rows, "masked-rows")
    require(len(payload) == 8 * sum(block[0] for block in blocks), "masked-length")
    return payload


def read_present(session, board, n):
    header, _ = session.coordinator("present", board[f"{n:02}/present"])
    found, members = listed(header["present"], 1, session.study.size), read_members(session, board)
    require(header["announced"] == sha256(board[f"{n:02}/announced"]).hex(), "present-announced")
    require(len(found) >= session.study.least, "present-least")
    require(set(found) <= set(members), "present-members")
    return found


def read_opened(session, board, n, sender):
    """Shares by dealer, and the surplus, of a message that counts."""
    study, present, members = session.study, read_present(session, board, n), read_members(session, board)
    receivers = list(read_keyring(session, board))
    header, _ = session.owner("opened", sender, n, board[path("opened", sender, n)])
    require(header["present"] == sha256(board[f"{n:02}/present"]).hex(), "opened-present")
    require(
        isinstance(header["seeds"], dict)
        and isinstance(header["keys"], dict)
        and set(header["seeds"]) == {str(j) for j in present}
        and set(header["keys"]) == {str(j) for j in members if j not in present},
        "opened-indices",
    )
    shares = {}
    for dealer in members:
        what = 0 if dealer in present else 1
        text = header["keys" if what else "seeds"][str(dealer)]
        hashed = commitment(read_shares(session, board, dealer)[1], receivers, n, what, sender)
        is_share = is_hex(text, 33) and int(text, 16) < PRIME
        require(is_share and committed(bytes.fromhex(text)) == hashed, "opened-share", f"of {dealer}")
        shares[dealer] = bytes.fromhex(text)
    of_levels = levels(len(members), study.least, study.colluding)
    k, text = kept(of_levels, len(present)), header["surplus"]
    if sender not in present:
        require(text is None, "opened-surplus")
    elif k == len(of_levels) - 1:
        require(text == "", "opened-surplus")
    else:
        anchor = read_keys(session, board, sender)["sums"][n]["surplus"]
        steps = study.size - study.least - k
        there = is_hex(text, 32) and chain(bytes.fromhex(text), steps).hex() == anchor
        require(there, "opened-surplus")
    return shares, bytes.fromhex(text or "")


def must_be_in(session, board, n):
    """Who must be in a sum without noise: those of the latest before; None if it is open."""
    exact = [any(sd == 0 for _, sd, _ in read_announced(session, board, i)["blocks"]) for i in range(n + 1)]
    before = [i for i in range(n) if exact[i]]
    return list(read_present(session, board, before[-1])) if exact[n] and before else None


def read_total(session, board, n):
    header, payload = session.coordinator("total", board[f"{n:02}/total"])
    present, members = read_present(session, board, n), read_members(session, board)
    blocks = read_announced(session, board, n)["blocks"]
    require(header["present"] == sha256(board[f"{n:02}/present"]).hex(), "total-present")
    require(len(payload) == 8 * sum(block[0] for block in blocks), "total-length")
    opened = header["opened"]
    numbers = isinstance(opened, list) and all(is_count(index) for index in opened)
    require(numbers and opened == sorted(set(opened)) and set(opened) <= set(present), "total-opened")
    rows = sum(read_keys(session, board, index)["rows"] for index in present)
    require(type(header["rows"]) is int and header["rows"] == rows, "total-rows")
    noise = noise_of(session.study, len(members), len(present), len(opened))
    require(type(header["noise"]) is float and header["noise"] == noise, "total-noise")
    return header, struct.unpack(f"<{len(payload) // 8}q", payload)


def noise_of(study, a, u, n_opened):
    of_levels = levels(a, study.least, study.colluding)
    needed = of_levels[kept(of_levels, u)]
    return n_opened / (needed - study.colluding) + (u - n_opened) / (study.least - study.colluding)


# --- the coordinator ---


def session_message(study, nonce, opened):
    return header_line(
        {
            "format": "fedpca secure session 1",
            "study": study.study,
            "roster": study.roster,
            "nonce": nonce.hex(),
            "opened": opened,
        }
    )


def coordinator_message(session, payload=b"", **header):
    return header_line({"session": session.id.hex(), **header}) + payload


def keyring(session, board):
    """`keyring` of all keys that count, and what does not: {board name: reason}."""
    found, problems = _collected(session, board, "keys", None, lambda i: read_keys(session, board, i))
    entries = [[index, sha256(board[path("keys", index)]).hex()] for index in found]
    require(len(entries) >= session.study.least, "keyring-least")
    return coordinator_message(session, keys=entries), problems


def members(session, board):
    """`members` of all keys and shares that count."""
    of_keys = read_keyring(session, board)
    found, problems = _collected(session, board, "shares", None, lambda i: read_shares(session, board, i))
    entries = [[i, *of_keys[i], sha256(board[path("shares", i)]).hex()] for i in found if i in of_keys]
    require(len(entries) >= session.study.least, "members-least")
    return coordinator_message(session, members=entries), problems


def present(session, board, n):
    """`SS/present` of all words that count."""
    wanted = (same := must_be_in(session, board, n)) or read_members(session, board)
    found, problems = _collected(session, board, "masked", n, lambda i: read_masked(session, board, n, i))
    entries = [[i, sha256(board[path("masked", i, n)]).hex()] for i in found if i in wanted]
    require(len(entries) >= session.study.least, "present-least")
    require(same is None or len(entries) == len(same), "present-owners")
    named = sha256(board[f"{n:02}/announced"]).hex()
    return coordinator_message(session, announced=named, present=entries), problems


def _collected(session, board, kind, n, read):
    found, problems = [], {}
    for index in range(session.study.size):
        if (name := path(kind, index, n)) in board:
            try:
                read(index)
                found.append(index)
            except Refused as error:
                problems[name] = error.rule
    return found, problems


def total(session, board, n):
    """`SS/total`, and who sent what does not count."""
    study, problems = session.study, {}
    members, present = read_members(session, board), read_present(session, board, n)
    blocks = read_announced(session, board, n)["blocks"]
    n_words = sum(block[0] for block in blocks)
    named = sha256(board[f"{n:02}/present"]).hex()
    words = [0] * n_words
    for index, (digest,) in present.items():
        require(sha256(board[path("masked", index, n)]).hex() == digest, "present-hash", f"of {index}")
        payload = read_masked(session, board, n, index)
        words = [
            one + other for one, other in zip(words, struct.unpack(f"<{n_words}Q", payload), strict=True)
        ]

    shares, surplus = {dealer: {} for dealer in members}, {}
    of_levels = levels(len(members), study.least, study.colluding)
    k, m = kept(of_levels, len(present)), len(of_levels) - 1
    for sender in members:
        name = path("opened", sender, n)
        if name not in board:
            continue
        try:
            shares_there, surplus_there = read_opened(session, board, n, sender)
        except Refused as error:
            problems[name] = error.rule
            continue
        for dealer, share in shares_there.items():
            shares[dealer][sender] = share
        if surplus_there:
            surplus[sender] = surplus_there

    off = []
    for dealer in members:
        if len(shares[dealer]) < study.threshold:
            raise Refused("opened-threshold", problems=problems)
        secret = secret_of(dict(list(shares[dealer].items())[: study.threshold]))
        published = read_keys(session, board, dealer)["sums"][n]
        if dealer in present:
            true = secret is not None and sha256(b"fedpca secure seed\n", secret).hex() == published["seed"]
            require(true, "dealt-seed", f"by {dealer}")
            off.append(self_mask(session, board, n, dealer, secret, n_words))
        else:
            true = secret is not None and public_of(secret).hex() == published["key"]
            require(true, "dealt-key", f"by {dealer}")
            off += [pair_mask(session, board, n, i, secret, dealer, n_words) for i in present]
    for first in surplus.values():
        off.append(parts_of(blocks, of_levels, study.colluding, first, range(k + 1, m + 1)))
    for mask in off:
        words = [one - other for one, other in zip(words, mask, strict=True)]
    values = [(word + WORD // 2) % WORD - WORD // 2 for word in words]
    return coordinator_message(
        session,
        struct.pack(f"<{n_words}q", *values),
        present=named,
        opened=list(surplus),
        rows=sum(read_keys(session, board, index)["rows"] for index in present),
        noise=noise_of(study, len(members), len(present), len(surplus)),
    ), problems
