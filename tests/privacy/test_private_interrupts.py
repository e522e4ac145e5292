"""Interrupted at any line, a private stream uses no noise twice, and no row counts twice."""

import numpy as np
import pytest
from helpers import interrupted

from fedpca import BudgetExceeded, Ledger, PrivatePCA
from fedpca.privacy.calibration import epsilon_of

ROWS, MORE, FOR_STEPS = (np.random.default_rng(0).normal(size=(n_rows, 2)) for n_rows in (60, 5, 300))

SETTINGS = [
    {},
    {"releases": 3},
    {"releases": 5},
    {"mechanism": "sketch"},
    {"center": "private"},
    {"center": "private", "mechanism": "sketch"},
    {"center": "pairs"},
    {"center": "pairs", "releases": 3},
    {"bound": "private"},
]


def stream(settings):
    given = {"epsilon": 8.0, "delta": 1e-5, "bound": 3.0, "center": None, "evaluate": False} | settings
    rows = FOR_STEPS if {"private"} & set(given.values()) else ROWS
    return PrivatePCA(1, **given).partial_fit(rows)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.long
def test_a_release_interrupted_at_any_line_draws_its_noise_once(settings, drawn):
    at, kinds = 0, set()
    while True:
        at += 1
        pca = stream(settings)
        drawn.clear()
        if not interrupted(pca.release, at):
            break
        first, n_first = set(drawn), len(drawn)
        try:
            if settings.get("releases", 1) > 1:
                pca.partial_fit(MORE)
            released = pca.release()
        except RuntimeError as refusal:  # BudgetExceeded is one
            kinds.add("interrupted" if "interrupted" in str(refusal) else type(refusal).__name__)
            continue
        # The first report was made before the interruption, or it is made now with noise that was not drawn.
        second = set(drawn[n_first:])
        if released.certificate.report == 1 and second:
            kinds.add("made now")
            assert not first & second
        assert released.count <= pca.n_samples_seen_
        certificate = released.certificate
        assert certificate.ledger.spent >= epsilon_of(certificate.mu, 1e-5) * (1 - 1e-9)
    assert at > 40
    assert {"interrupted", "made now"} <= kinds <= {"interrupted", "made now", "BudgetExceeded"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"center": "private"}, {"center": "pairs"}],
    ids=str,
)
def test_a_batch_interrupted_at_any_line_never_counts_twice(settings):
    """Whoever is interrupted brings the batch again."""
    at, refused = 0, 0
    while True:
        at += 1
        pca = stream(settings)
        n_rows = pca._n_rows_seen
        if not interrupted(lambda pca=pca: pca.partial_fit(MORE), at):
            break
        try:
            pca.partial_fit(MORE)
            pca.release()
        except RuntimeError as refusal:
            refused += "interrupted" in str(refusal)
        else:
            assert pca.n_samples_seen_ == pca._source._n_rows == n_rows + len(MORE)
    assert refused > 5


@pytest.mark.parametrize("settings", SETTINGS[:4], ids=str)
def test_a_release_that_fails_ends_the_stream(settings, monkeypatch):
    """Released again with one more row, the difference of the two would be that row."""
    pca = stream(settings)
    made = "fedpca.privacy.mechanisms.gram.Moments"
    if settings.get("mechanism") == "sketch":
        made = "fedpca.privacy.mechanisms.sketch.Subspace"

    def out_of_memory(*args, **settings):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(made, out_of_memory)
        with pytest.raises(MemoryError):
            pca.release()
    for call in (lambda: pca.partial_fit(MORE), pca.release):
        with pytest.raises(RuntimeError, match=r"the noise of .* was interrupted"):
            call()


def test_a_release_that_cannot_be_paid_for_leaves_the_stream_as_it_was():
    ledger = Ledger(epsilon=8.0, delta=1e-5)
    ledger.debit(0, None, "gram", 0.1)
    pca = stream({"ledger": ledger})
    with pytest.raises(BudgetExceeded):
        pca.release()
    pca.partial_fit(MORE)  # its rows may still be released, once somebody pays
    with pytest.raises(BudgetExceeded):
        pca.release()
    assert len(ledger.entries) == 1
