"""A release by a mechanism of fedpca with noise from any source, for experiments: nothing is paid for."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedpca.privacy.mechanisms import Mechanism
from fedpca.privacy.noise import Label
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.summary import Summary
from reproduction.exact import Array


class Source(Protocol):
    """What draws noise."""

    def entries(self, label: Label, count: int, sd: float) -> Array: ...


def noisy_summary(
    mechanism: Mechanism, noise: Source, certificate: Certificate, *, reports: int = 1
) -> Summary:
    """The summary of what a mechanism has taken, with the noise of so many disjoint reports."""
    noisy = mechanism.statistic()
    for report in range(reports):
        drawn = (
            noise.entries((report, number), block.length, block.sd)
            for number, block in enumerate(mechanism.blocks())
        )
        noisy += np.concatenate(list(drawn))
    return mechanism.summary_of(noisy, count=mechanism.count, noise=float(reports), certificate=certificate)
