"""Whatever arrives, no exception comes out but the documented one, and the others go on."""

import pytest
from fuzz import run


@pytest.mark.slow
def test_fuzzed_files_messages_and_stores(tmp_path):
    taken = run(1000, seed=1, folder=tmp_path)
    assert min(taken.values()) > 10  # some are still valid: the checks behind are reached, too


@pytest.mark.slow
@pytest.mark.long
def test_more_fuzzed_files_messages_and_stores(tmp_path):
    run(4000, seed=2, folder=tmp_path)
