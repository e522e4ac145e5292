"""Live streams in files: they go on bit for bit, load without running code, and leave through no door."""

from datetime import timedelta

import numpy as np
import pytest
from command_line import invoke
from sklearn.base import clone

import fedpca
from fedpca import PCADetector, PrivatePCA, StreamingPCA, WindowedPCA
from fedpca.errors import ModelFileError
from fedpca.estimators import stream_file
from fedpca.federation.aggregator.message import Message
from fedpca.summaries import model_file
from fedpca.trackers.exact import Exact

ROWS = np.random.default_rng(0).normal(size=(300, 12)) * 10.0 ** np.arange(12)
GAPPY = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.1, np.nan, ROWS)
LATE = np.where((np.arange(300)[:, None] < 150) & (np.arange(12) == 3), np.nan, ROWS)
WIDE = np.random.default_rng(2).normal(size=(400, 300))

STREAMS = {
    "exact": (StreamingPCA(3), ROWS),
    "float32": (StreamingPCA(3), ROWS.astype(np.float32)),
    "scaled, forgetting, gaps": (StreamingPCA(3, scale="std", forget=0.9), GAPPY),
    "late sensor": (StreamingPCA(3, scale="std"), LATE),
    "nystrom": (StreamingPCA(3, random_state=5), WIDE),
    "nystrom, share": (StreamingPCA(0.5, tracker="nystrom", scale="std"), ROWS),
    "random state": (StreamingPCA(3, random_state=np.random.RandomState(3)), WIDE),
    "block": (StreamingPCA(3, tracker="block"), ROWS),
    "energy": (StreamingPCA(3, energy=(0.01, 0.2)), ROWS),
    "own scale": (StreamingPCA(3, scale=np.arange(1.0, 13.0)), ROWS),
    "window": (WindowedPCA(3, window=200, scale="std"), GAPPY),
    "detector": (PCADetector(3, forget=0.9), GAPPY),
    "not fitted": (StreamingPCA(3), ROWS[:0]),
}


def learned(name):
    """An estimator with half of its rows, and the others."""
    estimator, rows = STREAMS[name]
    estimator = clone(estimator)
    for batch in np.array_split(rows, 6)[:3]:
        if len(batch):
            estimator.partial_fit(batch)
    return estimator, np.array_split(rows, 6)[3:]


def results(estimator):
    pca = estimator.pca_ if isinstance(estimator, PCADetector) else estimator
    limit = [estimator.limit_] if isinstance(estimator, PCADetector) else []
    return [pca.components_, pca.explained_variance_, pca.mean_, np.array([pca.n_samples_seen_, *limit])]


@pytest.mark.filterwarnings("ignore:.*of the variance")
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_goes_on_bit_for_bit(name, tmp_path):
    estimator, later = learned(name)
    estimator.save(tmp_path / "stream")
    again = type(estimator).load(tmp_path / "stream")
    settings = (each.get_params() | {"random_state": None} for each in (again, estimator))
    assert len({str(each) for each in settings}) == 1
    for batch in later if len(later[0]) else [ROWS]:
        estimator.partial_fit(batch)
        again.partial_fit(batch)
    for before, after in zip(results(estimator), results(again), strict=True):
        np.testing.assert_array_equal(before, after)


def test_windows_of_time_and_names_go_on(tmp_path):
    times = np.datetime64("2026-01-01") + np.arange(300) * np.timedelta64(1, "m")
    for window in (timedelta(hours=2), np.timedelta64(2, "h")):
        pca = WindowedPCA(2, window=window).partial_fit(ROWS[:200], timestamps=times[:200])
        pca.save(tmp_path / "window")
        again = WindowedPCA.load(tmp_path / "window")
        for each in (pca, again):
            each.partial_fit(ROWS[200:], timestamps=times[200:])
        np.testing.assert_array_equal(pca.components_, again.components_)
    pandas = pytest.importorskip("pandas")
    named = StreamingPCA(2).fit(pandas.DataFrame(ROWS, columns=list("abcdefghijkl")))
    named.save(tmp_path / "named")
    assert StreamingPCA.load(tmp_path / "named").subspace_.feature_names == tuple("abcdefghijkl")


def test_a_stream_is_no_model_and_does_not_leave(tmp_path):
    path = tmp_path / "stream.safetensors"
    StreamingPCA(3).fit(WIDE).save(path)
    with pytest.raises(ModelFileError, match="live stream, which may have raw rows"):
        fedpca.load(path)
    with pytest.raises(ModelFileError, match=r"must not leave .* raw rows"):
        model_file.require_no_own_facts(model_file.read(path)[2], path)
    with pytest.raises(ModelFileError, match="live stream, which may have raw rows"):
        Message.decode(path.read_bytes())  # as every carrier does
    with pytest.raises(ModelFileError, match=r"is a StreamingPCA; read it with StreamingPCA\.load"):
        WindowedPCA.load(path)
    StreamingPCA(3).fit(ROWS).subspace_.save(path)
    with pytest.raises(ModelFileError, match="not a live stream, but a subspace"):
        StreamingPCA.load(path)


def test_a_private_stream_is_not_saved(tmp_path):
    with pytest.raises(TypeError, match="private stream is not saved"):
        PrivatePCA(2, epsilon=1.0, delta=1e-6).save(tmp_path / "stream")


def test_own_classes_and_other_versions_are_refused(tmp_path, monkeypatch):
    class Own(Exact):
        pass

    path = tmp_path / "stream"
    with pytest.raises(TypeError, match="cannot be saved; pickle it"):
        StreamingPCA(3, tracker=Own).fit(ROWS).save(path)
    StreamingPCA(3).fit(ROWS).save(path)
    monkeypatch.setattr(stream_file, "__version__", "99")
    with pytest.raises(ModelFileError, match="and this is 99: go on from a summary_"):
        StreamingPCA.load(path)


@pytest.mark.parametrize(
    "tree",
    [
        {"object": ["os.system", {}]},
        {"object": ["fedpca.estimators.files.hashlib", {}]},
        {"object": ["fedpca.estimators.stream_file.import_module", {}]},
        {"tuple of": ["fedpca.estimators.stream_file.timedelta", []]},
        {"object": ["fedpca.privacy.tracker.PrivateTracker", {}]},
        {"again": 7},
        {"array": ["float64", 0, [2**40], False]},
        {"read": 1},
        {"seen": 1},
        [],
        {"a": 1, "b": 2},
        {"timedelta": [2**80, 0, 0]},
        {"host": 1, "again": 0},
        None,
    ],
)
def test_a_file_made_by_others_runs_nothing(tree, tmp_path):
    path = tmp_path / "stream"
    facts = {"stream": {"version": fedpca.__version__, "estimator": tree}}
    model_file.write(path, "stream", {"float64": np.zeros(3)}, facts)
    with pytest.raises(ModelFileError, match=r"not a live stream that fedpca wrote|is a "):
        StreamingPCA.load(path)


def test_memory_beyond_the_rows_is_not_written(tmp_path):
    pca = StreamingPCA(3).partial_fit(WIDE[:50])
    pca.save(tmp_path / "stream")
    assert (tmp_path / "stream").stat().st_size < 3 * WIDE[:50].nbytes


def test_the_command_line_refuses_streams_and_lets_no_limit_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text("least_rows = 5\n")
    detector = PCADetector(3).fit(ROWS)
    detector.save("stream.safetensors")
    detector.save_model("limits.safetensors")

    def run(*arguments):
        return invoke([*map(str, arguments)])

    for command in (
        ("merge", "stream.safetensors", "-o", "out.safetensors"),
        ("check", "stream.safetensors", "--policy", "policy.toml"),
        ("package", "stream.safetensors", "--policy", "policy.toml", "-o", "study"),
        ("inspect", "stream.safetensors"),
    ):
        found = run(*command)
        assert found.exit_code == 1
        assert "live stream" in found.stderr
    assert not (tmp_path / "study").exists()
    refused = run("check", "limits.safetensors", "--policy", "policy.toml")
    assert refused.exit_code == 1
    assert "limits learned from its rows" in refused.stderr
    StreamingPCA(3, scale="std").fit(ROWS[::2]).summary_.save("other.safetensors")
    assert run("merge", "limits.safetensors", "other.safetensors", "-o", "merged.safetensors").exit_code == 0
    assert "limits" not in model_file.read("merged.safetensors")[2]
