"""Dask runs the same algebra as everything else: the model is that of all rows, however they are split."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import assert_summarizes, power_law, shortfall

from fedpca import StreamingPCA, Subspace

dask = pytest.importorskip("dask", reason="the dask adapter needs dask")
da = pytest.importorskip("dask.array", reason="the dask adapter is tested with dask arrays")

from fedpca.federation.engines.dask import fit  # noqa: E402 -- without dask there is nothing to test


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads"):
        yield


@pytest.fixture(scope="module")
def rows():
    return power_law(np.random.default_rng(0), 6000, 40, mean_size=3)


def assert_fits(model, rows, center=True, within=1e-6):
    assert isinstance(model, Subspace)
    assert model.count == len(rows)
    assert abs(shortfall(model.components, rows, center)) < within
    exact = Subspace.from_rows(rows, center=center)
    np.testing.assert_allclose(model.total, exact.total, rtol=within)
    np.testing.assert_allclose(model.singular_values, exact.singular_values[: model.rank], rtol=within)
    np.testing.assert_allclose(model.mean, exact.mean, atol=within)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("chunk", [6000, 1000, 61])
def test_the_model_is_that_of_all_rows(rows, chunk, center):
    model = fit(da.from_array(rows, chunks=(chunk, 40)), 5, center=center)
    assert model.rank == 5
    assert model.centered is center
    assert_fits(model, rows, center)


@pytest.mark.parametrize("fanout", [2, 3, 8, 1000])
def test_any_fanout_gives_the_same_model(rows, fanout):
    assert_fits(fit(da.from_array(rows, chunks=(250, 40)), 5, fanout=fanout), rows)


def test_many_features():
    wide = power_law(np.random.default_rng(1), 3000, 500, alpha=1.0)
    model = fit(da.from_array(wide, chunks=(300, 500)), 10)
    assert_fits(model, wide, within=1e-3)  # singular values; the fast tracker, no d x d anywhere
    assert abs(shortfall(model.components, wide)) < 1e-6


def test_columns_of_dates_are_refused_by_name_before_anything_is_computed(rows):
    pd = pytest.importorskip("pandas")
    dataframe = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(rows[:20, :3], columns=["a", "b", "c"]).assign(day=pd.Timestamp("2020-01-01"))
    data = dataframe.from_pandas(frame, npartitions=2).map_partitions(fail, meta=frame.iloc[:0])
    with pytest.raises(ValueError, match="columns must be numeric, but day contains dates or times"):
        fit(data, 1)


def fail(part):
    raise RuntimeError("computed")


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_any_scheduler_will_do(rows, scheduler):
    data = da.from_array(rows, chunks=(500, 40))
    with dask.config.set(scheduler=scheduler):
        assert fit(data, 5) == fit(data, 5)  # in every run
        assert_fits(fit(data, 5), rows)


def test_unknown_chunk_sizes_uneven_and_empty_partitions(rows):
    data = da.from_array(rows, chunks=((1, 2999, 0, 17, 2983), 40))
    assert_fits(fit(data, 5), rows)
    kept = rows[:, 0] > np.quantile(rows[:, 0], 0.98)  # some chunks lose all their rows
    assert not kept[0]
    filtered = data[da.from_array(kept, chunks=(data.chunks[0],))]
    assert np.isnan(filtered.shape[0])
    assert_fits(fit(filtered, 5), rows[kept])


def test_partitions_with_fewer_rows_than_components(rows):
    assert_fits(fit(da.from_array(rows[:300], chunks=(2, 40)), 5), rows[:300])


def test_columns_in_several_chunks_are_put_together(rows):
    assert_fits(fit(da.from_array(rows, chunks=(1000, 7)), 5), rows)


def test_few_features_are_exact(rows):
    model = fit(da.from_array(rows[:, :4], chunks=(1000, 4)), 4)
    assert_summarizes(model, [rows[:, :4]])


def test_float32_stays_float32(rows):
    data = da.from_array(rows.astype(np.float32), chunks=((0, 3000, 3000), 40))
    model = fit(data, 5)
    assert model.components.dtype == np.float32
    assert_fits(model, rows, within=1e-4)


@pytest.mark.slow
def test_a_column_without_any_value_is_named():
    rows = np.random.default_rng(0).normal(size=(60, 4)) * [1, 1, 1, np.nan]
    with pytest.warns(UserWarning, match="feature 4 has no observed value"):
        fit(da.from_array(rows, chunks=(20, 4)), 2)


def test_missing_entries_are_filled_as_in_a_stream():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(4000, 3)) @ rng.normal(size=(3, 20)) + 0.05 * rng.normal(size=(4000, 20))
    gappy = np.where(rng.uniform(size=rows.shape) < 0.1, np.nan, rows)
    gappy[:10] = np.nan  # a row of which nothing was observed says nothing
    gappy[1000:2000, 5] = np.nan  # one partition has never seen this feature
    gappy[3500:] = np.nan
    model = fit(da.from_array(gappy, chunks=(500, 20)), 3)
    assert model.count == 3490
    assert shortfall(model.components, rows) < 0.02
    assert abs(shortfall(model.components, rows) - shortfall(_streamed(gappy).components_, rows)) < 0.02


def _streamed(rows):
    return StreamingPCA(3).fit(rows)


def test_sparse_chunks_stay_sparse(rows):
    from scipy import sparse

    dense = np.where(np.abs(rows - 3) > 1, rows, 0.0)
    parts = [
        da.from_delayed(dask.delayed(sparse.csr_array)(part), part.shape, meta=sparse.csr_array((0, 0)))
        for part in np.array_split(dense, 6)
    ]
    assert_fits(fit(da.concatenate(parts), 5), dense)


def test_a_dataframe_gives_its_names(rows):
    pd = pytest.importorskip("pandas", reason="dask dataframes need pandas")
    dd = pytest.importorskip("dask.dataframe", reason="dask dataframes need pandas and pyarrow")
    names = tuple(f"gene {i}" for i in range(40))
    frame = pd.DataFrame(rows, columns=list(names))
    data = dd.from_pandas(frame, npartitions=7)
    model = fit(data, 5)
    assert model.feature_names == names
    assert_fits(model, rows)
    assert model.project(frame).shape == (6000, 5)
    kept = frame[frame["gene 0"] > frame["gene 0"].max() - 0.3]
    few = fit(data[data["gene 0"] > frame["gene 0"].max() - 0.3], 3)  # leaves most partitions empty
    assert few.count == len(kept)
    assert few.feature_names == names
    mixed = frame.assign(small=np.arange(6000) % 7, flag=True).astype({"gene 1": np.float32})
    assert fit(dd.from_pandas(mixed, npartitions=3), 2).n_features == 42
    with pytest.raises(TypeError, match="got Series of 1 dimensions"):
        fit(data["gene 0"], 1)


def test_columns_that_are_not_numbers_are_named_before_any_row_is_read():
    pd = pytest.importorskip("pandas", reason="dask dataframes need pandas")
    dd = pytest.importorskip("dask.dataframe", reason="dask dataframes need pandas and pyarrow")
    frame = pd.DataFrame({"a": np.arange(20.0), "when": pd.date_range("2026-01-01", periods=20)})
    frame["who"] = pd.array(["x"] * 20, dtype="string")
    data = dd.from_pandas(frame, npartitions=2).map_partitions(_never_read, meta=frame)
    with pytest.raises(ValueError, match="when contains dates or times, who contains text: drop or encode"):
        fit(data, 1)


def _never_read(part):
    raise AssertionError("it was read")


@pytest.mark.filterwarnings("ignore:n_components=")
def test_what_cannot_be_fitted_is_said(rows):
    data = da.from_array(rows, chunks=(1000, 40))
    with pytest.raises(TypeError, match="StreamingPCA"):
        fit(rows, 5)
    with pytest.raises(TypeError, match="of 3 dimensions"):
        fit(data[None], 5)
    with pytest.raises(ValueError, match="n_components must be at most the number of features, 40"):
        fit(data, 41)
    with pytest.raises(TypeError, match="whole number"):
        fit(data, 0.9)
    with pytest.raises(ValueError, match="fanout must be at least 2"):
        fit(data, 5, fanout=1)
    with pytest.raises(ValueError, match="must have rows"):
        fit(data[:0], 5)
    with pytest.raises(ValueError, match="must have rows"):
        fit(data * np.nan, 5)
    with pytest.raises(ValueError, match="infinity"):
        fit(data * np.inf, 5)


def test_without_dask_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    with pytest.raises(ImportError, match=r"fedpca\[dask\]"):
        fit(None, 1)


# --- a real cluster ---


@pytest.fixture(scope="module")
def client():
    """Two processes that nobody outside this machine can talk to."""
    distributed = pytest.importorskip("distributed", reason="a cluster needs distributed")
    loopback = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **loopback) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def on(client):
    # By name: an object in dask's settings would go, with them, into a new worker, and cannot be pickled.
    with client.as_current(), dask.config.set(scheduler="dask.distributed"):
        yield


@pytest.mark.engine
def test_the_cluster_of_these_tests_can_be_reached_from_here_only(client):
    import psutil  # comes with distributed

    here = psutil.Process()
    listening = [
        connection.laddr.ip
        for process in [here, *here.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(client.scheduler_info()["workers"]) == 2
    assert set(listening) == {"127.0.0.1"}


@pytest.mark.engine
def test_a_cluster_gives_the_same_model(rows, client):
    with on(client):
        assert_fits(fit(da.from_array(rows, chunks=(500, 40)), 5), rows)


@pytest.mark.engine
def test_a_task_that_fails_now_and_then_is_tried_again(rows, client, tmp_path):
    def load():
        tries = len(list(tmp_path.iterdir()))
        (tmp_path / f"{tries}").touch()
        if tries < 2:
            raise ConnectionError("the file server is busy")
        return rows

    with on(client):
        assert_fits(fit(da.from_delayed(dask.delayed(load)(), rows.shape, dtype=float), 5), rows)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.engine
def test_rows_that_cannot_be_fitted_are_tried_once(client, tmp_path):
    class Rows:
        shape = (20, 3)
        ndim = 2

        def __array__(self, *args, **kwargs):
            (tmp_path / f"{time.time_ns()}").touch()
            raise ValueError("no numbers")

    with on(client), pytest.raises(ValueError, match="no numbers"):
        fit(da.from_delayed(dask.delayed(Rows)(), (20, 3), dtype=float), 2)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.engine
def test_a_worker_killed_in_the_middle_costs_time_only(rows, client, tmp_path):
    parts = np.array_split(rows, 24)

    def load(index):
        time.sleep(0.05)
        (tmp_path / f"{index}-{os.getpid()}").touch()
        return parts[index]

    data = da.concatenate(
        [da.from_delayed(dask.delayed(load)(i), part.shape, dtype=float) for i, part in enumerate(parts)]
    )
    workers = client.run(os.getpid).values()

    def kill():
        while len(list(tmp_path.iterdir())) < 8:
            time.sleep(0.005)
        victim = int(next(tmp_path.iterdir()).name.partition("-")[2])
        assert victim in workers
        os.kill(victim, signal.SIGKILL)

    with on(client), ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill)
        model = fit(data, 5)
        killed.result()
    loads = [path.name.partition("-")[0] for path in tmp_path.iterdir()]
    assert set(loads) == {str(index) for index in range(24)}
    assert len(loads) > 24  # some of them twice: what the killed worker had done was lost
    assert_fits(model, rows)
