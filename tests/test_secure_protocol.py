"""Secure sums: totals are the plain sums of those present, bit for bit, whoever drops out when."""

import numpy as np
from secure_sessions import Study, Sum, secure_roster

from fedpca.secure import Record


def test_a_total_is_the_plain_sum_of_all():
    study = Study(secure_roster(5), [Sum("counts", ((7, 0.0),)), Sum("gram", ((3, 0.0), (20_000, 0.0)))])
    assert study.run() == "done"
    totals = Record(study.coordinator.session, study.board).totals
    assert [total.name for total in totals] == ["counts", "gram"]
    for total, x in zip(totals, study.x, strict=True):
        np.testing.assert_array_equal(total.words, sum(x))
        assert total.rows == 10 + 11 + 12 + 13 + 14
