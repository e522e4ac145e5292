"""The history of figures: a line per record, and a number that got worse is named."""

import csv

import pytest

from benchmarks import history
from benchmarks.history import Number


def numbers(seconds=2.0, share=0.9):
    return {
        "time": Number("seconds", 0.25, lambda: seconds),
        "share": Number("found", 0.1, lambda: share, share=True),
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "history.csv"
    history.record(path, numbers())
    return path


def test_each_record_is_a_line_and_earlier_ones_stay(path):
    history.record(path, numbers(3.0) | {"new": Number("", 0.1, lambda: 1.0)})
    lines = history.recorded(path)
    assert [line["time"] for line in lines] == ["2", "3"]
    assert [line["new"] for line in lines] == ["", "1"]
    assert history.compare(path, numbers(3.0)) == 0  # with the last


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (numbers(), 0),
        (numbers(2.4, 0.895), 0),  # within both tolerances
        (numbers(0.1, 1.0), 0),  # better
        (numbers(2.6), 1),
        (numbers(share=0.88), 1),  # a fifth more is missing
        (numbers() | {"new": Number("", 0.1, lambda: 1.0)}, 0),
    ],
)
def test_what_is_worse_than_its_tolerance_is_named(path, capsys, found, status):
    assert history.compare(path, found) == status
    assert ("WORSE" in capsys.readouterr().out) == bool(status)


def test_the_committed_history_has_all_numbers():
    with history.HISTORY.open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert all(float(last[name]) > 0 for name in history.NUMBERS)


def test_the_cheap_numbers_are_what_they_say():
    assert 0.5 < history.outliers_found() < 1
    assert 500 < history.package_size() < 20_000
    assert history.traced_peak(lambda: bytearray(10**6)) == pytest.approx(10**6, rel=0.01)
    assert 1 < history.times_as_long(lambda: sum(range(20_000)), lambda: sum(range(2000))) < 100
