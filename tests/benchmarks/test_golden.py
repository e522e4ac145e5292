"""Golden results: a change of what is computed is noticed, and named; rounding and signs are not."""

import json

import numpy as np
import pytest

import fedpca
from benchmarks import golden
from benchmarks.golden_groups import private, rows_of, summary_values


def of_rows(rows):
    return lambda: {
        "few": lambda: summary_values(fedpca.Subspace.from_rows(rows, 4)),
        "fact": lambda: ["a", 1],
    }


def one(summary):
    return lambda: {"one": lambda: summary_values(summary)}


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Records or compares a group; the exit status, and what is printed."""

    def run(action, group):
        monkeypatch.setattr(golden.golden_groups, "GROUPS", {"small": group})
        status = golden.main([action, str(tmp_path)])
        return status, capsys.readouterr().out

    return run


@pytest.fixture
def recorded(run, tmp_path):
    """The file of a group, recorded."""
    assert run("record", of_rows(rows_of(50)))[0] == 0
    return tmp_path / "small.json"


def test_unchanged_results_are_the_same_and_rounding_and_signs_are_no_change(run, recorded):
    assert run("compare", of_rows(rows_of(50)))[0] == 0
    turned = rows_of(50) @ np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
    assert run("record", of_rows(turned))[0] == 0
    assert run("compare", of_rows(turned * (1 + 2.0**-50)))[0] == 0
    assert run("compare", of_rows(turned[::-1]))[0] == 0
    found = fedpca.Subspace.from_rows(turned, 4)
    opposite = fedpca.Subspace(-found.components, found.singular_values, found.mean, found.count, found.total)
    results = [golden.computed(one(part)) for part in (found, opposite)]
    assert golden.compared(*results) == []


@pytest.mark.parametrize("name", ["mean", "scatter", "total", "singular values", "directions"])
def test_a_perturbed_record_is_noticed_and_named_with_its_size(name, run, recorded):
    results = json.loads(recorded.read_text())
    values = results["few"][name]["values"]
    largest = max(range(len(values)), key=lambda i: abs(values[i]))
    values[largest] *= 1 + 1e-11
    recorded.write_text(json.dumps(results))
    status, printed = run("compare", of_rows(rows_of(50)))
    assert status == 1
    assert f"small: few: {name} differs by 1.0e-11 of its size" in printed


def test_another_fact_type_or_shape_is_noticed(run, recorded):
    for change in ({"kind": "Moments"}, {"dtype": "float32"}, {"names": ["a"]}, {"one more": 1.0}):
        results = json.loads(recorded.read_text())
        results["few"] |= change
        before = recorded.read_text()
        recorded.write_text(json.dumps(results))
        status, printed = run("compare", of_rows(rows_of(50)))
        assert status == 1
        assert f"small: few: {next(iter(change))} was " in printed
        recorded.write_text(before)
    assert run("compare", of_rows(rows_of(50, 11)))[0] == 1
    assert run("compare", of_rows(rows_of(50).astype("float32")))[0] == 1


def test_what_cannot_run_or_is_missing_is_named(run, recorded):
    def renamed():
        return {"few": lambda: fedpca.NoSuchName, "new": lambda: 1}

    status, printed = run("compare", renamed)
    assert status == 1
    assert "small: few: cannot run here: AttributeError" in printed
    assert "small: new: only here" in printed
    assert "small: fact: only recorded" in printed
    status, printed = run("compare", lambda: fedpca.NoSuchName)
    assert status == 1
    assert "small: all cases: cannot run here" in printed
    assert run("record", renamed)[0] == 1


def test_private_noise_is_the_same_every_time_and_not_in_another_case():
    def of(name):
        return golden.computed(lambda: {name: private()["public bound"]})[name]

    assert of("one") == of("one")
    assert golden.differences(of("one"), of("two"))
