"""The ledger never under-counts: not in arithmetic, not after a crash, not with several writers."""

import cProfile
import json
import os
import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from fractions import Fraction
from math import nextafter, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca import BudgetExceeded, Ledger, Privacy, PrivatePCA, SigningKey
from fedpca.privacy.accounting import Entry, is_affordable, total_mu
from fedpca.privacy.calibration import epsilon_of, mu_of

MU = mu_of(1.0, 1e-5)


@st.composite
def entry_lists(draw):
    entries = []
    for index in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, 30))
        stop = draw(st.one_of(st.none(), st.integers(start, 40)))
        entries.append(Entry(str(index), start, stop, "gram", draw(st.floats(0, 2)), "", "replace-one"))
    return entries


@given(entry_lists())
def test_the_total_is_the_most_expensive_record_counted_one_by_one(entries):
    per_record = [
        sqrt(sum(e.mu**2 for e in entries if e.start <= record and (e.stop is None or record < e.stop)))
        for record in range(60)
    ]
    assert total_mu(entries) == pytest.approx(max(per_record))


@given(entry_lists())
def test_what_is_affordable_is_decided_to_the_last_bit(entries):
    """Compared with the sum of squares of each record, as rational numbers; the total is rounded up."""
    squares = [
        sum(Fraction(e.mu) ** 2 for e in entries if e.start <= record and (e.stop is None or record < e.stop))
        for record in range(60)
    ]
    most, total = max(squares), total_mu(entries)
    assert Fraction(total) ** 2 >= most
    assert not most or Fraction(nextafter(total, 0.0)) ** 2 < most
    assert is_affordable(entries, total)
    assert not most or not is_affordable(entries, nextafter(total, 0.0))


def test_costs_are_added_up_in_linear_time():
    """Ten times the debits, no more than some thirty times the steps."""

    def steps(n_entries):
        entries = [Entry(str(i), 3 * i, 3 * i + 5, "gram", 0.1, "", "replace-one") for i in range(n_entries)]
        profile = cProfile.Profile()
        profile.runcall(total_mu, entries)
        return sum(entry.callcount for entry in profile.getstats())

    assert steps(3000) < 30 * steps(300)


def test_disjoint_records_pay_once_and_shared_ones_for_each():
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    ledger.debit(0, 10, "gram", MU)
    ledger.debit(10, 20, "gram", MU)
    assert ledger.mu == pytest.approx(MU)
    assert ledger.spent() == pytest.approx(1.0)
    with pytest.raises(BudgetExceeded):
        ledger.debit(19, 30, "gram", 0.01)
    ledger.debit(20, None, "gram", MU)  # all that follow
    with pytest.raises(BudgetExceeded):
        ledger.debit(10_000, 10_001, "gram", 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("releases", [1, 3, 6])
@pytest.mark.parametrize("center", ["private", "pairs", None])
@pytest.mark.parametrize("scale", [None, "std"])
def test_no_record_of_a_fit_pays_more_than_its_first(scale, center, releases):
    """Who is number 900 in one fit and 5 in another has paid no more than the ledger says of number 0."""
    rows = np.random.default_rng(0).normal(size=(releases, 2000, 3))
    for bound in ("private", "sphere", 3.0):
        privacy = Privacy(8.0, 1e-6, bound=bound, center=center, releases=releases)
        pca = PrivatePCA(1, scale=scale, **privacy.settings)
        for batch in rows:
            pca.partial_fit(batch).release()
        entries = pca.ledger_.entries
        of_first = sum(entry.mu**2 for entry in entries if entry.start == 0)
        assert pca.ledger_.mu == pytest.approx(sqrt(of_first))
        assert sqrt(0.95) * privacy.mu * (1 - 1e-6) < pca.ledger_.mu <= privacy.mu


def test_a_refusal_says_what_is_left_and_spends_nothing():
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    ledger.debit(0, 10, "gram", mu_of(0.6, 1e-5))
    before = ledger.entries
    with pytest.raises(BudgetExceeded, match=r"budget is epsilon=1, of which epsilon=0\.7") as refusal:
        ledger.debit(0, 10, "gram", MU)
    assert "Nothing was released" in str(refusal.value)
    assert ledger.entries == before
    left = ledger.left()
    ledger.debit(0, 10, "gram", mu_of(left, 1e-5))  # what is said to be left can be spent
    assert ledger.spent() == pytest.approx(1.0)
    assert ledger.left() == pytest.approx(0.0, abs=1e-3)


def test_epsilon_can_be_asked_at_another_delta():
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    ledger.debit(0, 10, "gram", MU)
    assert ledger.spent(1e-8) == pytest.approx(epsilon_of(MU, 1e-8))


@pytest.mark.parametrize(("first", "second"), [("replace-one", "zero-out"), ("zero-out", "replace-one")])
def test_a_ledger_has_the_adjacency_of_its_first_debit(tmp_path, first, second):
    """A zero-out release costs sqrt(2) times its mu, or twice, where records are replaced."""
    path, rows = tmp_path / "ledger", np.random.default_rng(0).normal(size=(300, 4))
    Ledger(path, epsilon=1.0, delta=1e-5)
    for center in (None, "private"):
        privacy = Privacy(0.5, 1e-5, 3.0, adjacency=first, ledger=path, center=center, evaluate=False)
        PrivatePCA(1, **privacy.settings).fit(rows)
        before = path.read_bytes()
        for reopened in (path, Ledger(path)):
            other = Privacy(0.5, 1e-5, 3.0, adjacency=second, ledger=reopened, center=center, evaluate=False)
            with pytest.raises(ValueError, match=f"adjacency of its first, '{first}'"):
                PrivatePCA(1, **other.settings).fit(rows)
        assert path.read_bytes() == before
    assert {entry.adjacency for entry in Ledger(path).entries} == {first}
    assert json.loads(path.read_text().splitlines()[1])["adjacency"] == first
    in_memory = Ledger(epsilon=1.0, delta=1e-5)
    in_memory.debit(0, 5, "gram", 0.1, adjacency=first)
    with pytest.raises(ValueError, match="adjacency"):
        in_memory.debit(5, 9, "gram", 0.1, adjacency=second)
    with pytest.raises(ValueError, match="adjacency"):
        in_memory.check(5, 9, 0.1, adjacency=second)


@pytest.mark.parametrize("spoiled", ["", "add-one"])
def test_a_debit_without_a_known_adjacency_is_not_read(tmp_path, spoiled):
    path = tmp_path / "ledger"
    Ledger(path, epsilon=1.0, delta=1e-5).debit(0, 5, "gram", 0.1)
    stated = ', "adjacency": "replace-one"'
    text = path.read_text()
    assert stated in text
    path.write_text(text.replace(stated, f', "adjacency": "{spoiled}"' if spoiled else ""))
    with pytest.raises(ValueError, match="damaged"):
        Ledger(path)


def test_where_there_are_no_hard_links_a_ledger_is_created_once(tmp_path, monkeypatch):
    """Made over one that has debits, it would forget them."""

    def no_links(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    replaced = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (time.sleep(0.02), replaced(*paths)))

    def open_and_spend(_):
        try:
            return Ledger(tmp_path / "ledger", epsilon=1.0, delta=1e-5).debit(0, 5, "gram", MU / 3).release
        except BudgetExceeded:
            return None

    with ThreadPoolExecutor(12) as pool:
        debited = {release for release in pool.map(open_and_spend, range(12)) if release}
    assert len(debited) == 9  # as many as the budget pays for
    assert {entry.release for entry in Ledger(tmp_path / "ledger").entries} == debited


def test_a_file_remembers_over_processes(tmp_path):
    path = tmp_path / "ledger"
    first = Ledger(path, epsilon=2.0, delta=1e-6)
    entry = first.debit(0, 7, "gram", 0.1)
    again = Ledger(path)
    assert (again.epsilon, again.delta) == (2.0, 1e-6)
    assert again.entries == [entry]
    first.complete(entry)
    assert again.entries[0].completed
    assert "1 releases" in repr(again)


def test_budget_of_a_file_cannot_be_changed_by_opening_it(tmp_path):
    Ledger(tmp_path / "ledger", epsilon=1.0, delta=1e-5)
    Ledger(tmp_path / "ledger", epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="was made for epsilon=1"):
        Ledger(tmp_path / "ledger", epsilon=9.0, delta=1e-5)


def test_a_new_ledger_needs_a_budget_and_a_folder(tmp_path):
    with pytest.raises(ValueError, match="needs a budget"):
        Ledger(tmp_path / "ledger")
    with pytest.raises(ValueError, match="in memory needs a budget"):
        Ledger()
    with pytest.raises(FileNotFoundError, match="no folder"):
        Ledger(tmp_path / "nowhere" / "ledger", epsilon=1.0, delta=1e-5)


def test_a_torn_last_line_was_never_acted_upon_and_is_written_over(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger(path, epsilon=1.0, delta=1e-5)
    entry = ledger.debit(0, 5, "gram", 0.1)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "debit", "release": "x", "sta')
    assert Ledger(path).entries == [entry]
    second = Ledger(path).debit(0, 5, "gram", 0.1)
    assert Ledger(path).entries == [entry, second]


def test_a_last_debit_that_lost_its_newline_counts(tmp_path):
    path = tmp_path / "ledger"
    entry = Ledger(path, epsilon=1.0, delta=1e-5).debit(0, 5, "gram", MU)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert Ledger(path).entries == [entry]
    with pytest.raises(BudgetExceeded):
        Ledger(path).debit(0, 5, "gram", MU)
    Ledger(path).complete(entry)
    assert [e.completed for e in Ledger(path).entries] == [True]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"precious bytes " * 100,
        b'{"format": "fedpca led',
        b"\n",
        b"hello\n",
        b"\xa4" * 2000 + b"\n",
        b'{"format": "other"}\n',
        b'{"format": "' + b"other" * 500 + b'"}\n',
        b"[1]\n",
        b'{"format": "fedpca ledger 1"}\n',
        b'{"format": "fedpca ledger 1", "id": "a", "epsilon": NaN, "delta": 1e-5}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda text: repr(text[:60]),
)
def test_a_file_that_is_no_ledger_is_refused_and_kept(tmp_path, text):
    """An emptied ledger, above all, must not become a new one with its budget whole."""
    path = tmp_path / "ledger"
    path.write_bytes(text)
    for open_it in (lambda: Ledger(path), lambda: Ledger(path, epsilon=1.0, delta=1e-5)):
        with pytest.raises(ValueError, match="not a ledger, or is damaged") as refused:
            open_it()
        assert len(str(refused.value)) < 400 + len(str(path))
    with pytest.raises(ValueError, match="damaged"):
        PrivatePCA(1, epsilon=1.0, delta=1e-5, bound=1.0, ledger=path, center=None, evaluate=False).fit(
            np.eye(3)
        )
    assert path.read_bytes() == text


def test_a_ledger_deleted_under_way_is_missed_and_not_made_anew(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger(path, epsilon=1.0, delta=1e-5)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        ledger.debit(0, 5, "gram", 0.1)
    assert not path.exists()


@pytest.mark.parametrize(
    "spoiled", [('"mu": 0.1', '"mu": NaN'), ('"stop": 5', '"stop": "5"'), ('"mu": 0.1', '"mu": -1')]
)
def test_numbers_that_cannot_be_are_not_read(tmp_path, spoiled):
    path = tmp_path / "ledger"
    Ledger(path, epsilon=1.0, delta=1e-5).debit(0, 5, "gram", 0.1)
    text = path.read_text()
    assert spoiled[0] in text
    path.write_text(text.replace(*spoiled))
    with pytest.raises(ValueError, match="damaged"):
        Ledger(path)


def test_a_ledger_replaced_while_it_is_waited_for_is_locked_anew(tmp_path):
    """A restore or an editor puts another file in its place: whoever waited must not write to the old one."""
    path = tmp_path / "ledger"
    ledger = Ledger(path, epsilon=1.0, delta=1e-5)
    with ThreadPoolExecutor(1) as pool:
        with ledger._locked():
            waiting = pool.submit(ledger.debit, 0, 5, "gram", 0.1)
            time.sleep(0.2)
            (tmp_path / "copy").write_bytes(path.read_bytes())
            os.replace(tmp_path / "copy", path)
        entry = waiting.result(timeout=10)
    assert Ledger(path).entries == [entry]


SPENDING = """
import os, sys
from fedpca import BudgetExceeded, Ledger
ledger, made = Ledger(sys.argv[1]), 0
print("ready", flush=True)
while not os.path.exists(sys.argv[3]):
    pass
for _ in range(12):
    try:
        ledger.debit(0, 5, "gram", float(sys.argv[2]))
    except BudgetExceeded:
        break
    made += 1
print(made)
"""


def _share(mu, n):
    """As `Ledger` describes it: divided, and rounded down."""
    return mu / sqrt(n) * (1 - 1e-15)


@given(st.floats(0.01, 100.0), st.floats(1e-12, 0.1), st.integers(2, 400))
def test_a_budget_divided_and_rounded_down_can_be_spent_to_the_last_share(epsilon, delta, n):
    mu = mu_of(epsilon, delta)
    entries = [Entry(str(i), 0, None, "gram", _share(mu, n), "", "replace-one") for i in range(n)]
    assert is_affordable(entries, mu)
    assert not is_affordable([*entries, entries[0]], mu)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["symlink", "link"])
def test_a_ledger_is_one_under_all_its_names(tmp_path, fork, link):
    path, other = tmp_path / "ledger", tmp_path / "elsewhere" / "ledger"
    other.parent.mkdir()
    Ledger(path, epsilon=1.0, delta=1e-5)
    getattr(os, link)(path, other)
    for trial in range(3):
        before, go = len(Ledger(path).entries), tmp_path / f"go {trial}"
        programs = [fork(SPENDING, name, _share(MU, 30), go) for name in (path, other)]
        for program in programs:
            assert program.stdout.readline() == "ready\n"
        go.touch()
        made = sum(int(program.wait()[1]) for program in programs)
        assert len(Ledger(other).entries) == before + made
        go.unlink()
    assert len(Ledger(path).entries) == 30  # as many as the budget pays for
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "ledger"]
    assert os.listdir(other.parent) == ["ledger"]


def test_a_link_to_nothing_is_a_ledger_that_is_yet_to_be_made(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    entry = Ledger(tmp_path / "link", epsilon=1.0, delta=1e-5).debit(0, 5, "gram", 0.1)
    assert Ledger(tmp_path / "ledger").entries == [entry]
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_ledger_is_a_file_and_nothing_else_is_waited_for(tmp_path, kind):
    path = tmp_path / "ledger"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="must be a file, and is a folder, a pipe or a device"):
        Ledger(path)


def test_where_locks_do_nothing_a_debit_counts_only_if_nobody_wrote_beside_it(tmp_path, monkeypatch):
    """Some network drives pretend to lock. Each of two had room for the debit, and both together have not."""
    path = tmp_path / "ledger"
    ledger, other = Ledger(path, epsilon=1.0, delta=1e-5), Ledger(path)
    monkeypatch.setattr("fedpca._util.locks._lock", lambda *_args, **_settings: None)
    checked = Ledger._check
    synced = os.fsync

    def before(self, entry, entries):
        checked(self, entry, entries)
        if self is ledger:
            other.debit(0, 5, "gram", MU / 2)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_check", before)
        with pytest.raises(OSError, match=r"somebody else wrote.*check-folder"):
            ledger.debit(0, 5, "gram", MU)
    assert ledger.mu == MU / 2

    def after(descriptor):
        with path.open("ab") as file:
            file.write(b'{"event": "completed", "release": "x"}\n')
        synced(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", after)
        with pytest.raises(OSError, match=r"somebody else wrote.*check-folder"):
            ledger.debit(0, 5, "gram", MU / 4)


def test_a_process_killed_before_it_read_its_debit_again_has_paid(tmp_path, fork):
    path = tmp_path / "ledger"
    Ledger(path, epsilon=1.0, delta=1e-5)
    program = """
import os, signal, sys
from fedpca import Ledger
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
Ledger(sys.argv[1]).debit(0, 5, "gram", float(sys.argv[2]))
"""
    assert fork(program, path, MU / 2).wait()[0] == -signal.SIGKILL
    assert [entry.completed for entry in Ledger(path).entries] == [False]
    with pytest.raises(BudgetExceeded, match="never completed, and counted"):
        Ledger(path).debit(0, 5, "gram", MU)
    Ledger(path).debit(0, 5, "gram", MU / 2)


FORKED = """
import os, sys
import numpy as np
from fedpca import Ledger, Privacy, PrivatePCA
ledger = Ledger(sys.argv[1] if sys.argv[1:] else None, epsilon=1.0, delta=1e-5)
privacy = Privacy(1.0, 1e-5, bound=3.0, center=None, evaluate=False, ledger=ledger)
rows = np.random.default_rng(0).normal(size=(500, 3))
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
try:
    PrivatePCA(1, **privacy.settings).fit(rows)
    print("released", flush=True)
except (RuntimeError, ValueError) as error:
    print(type(error).__name__, error, flush=True)
if not pid:
    os._exit(0)
"""


def test_a_fork_cannot_spend_from_its_copy_of_a_ledger_in_memory(tmp_path, fork):
    child, parent = fork(FORKED).wait()[1].splitlines()
    assert child.startswith("RuntimeError this process is a fork, and has a copy of a ledger in memory")
    assert parent == "released"
    child, parent = fork(FORKED, tmp_path / "ledger").wait()[1].splitlines()
    assert child == "released"
    assert parent.startswith("BudgetExceeded")


FORKED_IN_C = """
import ctypes, os
import numpy as np
from fedpca import Ledger, Privacy, PrivatePCA
ledger = Ledger(epsilon=1.0, delta=1e-5)
stream = PrivatePCA(1, epsilon=1.0, delta=1e-5, bound=3.0, center=None)
stream.partial_fit(np.random.default_rng(0).normal(size=(500, 3)))
pid = ctypes.PyDLL(None).fork()
if pid:
    os.waitpid(pid, 0)
for spend in (lambda: ledger.debit(0, 5, "gram", 0.1), stream.release):
    try:
        spend()
        print("spent", flush=True)
    except RuntimeError as error:
        print(str(error)[:25], flush=True)
if not pid:
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_of_which_python_knows_nothing_spends_nothing(fork):
    refused = "this process is a fork, a", "this process is a fork; c"
    assert fork(FORKED_IN_C).wait()[1].splitlines() == [*refused, "spent", "spent"]


FORKING = """
import os, signal, sys, threading
from fedpca import Ledger
signal.alarm(60)  # where a lock is kept, nothing here ends
ledger, children, over = Ledger(sys.argv[1]), os.pipe(), threading.Event()

def spend():
    while not over.is_set():
        ledger.debit(0, 5, "gram", 0.0, release="again")

spending = threading.Thread(target=spend)
spending.start()
for _ in range(100):
    if os.fork() == 0:
        os.close(children[1])
        os.read(children[0], 1)  # lives as long as its parent
        os._exit(0)
over.set()
spending.join()
print(len(ledger.entries), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_no_lock_is_kept_by_whoever_was_forked_while_it_was_held(tmp_path, fork):
    Ledger(tmp_path / "ledger", epsilon=1.0, delta=1e-5)
    code, printed = fork(FORKING, tmp_path / "ledger").wait()[:2]
    assert (code, printed) == (0, "1\n")


def test_a_debit_counts_only_in_the_file_that_is_the_ledger(tmp_path, monkeypatch):
    """A restore or a sync may put another one in its place, also while a debit is written."""
    path = tmp_path / "ledger"
    ledger = Ledger(path, epsilon=1.0, delta=1e-5)
    synced = os.fsync

    def replaced(descriptor):
        synced(descriptor)
        (tmp_path / "copy").write_bytes(before)
        os.replace(tmp_path / "copy", path)

    for _ in range(2):
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", replaced)
            with pytest.raises(OSError, match="was replaced while a debit was written"):
                ledger.debit(0, 5, "gram", MU / 2)
        assert ledger.entries == Ledger(path).entries == []
    monkeypatch.setattr(os, "fsync", lambda descriptor: path.unlink())
    with pytest.raises(OSError, match="was replaced while a debit was written"):
        ledger.debit(0, 5, "gram", MU / 2)


def test_a_relative_path_is_the_same_ledger_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    privacy = Privacy(1.0, 1e-5, 1.0, ledger="ledger", center=None, evaluate=False)
    privacy.open_ledger().debit(0, 5, "gram", 0.1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(privacy.open_ledger().entries) == 1


@pytest.mark.parametrize("position", ["first", "middle"])
def test_damage_inside_is_refused(tmp_path, position):
    path = tmp_path / "ledger"
    ledger = Ledger(path, epsilon=1.0, delta=1e-5)
    for _ in range(3):
        ledger.debit(0, 5, "gram", 0.01)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[0 if position == "first" else 2] = b'{"event": "de\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match="damaged"):
        Ledger(path).debit(0, 5, "gram", 0.01)


def test_many_writers_never_spend_more_than_there_is(tmp_path):
    path = tmp_path / "ledger"
    Ledger(path, epsilon=1.0, delta=1e-5)

    def spend(_):
        try:
            Ledger(path).debit(0, 5, "gram", MU / 3)  # nine fit
        except BudgetExceeded:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(spend, range(40))) == 9
    assert Ledger(path).mu == pytest.approx(MU)


def test_threads_that_share_a_ledger_in_memory_never_spend_more_than_there_is():
    ledger = Ledger(epsilon=1.0, delta=1e-5)

    def spend(_):
        try:
            ledger.complete(ledger.debit(0, 5, "gram", MU / 3))  # nine fit
        except BudgetExceeded:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(spend, range(40))) == 9
    assert len(ledger.entries) == 9


def test_a_copy_is_the_same_account(tmp_path):
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    deepcopy(ledger).debit(0, 5, "gram", MU / 2)
    copy(ledger).debit(0, 5, "gram", MU / 2)
    assert ledger.mu == pytest.approx(MU / sqrt(2))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(ledger)
    filed = Ledger(tmp_path / "ledger", epsilon=1.0, delta=1e-5)
    pickle.loads(pickle.dumps(filed)).debit(0, 5, "gram", MU)
    assert filed.mu == MU


@pytest.mark.parametrize(
    ("start", "stop", "mu"), [(0, 5, float("nan")), (0, 5, -1.0), (5, 4, 0.1), (-1, 4, 0.1)]
)
def test_debits_that_cannot_be_are_refused(start, stop, mu):
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="a debit needs"):
        ledger.debit(start, stop, "gram", mu)
    assert ledger.entries == []


@pytest.mark.parametrize(
    ("epsilon", "delta", "error"),
    [
        (float("nan"), 1e-5, ValueError),
        (-1.0, 1e-5, ValueError),
        (float("inf"), 1e-5, ValueError),
        (1.0, 2.0, ValueError),
        (1.0, 0, ValueError),
        ("1", 1e-5, TypeError),
        (1.0, None, TypeError),
    ],
)
def test_budgets_that_cannot_be_are_refused(epsilon, delta, error):
    with pytest.raises(error, match="must"):
        Ledger(epsilon=epsilon, delta=delta)


# --- crashes: a real process, really killed ---

CLIENT = """
import os, signal, sys
import numpy as np
from fedpca import Privacy, PrivatePCA
from fedpca.privacy import noise

ledger, when = sys.argv[1], sys.argv[2]
if when == "before the noise":
    noise.ExactNoise.weighted = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
if when == "at the evaluation":
    weighted = noise.ExactNoise.weighted
    def killed(self, labels, weights, count, sd):
        if count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return weighted(self, labels, weights, count, sd)
    noise.ExactNoise.weighted = killed
if when == "after the noise":
    from fedpca.privacy.ledger import Ledger
    Ledger.complete = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
settings = {"bound": 1.0, "center": None, "evaluate": False} | {extra}
privacy = Privacy(epsilon=1.0, delta=1e-4, ledger=ledger, **settings)
rows = np.random.default_rng(0).normal(size=(600, 4)) * [9, 1, 1, 1]
pca = PrivatePCA(1, **privacy.settings).fit(rows)
print("released")
"""


@pytest.fixture
def run_client(fork):
    """Runs a client that releases once: its exit status, output and errors."""

    def run(ledger, when, extra="{}"):
        return fork(CLIENT.replace("{extra}", extra), ledger, when).wait()

    return run


@pytest.mark.parametrize("when", ["before the noise", "after the noise"])
def test_a_killed_process_leaves_a_debit_that_counts(run_client, tmp_path, when):
    path = tmp_path / "ledger"
    status, printed, _ = run_client(path, when)
    assert status == -signal.SIGKILL
    assert "released" not in printed
    ledger = Ledger(path)
    assert ledger.spent() == pytest.approx(1.0)
    assert [entry.completed for entry in ledger.entries] == [False]
    status, printed, errors = run_client(path, "never")  # it cannot be spent a second time
    assert status == 1
    assert "BudgetExceeded" in errors
    assert "never completed, and counted" in errors
    assert "released" not in printed


@pytest.mark.parametrize("when", ["before the noise", "after the noise"])
def test_a_private_step_is_debited_before_its_noise_too(run_client, tmp_path, when):
    path = tmp_path / "ledger"
    assert run_client(path, when, "{'center': 'private'}")[0] == -signal.SIGKILL
    ledger = Ledger(path)
    assert [(entry.mechanism, entry.completed) for entry in ledger.entries] == [("lengths and spread", False)]
    assert 0 < ledger.spent() < 1


def test_an_evaluation_is_debited_before_its_noise_too(run_client, tmp_path):
    path = tmp_path / "ledger"
    status, _, errors = run_client(path, "at the evaluation", "{'bound': 9.0, 'evaluate': True}")
    assert status == -signal.SIGKILL, errors
    ledger = Ledger(path)
    assert [(entry.mechanism, entry.completed) for entry in ledger.entries] == [
        ("gram", True),
        ("evaluation", False),
    ]
    assert ledger.spent() == pytest.approx(1.0)


def test_a_refused_fit_fixes_no_budget(tmp_path):
    path, rows = tmp_path / "ledger", np.random.default_rng(0).normal(size=(300, 3))
    few = PrivatePCA(2, scale="std", epsilon=1.0, delta=1e-5, ledger=path)
    with pytest.raises(ValueError, match=r"needs about .* rows .* nothing was spent"):
        few.fit(rows)
    with pytest.raises(ValueError, match="two rows or more"):
        PrivatePCA(2, epsilon=1.0, delta=1e-5, ledger=path).fit(rows[:1])
    assert os.listdir(tmp_path) == []
    PrivatePCA(2, scale="std", epsilon=8.0, delta=1e-5, ledger=path).fit(rows)
    assert (Ledger(path).epsilon, Ledger(path).spent()) == (8.0, pytest.approx(8.0))


def test_a_planned_ledger_goes_by_the_file_of_another(tmp_path):
    path = tmp_path / "ledger"
    ledgers = [Privacy(epsilon, 1e-5, ledger=path).open_ledger() for epsilon in (1.0, 8.0)]
    copied = pickle.loads(pickle.dumps(ledgers[0]))
    assert [ledger.spent() for ledger in ledgers] == [0.0, 0.0]
    assert not path.exists()
    ledgers[0].debit(0, 10, "gram", MU)
    with pytest.raises(BudgetExceeded, match="budget is epsilon=1, of which epsilon=0 is left"):
        ledgers[1].debit(0, 10, "gram", MU)
    assert ledgers[0].id == ledgers[1].id == Ledger(path).id
    assert ledgers[1].epsilon == 1.0
    assert copied.spent() == pytest.approx(1.0)
    path.unlink()
    with pytest.raises(FileNotFoundError):  # what was begun is not begun again
        ledgers[1].debit(20, 30, "gram", MU)
    with pytest.raises(FileNotFoundError, match="no folder"):
        Privacy(1.0, 1e-5, ledger=tmp_path / "none" / "ledger").open_ledger()


RELEASING = """
import sys
import numpy as np
from fedpca import Ledger, Privacy, PrivatePCA

ledger, reported = Ledger(sys.argv[1], epsilon=1000.0, delta=1e-4), open(sys.argv[2], "a")
rows = np.random.default_rng(0).normal(size=(60, 4))
while True:
    privacy = Privacy(0.1, 1e-4, 1.0, ledger=ledger, center=None, evaluate=False)
    pca = PrivatePCA(2, **privacy.settings).fit(rows)
    reported.write(pca.subspace_.certificate.release + "\\n")
    reported.flush()
    print("released", flush=True)
"""


@pytest.mark.slow
@pytest.mark.long
def test_killed_at_any_moment_the_ledger_counts_at_least_what_came_out(fork, tmp_path):
    """A client that releases again and again is killed at random; every release it reported has its debit."""
    path, reported = tmp_path / "ledger", tmp_path / "reported"
    rng = np.random.default_rng(0)
    for _ in range(20):
        process = fork(RELEASING, path, reported)
        assert process.stdout.readline() == "released\n"  # however long it took to start
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        assert process.wait()[0] == -signal.SIGKILL
    debited = [entry.release for entry in Ledger(path).entries]
    released = reported.read_text().split("\n")[:-1]
    assert len(released) > 19
    assert set(released) <= set(debited)
    assert Ledger(path).mu == pytest.approx(mu_of(0.1, 1e-4) * sqrt(len(debited)))


def test_an_estimator_spends_from_the_file_and_refits_are_the_same_records(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 4))
    total = Ledger(tmp_path / "ledger", epsilon=3.0, delta=1e-4)
    privacy = Privacy(1.0, 1e-4, 1.0, ledger=tmp_path / "ledger", center=None, evaluate=False)
    fits = int(mu_of(3.0, 1e-4) ** 2 / mu_of(1.0, 1e-4) ** 2)  # mu² adds up, epsilon does not
    assert fits > 3
    for _ in range(fits):
        PrivatePCA(2, **privacy.settings).fit(rows)
    with pytest.raises(BudgetExceeded, match="budget is epsilon=3"):
        PrivatePCA(2, **privacy.settings).fit(rows)
    assert len(total.entries) == fits
    lines = (tmp_path / "ledger").read_text().splitlines()
    assert [json.loads(line).get("event") for line in lines[1:3]] == ["debit", "completed"]


def test_a_refused_fit_leaves_the_estimator_as_it_was(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 4))
    pca = PrivatePCA(
        2, epsilon=1.0, delta=1e-4, bound=1.0, ledger=tmp_path / "ledger", center=None, evaluate=False
    ).fit(rows)
    before = pca.components_.copy()
    with pytest.raises(BudgetExceeded):
        pca.fit(rows)
    np.testing.assert_array_equal(pca.components_, before)


class NotTaken:
    """A proof that a release has none of these records, as others would make it."""

    def __init__(self, release):
        self.release = release

    def to_json(self):
        return {"kind": "test", "release": self.release}


@pytest.fixture(params=["memory", "file", "signed"])
def kept(request, tmp_path):
    """A ledger, and how to open it again."""
    key = SigningKey.new() if request.param == "signed" else None
    path = None if request.param == "memory" else tmp_path / "kept.jsonl"
    ledger = Ledger(path, epsilon=1.0, delta=1e-5, key=key)
    return ledger, lambda: ledger if path is None else Ledger(path, key=key)


def test_a_named_debit_is_made_once(kept):
    ledger, reopened = kept
    first = ledger.debit(0, 10, "sum", 0.05, release="5e55-00")
    for other in (ledger, reopened()):
        assert other.debit(0, 10, "sum", 0.05, release="5e55-00") == first
    ledger.complete(first)
    ledger.complete(first)
    if ledger.path is not None:
        assert len(ledger.path.read_bytes().splitlines()) == 3
    assert [entry.release for entry in reopened().entries] == ["5e55-00"]
    assert ledger.mu == pytest.approx(0.05)
    ledger.debit(0, 10, "sum", 0.05, release="5e55-01")
    assert ledger.mu == pytest.approx(0.05 * 2**0.5)


@pytest.mark.parametrize(
    "change", [{"start": 1}, {"stop": 11}, {"mechanism": "gram"}, {"mu": 0.04}, {"adjacency": "zero-out"}]
)
def test_a_name_stands_for_one_debit(kept, change):
    ledger, _ = kept
    usual = {"start": 0, "stop": 10, "mechanism": "sum", "mu": 0.05, "adjacency": "replace-one"}
    ledger.debit(**usual, release="a")
    with pytest.raises(ValueError, match=f"{next(iter(change))} of the release 'a' was"):
        ledger.debit(**usual | change, release="a")
    assert len(ledger.entries) == 1


def test_a_repeated_debit_needs_no_budget_twice(tmp_path):
    ledger = Ledger.planned(tmp_path / "ledger", 1.0, 1e-5)
    other = Ledger.planned(tmp_path / "ledger", 1.0, 1e-5)
    mu = mu_of(1.0, 1e-5)
    assert ledger.debit(0, 10, "sum", mu, release="a") == other.debit(0, 10, "sum", mu, release="a")
    assert ledger.left() == 0
    with pytest.raises(BudgetExceeded):
        other.debit(0, 10, "sum", mu, release="b")


def test_a_cancelled_debit_is_kept_and_not_counted(kept):
    ledger, reopened = kept
    for name in ("a", "b"):
        ledger.debit(0, 10, "sum", 0.05, release=name)
    cancelled = ledger.cancel("a", NotTaken("a"))
    assert cancelled.cancelled
    assert ledger.cancel("a", NotTaken("a")) == cancelled
    for other in (ledger, reopened()):
        assert [entry.release for entry in other.entries] == ["a", "b"]
        assert [entry.cancelled for entry in other.entries] == [True, False]
        assert json.loads(other.entries[0].proof) == NotTaken("a").to_json()
        assert other.mu == pytest.approx(0.05)
        assert "2 releases, 1 of them cancelled" in repr(other)
    with pytest.raises(ValueError, match="was cancelled, and is not made again"):
        ledger.debit(0, 10, "sum", 0.05, release="a")
    with pytest.raises(ValueError, match="was cancelled, and cannot have come out"):
        ledger.complete(cancelled)
    with pytest.raises(BudgetExceeded, match=r"never completed, and counted: b\."):
        ledger.debit(0, 10, "sum", 10.0)
    ledger.complete(ledger.debit(0, 10, "sum", 0.05, release="c"))  # the chain of a signed one goes on
    assert len(reopened().entries) == 3


def test_what_cannot_be_cancelled(kept):
    ledger, reopened = kept
    ledger.complete(ledger.debit(0, 10, "sum", 0.05, release="a"))
    ledger.debit(0, 10, "sum", 0.05, release="b")
    for name, proof, why in (
        ("a", "a", "came out; its debit cannot be cancelled"),
        ("b", "a", "must be about the release 'b', and is about 'a'"),
        ("c", "c", "no debit of the release 'c'"),
    ):
        with pytest.raises(ValueError, match=why):
            ledger.cancel(name, NotTaken(proof))
    assert not any(entry.cancelled for entry in reopened().entries)


def test_a_damaged_cancellation_is_no_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, epsilon=1.0, delta=1e-5)
    ledger.debit(0, 10, "sum", 0.05, release="a")
    lines = path.read_bytes()
    for line in (
        b'{"event": "cancelled", "release": "b", "proof": "x"}',
        b'{"event": "cancelled", "release": "a"}',
        b'{"event": "forgotten", "release": "a"}',
        lines.splitlines()[1],
    ):
        path.write_bytes(lines + line + b"\n")
        with pytest.raises(ValueError, match="is not a ledger, or is damaged"):
            Ledger(path)
