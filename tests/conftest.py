"""Settings all tests share."""

import os
import shutil
from pathlib import Path

# Several threads of the linear algebra library make work on small matrices five times slower.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():  # kernels for a GPU are interpreted; triton asks when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
from hypothesis import settings
from processes import Forks

from fedpca.privacy.noise import ExactNoise
from reproduction import datasets

# The same examples every time, and no deadline: machines are shared, and speed is measured in benchmarks/.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")

# What a fit advises. Most tests use settings, rows or many fits that it advises against, to try other things;
# test_private_advice.py, test_scaled_fit.py and test_influence.py are about the advice. Pages and docstrings
# have to take it.
ADVICE = (
    "epsilon=",
    "bound=",
    "left out, because no scale was found",
    "this is fit number",
    "nothing rises above the noise",
    r"n_components=\d+ was asked for, and",
    r"the \d+ components above the noise",
    r"all \d+ releases were paid for in memory",
    r".* of the variance of all \d+ features",
    "far more influence than rows",
    "about .* of the variance is lost with missing entries",
)


def pytest_collection_modifyitems(items):
    unheard = pytest.mark.filterwarnings(f"ignore:({'|'.join(ADVICE)}):UserWarning")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(unheard, append=False)


SHARED = Path(__file__).parents[2] / "shared" / "data"
if SHARED.is_dir():
    os.environ.setdefault("FEDPCA_DATA", str(SHARED))  # for programs that tests start, too
DATA = os.environ.get("FEDPCA_DATA", str(SHARED))


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window, and without traffic of its own."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("no chromium or chrome: `make test-engines` installs one")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    quiet = ("background-networking", "component-update", "sync")
    options = ["--no-sandbox", "--disable-gpu", *(f"--disable-{what}" for what in quiet)]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


@pytest.fixture
def drawn(monkeypatch):
    """All noise drawn: its keys and labels."""
    found, weighted = [], ExactNoise.weighted

    def recorded(self, labels, weights, count, sd):
        found.extend((self.key, label) for label in labels)
        return weighted(self, labels, weights, count, sd)

    monkeypatch.setattr(ExactNoise, "weighted", recorded)
    return found


@pytest.fixture(scope="session")
def real_data():
    """A loader of real data by name; skips the test where the data is not at hand."""

    def load(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDPCA_DATA", DATA)
            patch.setenv("https_proxy", "http://127.0.0.1:9")  # tests download nothing
            try:
                return datasets.load(name)
            except FileNotFoundError as missing:
                pytest.skip(str(missing))

    return load


@pytest.fixture(scope="session")
def real_clients(real_data):
    """A loader of real data by name: rows by client, gaps filled with means."""

    def load(name):
        data = real_data(name)
        rows = np.where(np.isnan(data.rows), np.nanmean(data.rows, axis=0), data.rows)
        if name == "wisdm":  # features of many sizes, one of them constant
            spread = rows.std(axis=0)
            rows = rows / np.where(spread > 0, spread, 1)
        return {str(client): rows[data.clients == client] for client in np.unique(data.clients)}

    return load


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture(scope="session")
def fork():
    """Runs programs in processes of their own, which have imported fedpca without its extras."""
    with Forks("import fedpca; [getattr(fedpca, name) for name in fedpca.__all__]") as forks:
        yield forks


@pytest.fixture
def read_sizes(monkeypatch):
    """Sizes of all that is read from shared folders."""
    from fedpca.federation.folder import storage as shared_files

    read, sizes = shared_files.LocalFolder.read, []

    def reading(self, name, max_bytes):
        contents = read(self, name, max_bytes)
        sizes.append(len(contents))
        return contents

    monkeypatch.setattr(shared_files.LocalFolder, "read", reading)
    return sizes
