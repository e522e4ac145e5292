"""The library against the second implementation, on boards that somebody who lies has changed at random.

Lies are well signed, and what names them by their hashes names the new ones, so that they are found where
they are told. Shares are sealed again, with commitments of their own: what only their receiver sees is
reached, too.
"""

import copy
import random
from collections import Counter
from functools import partial

import make_secure_vectors
import pytest
import secure_reference as reference
from make_secure_vectors import dealt_again, followed, owners, plus_prime
from secure_scenes import SESSIONS, Scene, load, parts

from fedpca.errors import SecureError

BOARDS = 800  # per seed
ODD = (
    *(None, True, False, 0, 1, -1, 2, 2**53, 10**30, 0.0, -0.0, 1.0, 60.0, 1e300, 1e-320),
    *("", "0", "00", "00" * 32, "00" * 33, "ff" * 33, "AB" * 32, "zz"),
    *([], [0], {}, {"0": "00"}, [[0, "00" * 32]]),
)


def places(value, path=()):
    """Paths to everything within a JSON value."""
    if path:
        yield path
    items = {dict: dict.items, list: enumerate}.get(type(value), lambda _: ())
    for key, item in items(value):
        yield from places(item, (*path, key))


def other_value(rng, header):
    """A header with one thing changed, removed, repeated or added."""
    header = copy.deepcopy(header)
    *path, last = rng.choice(list(places(header)))
    within = header
    for key in path:
        within = within[key]
    value, how = within[last], rng.random()
    if how < 0.5:
        within[last] = rng.choice(ODD)
    elif how < 0.6:
        del within[last]
    elif how < 0.7 and isinstance(within, list):
        within.insert(last, copy.deepcopy(value))
    elif how < 0.8 and isinstance(within, list):
        rng.shuffle(within)
    elif isinstance(value, str) and value:
        place = rng.randrange(len(value))
        within[last] = value[:place] + rng.choice("0123456789abcdefA") + value[place + 1 :]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        within[last] = rng.choice([value + 1, value - 1, float(value), value * 1.0000001])
    else:
        within[last if isinstance(within, list) else "extra"] = rng.choice(ODD)
    return header


def other_payload(rng, payload):
    """Some bytes changed, taken off or added."""
    how, place = rng.random(), rng.randrange(len(payload) or 1)
    if how < 0.6 and payload:
        return make_secure_vectors.flipped(payload, place)
    return payload[: -rng.choice([1, 8, 32])] if how < 0.8 else payload + bytes(rng.choice([1, 8, 32]))


def other_shares(rng, scene, dealer, receiver):
    """A dealer's shares in which one for a receiver is another, with the commitment to it, or without."""
    which, n = rng.randrange(2), rng.randrange(scene.study.n_sums)
    drawn = rng.randrange(reference.PRIME).to_bytes(33, "big")
    lie = rng.choice(
        [
            plus_prime,
            plus_prime,
            lambda _: reference.PRIME.to_bytes(33, "big"),
            lambda _: (reference.PRIME - 1).to_bytes(33, "big"),
            lambda _: b"\xff" * 33,
            lambda _: bytes(33),
            lambda _: drawn,
            lambda share: share,
        ]
    )

    def dealt(*pair):
        return tuple(lie(share) if what == which else share for what, share in enumerate(pair))

    committed = None if rng.random() < 0.8 else (lambda *pair: pair)
    return dealt_again(scene, dealer, receiver, dealt, n=n, committed=committed)


def lie_about(rng, scene, name, index):
    """Another message of this name; None if it came out as it was, or cannot be written."""
    message = scene.board[name]
    kind, sender, _ = parts(name)
    try:
        if kind == "shares" and index is not None and rng.random() < 0.7:
            found = other_shares(rng, scene, sender, index)
        elif sender is None:
            header, payload = reference.split(message)
            if payload and rng.random() < 0.3:
                payload = other_payload(rng, payload)
            else:
                header = other_value(rng, header)
            found = reference.header_line(header) + payload
        else:
            header, payload = reference.split(message[:-64])
            if rng.random() < 0.15:
                found = owners(scene, name, {}, payload=other_payload(rng, payload))
            else:
                body = reference.header_line(other_value(rng, header)) + payload
                text = b"fedpca secure message 1\n" + reference.sha256(body)
                found = body + scene.owners[sender].key.sign(text)
    except (ValueError, OverflowError):
        return None
    return None if found == message else found


def verdict(made):
    """What an implementation sends, None if it refuses."""
    try:
        return made()
    except (reference.Refused, SecureError):
        return None


def boards(rng, scenes):
    """Changed boards, each before the message of a name that somebody would send."""
    names = [
        (scene, name)
        for scene in scenes
        for name in scene.board
        if parts(name)[0] not in ("session", "keys", "announced")
    ]
    made = 0
    while made < BOARDS:
        scene, name = rng.choice(names)
        kind, index, _ = parts(name)
        if kind == "masked" and rng.random() < 0.7:  # takes the reference long
            continue
        known = scene.before(name)
        victims = [
            other for other in known if other != "session" and (index is None or parts(other)[1] != index)
        ]
        if kind == "agreed":
            victims = [other for other in victims if parts(other)[0] == "shares"]
        if not victims or (lie := lie_about(rng, scene, victim := rng.choice(victims), index)) is None:
            continue
        change = {victim: lie} if rng.random() < 0.3 else followed(scene, name, {victim: lie})
        made += 1
        yield scene, name, victim, {**known, **change}


def by_library(reader, name, board):
    """A message, or what the coordinator publishes with the names of what it finds wrong."""
    index = parts(name)[1]
    if index is not None:
        return reader.reply(index, board).get(name)
    found, problems = reader.publish(board)
    named = {problem for problem in problems if parts(problem)[0] != "signed"}  # only the library names them
    return (found[name], named) if name in found else None


def by_reference(reader, name, board):
    made = reader.by_reference(name, board)
    return made if parts(name)[1] is not None else (made[0], set(made[1]))


def is_stricter(reader, name, board):
    """Whether the library is known to refuse a board on which the reference makes this message.

    - An owner of the library takes every step again. If it would not have agreed, say, it masks nothing. The
      reference makes a message from what it names.
    - The coordinator of the library publishes no total without `threshold` signatures, which owners need.
    """
    kind, index, n = parts(name)
    if index is None:
        session = reference.Session.of(reader.study, board["session"])
        named = reference.sha256(board[f"{n:02}/present"]).hex() if kind == "total" else ""
        signed = partial(
            reference.counted, session, board, "signed", n, accept=lambda of: of["present"] == named
        )
        return (
            kind == "total"
            and len(signed(reference.read_present(session, board, n))) < reader.study.threshold
        )
    for earlier in reader.before(name):
        if parts(earlier)[1] == index:
            try:
                reader.by_reference(earlier, board)
            except reference.Refused as refused:
                if refused.rule != "masked-late":  # it was not, then
                    return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_the_library_answers_what_the_reference_answers_and_refuses_what_it_refuses(seed):
    rng, seen = random.Random(seed), Counter()
    readers = {name: Scene(load(name)) for name in SESSIONS}
    for scene, name, victim, board in boards(rng, list(make_secure_vectors.scenes())):
        reader = readers[scene.name]
        ours, theirs = (verdict(partial(made, reader, name, board)) for made in (by_library, by_reference))
        if ours is None and theirs is not None:
            assert is_stricter(reader, name, board), (scene.name, name, victim)
        else:
            assert ours == theirs, (scene.name, name, victim)
        seen["neither" if theirs is None else "stricter" if ours is None else "both"] += 1
        seen[parts(name)[0], parts(victim)[0]] += 1
    assert seen["both"] > BOARDS / 4
    assert seen["neither"] > BOARDS / 4
    assert seen["stricter"] < BOARDS / 20
    assert seen["agreed", "shares"] > BOARDS / 50
