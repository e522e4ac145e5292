"""The alarms in a report: counts, causes and means over time, against a computation of all rows at once."""

import numpy as np
import pytest

from fedpca import PCADetector
from fedpca.readers import Batch
from fedpca.report import write_report
from fedpca.report.alarms import AlarmLog, alarms_section

NAMES = tuple(f"tag<{i}>" for i in range(6))


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 2)) @ np.random.default_rng(9).normal(size=(2, 6))
    return hidden + 0.3 * rng.normal(size=(n, 6))


def faulty(n):
    found = rows(n, 1)
    found[n // 2 :, 4] += 5
    return found


@pytest.fixture(scope="module")
def detector():
    return PCADetector(0.9).fit(Batch(rows(1000), NAMES))


@pytest.mark.parametrize(("n", "cuts"), [(1, []), (90, [1, 2, 50]), (3000, [7, 1100, 2999])])
def test_the_log_is_that_of_all_rows_at_once(n, cuts, detector):
    log, table = AlarmLog(detector), faulty(n)
    for part in np.split(table, cuts):
        log.see(Batch(part, NAMES))
    found = detector.contributions(Batch(table, NAMES))
    scores = found.score.sum(axis=1)
    above = scores > detector.limit_
    assert (log.n_rows, log.n_alarms) == (n, above.sum())
    np.testing.assert_allclose(log.reductions, found.reduction[above].sum(axis=0))
    means, edges = log.means()
    assert edges[0] == 0
    assert edges[-1] == n
    assert len(means) <= 128
    for mean, start, stop in zip(means, edges, edges[1:], strict=False):
        np.testing.assert_allclose(mean, found.score[start:stop].mean(axis=0))
    worst = sorted(-number - 1 for _, number, *_ in log.worst)
    expected = np.argsort(-np.where(above, scores, -1), kind="stable")[: min(50, above.sum())]
    assert worst == sorted(expected.tolist())


def test_a_page_names_the_cause_and_its_five_largest_contributions(detector, tmp_path):
    log = AlarmLog(detector)
    log.see(Batch(faulty(200), NAMES))
    section = alarms_section(log, NAMES)
    assert "tag<4> explains the alarms best" in section.paragraphs[1]
    chart, alarms = section.items
    assert chart.numbers.lines[0][0] == "tag<4>"
    assert sum(line[2] == "tag<4>" for line in alarms.lines) > 0.9 * len(alarms.lines)
    assert all(line[3].count("%") == 5 for line in alarms.lines)
    page = write_report(tmp_path / "r.html", detector, rows=faulty(200)).read_text()
    assert "tag&lt;4&gt; explains the alarms best" in page
    assert "Contributions over time" in page
    assert "tag<4>" not in page.split("<script")[0]


def test_a_page_without_alarms_or_limits_has_none(detector, tmp_path):
    log = AlarmLog(detector)
    log.see(Batch(np.tile(rows(1000).mean(axis=0), (20, 1)), NAMES))
    section = alarms_section(log, NAMES)
    assert section.paragraphs[0].startswith("0 of 20 rows (0%)")
    assert len(section.items) == 1
    merged = PCADetector(0.9).merge(detector)
    page = write_report(tmp_path / "r.html", merged, rows=rows(50)).read_text()
    assert "Contributions over time" not in page
