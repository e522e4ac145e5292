"""The one exit: guard, debit, draw, complete. Its mutants are caught, and there is no second one."""

import ast
import re
import types
from pathlib import Path

import numpy as np
import pytest

import fedpca
from fedpca import BudgetExceeded, Ledger
from fedpca.privacy import exit
from fedpca.privacy.noise import ExactNoise
from fedpca.privacy.sums import NoiseBlock, Sum

PACKAGE = Path(fedpca.__file__).parent
KEY = bytes(range(32))
LONG = 2**16 + 3  # more than one piece
SUM = Sum("step", (NoiseBlock(LONG, 1e6, 1.0), NoiseBlock(5, 2e6, 1.0)), 0.1)


class Events(list):
    """What happened, in order, while an exit of a module was used."""

    def __init__(self, module, monkeypatch):
        self.fails = False
        weighted = ExactNoise.weighted

        def drawing(noise, labels, weights, count, sd):
            if "draw" not in self:
                self.append("draw")
            self.drawn += [(noise.key, label, sd) for label in labels]
            if self.fails:
                raise KeyboardInterrupt
            return weighted(noise, labels, weights, count, sd)

        self.drawn = []
        self.ledger = ledger = Ledger(epsilon=1.0, delta=1e-5)
        for name in ("debit", "complete"):
            monkeypatch.setattr(ledger, name, self.noting(name, getattr(ledger, name)))
        monkeypatch.setattr(ExactNoise, "weighted", drawing)
        self.exit = module.Exit(ledger, "zero-out", KEY)

    def noting(self, name, method):
        def noted(*args, **settings):
            self.append(name)
            return method(*args, **settings)

        return noted

    def let_out(self, announced=SUM, records=(3, 20)):
        exact = np.zeros(announced.length)
        return self.exit.let_out(announced, exact, records, lambda noisy, entry: noisy)


def check_order(module, monkeypatch):
    events = Events(module, monkeypatch)
    noisy = events.let_out()
    assert events == ["debit", "draw", "complete"]
    [entry] = events.ledger.entries
    assert (entry.start, entry.stop, entry.mechanism, entry.mu) == (3, 20, "step", 0.1)
    assert (entry.adjacency, entry.completed) == ("zero-out", True)
    first, rest = np.split(noisy, [LONG])
    assert first.std() == pytest.approx(1e6, rel=0.05)
    assert np.abs(rest).max() > 0
    assert {sd for _, _, sd in events.drawn} == {1e6, 2e6}


def check_nothing_unpaid(module, monkeypatch):
    events = Events(module, monkeypatch)
    with pytest.raises(BudgetExceeded):
        events.let_out(Sum("step", SUM.blocks, 99.0))
    assert events == ["debit"]
    assert not events.drawn
    events.let_out()  # everything is as before


def check_interrupted(module, monkeypatch):
    events = Events(module, monkeypatch)
    events.fails = True
    with pytest.raises(KeyboardInterrupt):
        events.let_out()
    events.fails, n_drawn = False, len(events.drawn)
    with pytest.raises(RuntimeError, match="interrupted"):
        events.let_out(Sum("step", SUM.blocks, 0.1, number=1))
    assert len(events.drawn) == n_drawn
    assert not events.ledger.entries[0].completed


def check_once(module, monkeypatch):
    events = Events(module, monkeypatch)
    events.let_out()
    n_drawn = len(events.drawn)
    with pytest.raises(RuntimeError, match="drawn once"):
        events.let_out()
    assert len(events.drawn) == n_drawn
    for purpose in ("step", "release", "evaluation"):
        events.let_out(Sum("step", SUM.blocks, 0.1, purpose=purpose, number=1))
    drawn = [(key, label) for key, label, _ in events.drawn]
    assert len(drawn) == len(set(drawn))  # no two pieces, blocks, sums or purposes have noise in common
    events.exit.forget("release")
    with pytest.raises(RuntimeError, match="drawn once"):
        events.let_out(Sum("step", SUM.blocks, 0.1, purpose="release", number=2))


def check_guard(module, monkeypatch):
    events = Events(module, monkeypatch)
    monkeypatch.setattr(events.exit.guard, "_process", ("another", 1))
    with pytest.raises(RuntimeError, match="fork"):
        events.let_out()
    assert events == []


def check_bound(module, monkeypatch):
    ledger, noisy = Ledger(epsilon=1.0, delta=1e-5), []
    for rows in (b"these rows", b"others"):
        bound = module.Exit(ledger, "zero-out", KEY, bound_to=lambda rows=rows: rows)
        noisy.append(bound.let_out(SUM, np.zeros(SUM.length), (0, 9), lambda noisy, entry: noisy))
    assert abs(np.corrcoef(*noisy)[0, 1]) < 0.1


CHECKS = [check_order, check_nothing_unpaid, check_interrupted, check_once, check_guard, check_bound]
DEBIT = "        entry = debit if isinstance(debit, Entry) else _debited(ledger, debit)\n"
DRAW = """        with guard.whole(f"the noise of {entry.mechanism!r}"):
            left = noised(exact, entry)
"""
COMPLETE = """        if completes:
            _complete(ledger, entry)
"""
MUTANTS = {
    "draw before debit": (DEBIT + DRAW, "        left = noised(exact, None)\n" + DEBIT),
    "complete before draw": (DRAW + COMPLETE, COMPLETE + DRAW),
    "never completed": (COMPLETE, ""),
    "no guard": ("with guard.exclusive():", "if True:"),
    "goes on after an interruption": ("        guard.check_intact(during)\n", ""),
    "no whole": ('with guard.whole(f"the noise of {entry.mechanism!r}"):', "if True:"),
    "other records": ("Debit(*records,", "Debit(records[1], None,"),
    "a debit of nothing": ("announced.name, announced.mu,", "announced.name, 0.0,"),
    "another adjacency": ("announced.mu, self._adjacency", 'announced.mu, "replace-one"'),
    "no debit": (DEBIT, '        entry = Entry("x", 0, 1, "step", 0.1, "", "zero-out")\n'),
    "drawn twice": (" or label in self._drawn", ""),
    "one key for all purposes": ("_derived(key, purpose.encode())", '_derived(key, b"")'),
    "pieces alike": ("(each, index, piece)", "(each, index, 0)"),
    "blocks alike": ("(each, index, piece)", "(each, 0, piece)"),
    "sums alike": ("(each, index, piece)", "(0, index, piece)"),
    "no noise": ("+= drawn", "+= 0 * drawn"),
    "half the noise": ("block.sd)", "block.sd / 2)"),
    "not bound to rows": ("_derived(key, self._bound_to())", "key"),
    "forgets no key": ("self._keys.pop(purpose, None)", "pass"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_exit_keeps_its_promises(check, monkeypatch):
    check(exit, monkeypatch)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_the_exit_are_caught(mutant):
    right, wrong = MUTANTS[mutant]
    source = Path(exit.__file__).read_text()
    assert source.count(right) == 1
    module = types.ModuleType("mutant")
    exec(compile(source.replace(right, wrong), mutant, "exec"), vars(module))

    def survives(check):
        with pytest.MonkeyPatch.context() as patch:
            try:
                check(module, patch)
            except (Exception, KeyboardInterrupt, pytest.fail.Exception):
                return False
        return True

    assert not all(map(survives, CHECKS))


# --- no second exit ---


def files_that(*, name="", call=""):
    """Files of the package that import a name, or call a function or method of a name."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}
            function = node.func if isinstance(node, ast.Call) else None
            called = getattr(function, "attr", getattr(function, "id", None)) == (call or "-")
            if imported or called:
                found.add(path.relative_to(PACKAGE).as_posix())
    return found


def test_noise_is_drawn_at_the_exit_and_in_shares_and_nowhere_else():
    """The paper's algorithms are given noise, pay nothing and certify nothing."""
    assert files_that(call="ExactNoise") == {"privacy/exit.py", "secure/noise_shares.py"}
    private = {path for path in files_that(call="weighted") if path.startswith(("privacy/", "secure/"))}
    assert private == {"privacy/noise.py", "privacy/exit.py"}
    of_shares = {path for path in files_that(call="noise") if path.startswith("secure/")}
    assert of_shares == {
        "secure/owner.py",
        "secure/coordinator.py",
    }  # who takes surplus off, from what is opened
    for name in ("Exit", "Ledger", "Certificate", "make_certificate"):
        assert not any(path.startswith("paper/") for path in files_that(name=name, call=name))


def test_debits_are_made_at_the_exit_and_nowhere_else():
    assert files_that(call="debit") == {"privacy/exit.py"}
    assert files_that(call="leave") == {"privacy/exit.py", "secure/owner.py"}
    assert files_that(name="leave") == {"secure/owner.py"}


def code_lines(path):
    """Without blank lines, comments and docstrings."""
    text = path.read_text()
    docs = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs |= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(number not in docs and bool(line.split("#")[0].strip()) for number, line in lines)


def test_an_auditor_reads_few_lines():
    """What the proofs say must be read is all of it that draws noise, pays for it or has a sensitivity."""
    page = (PACKAGE.parents[1] / "docs/explanation/privacy-proofs.md").read_text(encoding="utf-8")
    table = page.split("## What to read")[1].split("## One exit")[0]
    files = re.findall(r"`([a-z_/]+\.py)`", table)
    named = {PACKAGE / "privacy" / name for name in files}
    assert len(named) == 9
    assert sum(map(code_lines, named)) <= 900
    drawing = {PACKAGE / path for path in files_that(call="ExactNoise") if path.startswith("privacy/")}
    assert drawing <= named
