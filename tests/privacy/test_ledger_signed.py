"""A signed ledger: whatever was changed by hand is found, and only its owner writes to it."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import rows_of

from fedpca import BudgetExceeded, Ledger, Privacy, PrivatePCA, SigningKey
from fedpca.privacy.calibration import mu_of

KEY, OTHER = SigningKey.new(), SigningKey.new()
MU = mu_of(0.1, 1e-5)


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=1.0, delta=1e-5, key=KEY)
    for start in (0, 10, 20):
        ledger.complete(ledger.debit(start, start + 10, "gram", MU))
    return ledger


def test_it_counts_as_any_other(ledger, tmp_path):
    plain = Ledger(tmp_path / "plain.jsonl", epsilon=1.0, delta=1e-5)
    for start in (0, 10, 20):
        plain.complete(plain.debit(start, start + 10, "gram", MU))
    again = Ledger(ledger.path)
    assert (again.mu, again.spent()) == (plain.mu, plain.spent())
    assert len(again.entries) == 3
    assert all(entry.completed for entry in again.entries)
    assert (again.signed_by, plain.signed_by) == ((KEY.public,), ())
    with pytest.raises(BudgetExceeded):
        ledger.debit(0, 10, "gram", mu_of(1.0, 1e-5))
    assert "Ledger(" in repr(again)


def test_nobody_writes_to_it_without_a_key(ledger):
    before = ledger.path.read_bytes()
    opened = Ledger(ledger.path)
    for attempt in (
        lambda: opened.debit(0, 1, "gram", MU),
        lambda: opened.check(0, 1, MU),
        lambda: opened.complete(opened.entries[0]),
    ):
        with pytest.raises(ValueError, match="only a key may write to it"):
            attempt()
    with pytest.raises(ValueError, match="only a key may write to it"):
        PrivatePCA(2, epsilon=0.1, delta=1e-5, bound=3.0, center=None, ledger=ledger.path).fit(rows_of())
    assert ledger.path.read_bytes() == before


def test_a_key_that_replaces_a_lost_one_is_named_after_it(ledger):
    other = Ledger(ledger.path, key=OTHER)
    other.debit(30, 40, "gram", MU)
    assert Ledger(ledger.path).signed_by == (KEY.public, OTHER.public)
    ledger.debit(40, 50, "gram", MU)
    assert Ledger(ledger.path).signed_by == (OTHER.public, KEY.public)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(lines[:-2] + lines[-1:]))
    with pytest.raises(ValueError, match="one was changed or removed"):
        Ledger(ledger.path)


def test_lines_changed_removed_moved_or_inserted_are_found(ledger):
    lines = ledger.path.read_bytes().splitlines()
    assert len(lines) == 7
    stranger = json.dumps(json.loads(lines[2]) | {"release": "x"}).encode()
    spoiled = {
        "cheaper": [*lines[:1], lines[1].replace(b'"stop": 10', b'"stop": 1'), *lines[2:]],
        "another budget": [lines[0].replace(b'"epsilon": 1.0', b'"epsilon": 9.0'), *lines[1:]],
        "removed": [*lines[:3], *lines[5:]],
        "the first removed": [lines[0], *lines[2:]],
        "swapped": [lines[0], lines[3], lines[2], lines[1], *lines[4:]],
        "inserted": [*lines[:3], stranger, *lines[3:]],
        "appended": [*lines, stranger],
        "unsigned": [*lines, b'{"event": "completed", "release": "x"}'],
        "one signature removed": [*lines[:2], lines[2].split(b', "signature"')[0] + b"}", *lines[3:]],
        "of another key": [
            *lines[:6],
            lines[6].replace(KEY.public.text.encode(), OTHER.public.text.encode()),
        ],
    }
    for what, changed in spoiled.items():
        ledger.path.write_bytes(b"\n".join(changed) + b"\n")
        for opened in (
            lambda: Ledger(ledger.path),
            lambda: ledger.entries,
            lambda: ledger.debit(0, 1, "g", MU),
        ):
            with pytest.raises(ValueError, match="restore it from a backup"):
                opened()
        assert ledger.path.read_bytes() == b"\n".join(changed) + b"\n", what
    ledger.path.write_bytes(b"\n".join(lines) + b"\n")
    assert len(ledger.entries) == 3


@pytest.mark.slow
def test_every_changed_byte_is_found(ledger):
    contents = ledger.path.read_bytes()
    end = len(contents) - 1  # but for the last newline, which a ledger does not need
    for position in range(0, end, 3):
        changed = bytearray(contents)
        changed[position] ^= 1
        ledger.path.write_bytes(changed)
        with pytest.raises(ValueError, match="restore it from a backup"):
            Ledger(ledger.path)


def test_a_cut_at_the_end_is_found_against_the_certificate(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path, epsilon=1.0, delta=1e-5, key=KEY)
    privacy = Privacy(0.5, 1e-5, 3.0, center=None, evaluate=False, ledger=Ledger(path, key=KEY))
    certificate = PrivatePCA(2, **privacy.settings).fit(rows_of(0, 900)).release().certificate
    assert certificate.ledger.entries == len(Ledger(path).entries) == 1
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    assert len(Ledger(path).entries) < certificate.ledger.entries


def test_a_ledger_without_signatures_is_signed_from_then_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    old = Ledger(path, epsilon=1.0, delta=1e-5)
    old.complete(old.debit(0, 10, "gram", MU))
    before = path.read_bytes()
    signed = Ledger(path, key=KEY)
    assert signed.signed_by == ()
    signed.debit(10, 20, "gram", MU)
    assert path.read_bytes().startswith(before)
    assert Ledger(path).signed_by == (KEY.public,)
    path.write_bytes(path.read_bytes().replace(b'"stop": 10', b'"stop": 1', 1))  # in an unsigned line
    with pytest.raises(ValueError, match="does not follow those before it"):
        Ledger(path)


def test_signatures_that_were_taken_away_are_counted(ledger):
    """Without any, it is a ledger that was kept without a key: it can be edited, and that must show."""
    assert Ledger(ledger.path).unsigned_lines == 0
    records = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    added = ("key", "previous", "signature")
    plain = [{name: record[name] for name in record if name not in added} for record in records]
    ledger.path.write_text("".join(json.dumps(record) + "\n" for record in plain))
    found = Ledger(ledger.path, key=KEY)
    assert (found.signed_by, found.unsigned_lines) == ((), len(records))
    found.debit(100, 110, "gram", MU)
    assert (found.signed_by, found.unsigned_lines) == ((KEY.public,), len(records))


def test_a_torn_last_line_is_written_over(ledger):
    contents = ledger.path.read_bytes()
    for cut in (20, 150, 300):
        ledger.path.write_bytes(contents[:-cut])
        again = Ledger(ledger.path, key=KEY)
        again.debit(30, 40, "gram", MU)
        assert again.entries[-1].start == 30
        assert Ledger(ledger.path).signed_by == (KEY.public,)
    ledger.path.write_bytes(contents[:-1])  # the newline alone
    Ledger(ledger.path, key=KEY).debit(30, 40, "gram", MU)
    assert len(Ledger(ledger.path).entries) == 4


def test_many_writers_keep_the_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    shared = Ledger(path, epsilon=1.0, delta=1e-5, key=KEY)

    def spend(number):
        opened = shared if number % 2 else Ledger(path, key=KEY)
        opened.complete(opened.debit(number, number + 1, "gram", MU))
        return len(shared.entries)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(spend, range(40)))
    assert len(Ledger(path).entries) == 40


def test_a_planned_ledger_is_signed_from_its_first_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    planned = Ledger.planned(path, 1.0, 1e-5, key=KEY)
    assert planned.signed_by == ()
    planned.debit(0, 10, "gram", MU)
    assert b'"signature"' in path.read_bytes().splitlines()[0]
    assert planned.signed_by == (KEY.public,)


def test_what_a_key_needs(ledger):
    with pytest.raises(ValueError, match="a ledger in memory cannot be signed"):
        Ledger(epsilon=1.0, delta=1e-5, key=KEY)
    with pytest.raises(TypeError, match="keys stay in their files"):
        pickle.dumps(ledger)
