"""Spark runs the same algebra as everything else: the model is that of all rows, however they are split."""

import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers import power_law, shortfall
from scipy import sparse

from fedpca import Privacy, PrivatePCA, StreamingPCA, Subspace
from fedpca.errors import BudgetExceeded
from fedpca.secure.fit import PrivateFit

pytest.importorskip("pyspark", reason="the spark adapter needs pyspark")
pa = pytest.importorskip("pyarrow", reason="the spark adapter needs pyarrow")

from pyspark.errors import PySparkException  # noqa: E402 -- without pyspark there is nothing to test
from pyspark.ml.linalg import Vectors  # noqa: E402
from pyspark.sql import SparkSession, functions  # noqa: E402

from fedpca.federation.engines import private_parts, spark_rows, spark_tree  # noqa: E402
from fedpca.federation.engines.spark import fit, transform  # noqa: E402

pytestmark = [pytest.mark.client, pytest.mark.slow]


if not (shutil.which("java") or "JAVA_HOME" in os.environ):
    pytest.skip("Spark needs Java 17 or newer", allow_module_level=True)


@pytest.fixture(scope="session")
def spark():
    session = SparkSession.builder.master("local[2]").getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def rows():
    return power_law(np.random.default_rng(0), 1500, 12, mean_size=3)


NAMES = tuple(f"gene {i}.1" for i in range(12))


def numbers(spark, rows, partitions=4, **more):
    """A DataFrame of numeric columns, with names that need quotes."""
    columns = {name: rows[:, i] for i, name in enumerate(NAMES[: rows.shape[1]])}
    return spark.createDataFrame(pa.table(columns | more)).repartition(partitions)


def arrays(spark, rows, partitions=4):
    """A DataFrame of one column of arrays."""
    flat = pa.array(np.ascontiguousarray(rows).ravel())
    ends = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    table = pa.table({"id": np.arange(len(rows)), "x": pa.ListArray.from_arrays(pa.array(ends), flat)})
    return spark.createDataFrame(table).repartition(partitions)


def vectors(spark, rows, partitions=4):
    """A DataFrame of one column of vectors: sparse ones, and every third dense."""
    made = [
        Vectors.dense(row) if i % 3 == 0 else Vectors.sparse(len(row), np.flatnonzero(row), row[row != 0])
        for i, row in enumerate(rows)
    ]
    return spark.createDataFrame([(i, row) for i, row in enumerate(made)], ["id", "v"]).repartition(
        partitions
    )


def with_zeros(rows):
    return np.where(np.random.default_rng(8).uniform(size=rows.shape) < 0.4, rows, 0.0)


def assert_fits(model, rows, center=True, within=1e-6):
    """Against numpy's singular value decomposition of all rows."""
    assert isinstance(model, Subspace)
    assert model.count == len(rows)
    mean = rows.mean(axis=0) if center else np.zeros(rows.shape[1])
    values = np.linalg.svd(rows - mean, compute_uv=False)
    assert abs(shortfall(model.components, rows, center)) < within
    np.testing.assert_allclose(model.total, (values**2).sum(), rtol=within)
    np.testing.assert_allclose(model.singular_values, values[: model.rank], rtol=within)
    np.testing.assert_allclose(model.mean, mean, atol=within)


# --- what is fitted ---


@pytest.mark.parametrize("center", [True, False])
def test_numeric_columns_give_the_model_of_all_rows_and_their_names(spark, rows, center):
    model = fit(numbers(spark, rows), 3, center=center)
    assert model.feature_names == NAMES
    assert_fits(model, rows, center)


@pytest.mark.parametrize(("partitions", "fanout"), [(1, 8), (20, 2), (20, 1000)])
def test_any_partitions_and_fanout_give_the_same_model(spark, rows, partitions, fanout):
    assert_fits(fit(numbers(spark, rows, partitions), 3, fanout=fanout), rows)


def test_arrays_and_vectors_give_the_same_model_as_numeric_columns(spark, rows):
    assert_fits(fit(arrays(spark, rows), 3, columns="x"), rows)
    few = with_zeros(rows)
    assert_fits(fit(vectors(spark, few), 3, columns=["v"]), few)


def test_sparse_vectors_stay_sparse(spark):
    rows = sparse.random_array((300, 5000), density=0.002, rng=np.random.default_rng(3), format="csr")
    made = [(Vectors.sparse(5000, row.indices, row.data),) for row in rows]
    model = fit(spark.createDataFrame(made, ["v"]).repartition(3), 4)
    assert_fits(model, rows.toarray(), within=0.05)
    batch = spark.createDataFrame(made[:9], ["v"]).select(functions.unwrap_udt("v").alias("v")).toArrow()
    found = spark_rows.rows_of(batch["v"].combine_chunks())
    assert sparse.issparse(found)
    assert found.nnz == rows[:9].nnz
    np.testing.assert_array_equal(found.toarray(), rows[:9].toarray())


def test_many_features_give_the_model_that_dask_gives(spark):
    da = pytest.importorskip("dask.array")
    from fedpca.federation.engines.dask import fit as dask_fit

    wide = power_law(np.random.default_rng(1), 1200, 400)
    df = arrays(spark, wide, 5).withColumn("part", functions.spark_partition_id()).cache()
    where = df.select("id", "part").toPandas()
    ordered = wide[where["id"].to_numpy()]
    sizes = tuple(int(size) for size in where["part"].value_counts(sort=False).sort_index())
    assert len(sizes) == 5
    ours, theirs = fit(df, 8, columns="x"), dask_fit(da.from_array(ordered, chunks=(sizes, 400)), 8)
    np.testing.assert_allclose(ours.singular_values, theirs.singular_values, rtol=1e-10)
    np.testing.assert_allclose(
        ours.components.T @ ours.components, theirs.components.T @ theirs.components, atol=1e-9
    )
    assert_fits(ours, wide, within=1e-3)
    scaled = fit(df, 8, columns="x", scale="std")
    np.testing.assert_allclose(scaled.scale, wide.std(axis=0))
    assert_fits(scaled, wide / wide.std(axis=0), within=0.02)


def test_every_run_gives_the_same_bits(spark, rows):
    df = numbers(spark, rows, 11).cache()
    assert fit(df, 3) == fit(df, 3)


def test_weights_count_repetitions(spark, rows):
    times = np.arange(len(rows)) % 3.0
    df = numbers(spark, rows, times=times)
    model = fit(df, 3, weights="times")
    assert model.feature_names == NAMES
    assert_fits(model, np.repeat(rows, times.astype(int), axis=0))
    with pytest.raises(ValueError, match="must have rows"):
        fit(df.withColumn("times", functions.lit(0.0)), 3, weights="times")


@pytest.mark.parametrize("bad", [None, float("inf"), -1.0])
def test_weights_that_are_none_are_refused(spark, rows, bad):
    df = numbers(spark, rows[:50, :3]).withColumn("w", functions.lit(bad).cast("double"))
    with pytest.raises(ValueError, match="weights must be finite and not negative"):
        fit(df, 2, weights="w")


def test_nulls_and_nan_are_gaps(spark):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(2000, 3)) @ rng.normal(size=(3, 12)) + 0.05 * rng.normal(size=(2000, 12))
    gaps = rng.uniform(size=rows.shape) < 0.1
    gaps[:10] = True  # a row of which nothing was observed says nothing
    columns = {f"c{i}": pa.array(rows[:, i], mask=gaps[:, i]) for i in range(6)}
    columns |= {f"c{i}": pa.array(np.where(gaps[:, i], np.nan, rows[:, i])) for i in range(6, 12)}
    df = spark.createDataFrame(pa.table(columns)).repartition(4)
    model = fit(df, 3)
    assert model.count == 1990
    assert shortfall(model.components, rows) < 0.02
    scores = np.array(transform(df, model).select("scores").toArrow()["scores"].to_pylist())
    assert scores.shape == (2000, 3)
    assert np.isfinite(scores).all()


def test_columns_of_all_kinds_of_numbers(spark, rows):
    df = numbers(spark, rows[:, :3], flag=np.arange(1500) % 2 == 0, whole=np.arange(1500) % 7)
    df = df.withColumn("price", functions.col("whole").cast("decimal(10,2)") / 3)
    table = df.toArrow().to_pandas().astype(float).to_numpy()
    assert_fits(fit(df, 4), table)
    single = numbers(spark, rows[:, :5].astype(np.float32))
    model = fit(single, 2)
    assert model.components.dtype == np.float32
    assert_fits(model, rows[:, :5], within=1e-4)


@pytest.mark.parametrize("scale", ["std", "binomial", "numbers"])
def test_scales(spark, rows, scale):
    rows = np.random.default_rng(5).binomial(2, np.linspace(0.1, 0.6, 12), size=(900, 12)).astype(float)
    p = rows.mean(axis=0) / 2
    divisor = {
        "std": rows.std(axis=0),
        "binomial": np.sqrt(2 * p * (1 - p)),
        "numbers": np.arange(1.0, 13.0),
    }[scale]
    given = divisor if scale == "numbers" else scale
    for df, columns in ((numbers(spark, rows), None), (arrays(spark, rows), "x")):
        model = fit(df, 3, columns=columns, scale=given)
        np.testing.assert_allclose(model.scale, divisor)
        assert_fits(model, rows / divisor)


def test_what_is_said_about_the_scale_of_features(spark, rows):
    tall = rows[:, :3] * [1.0, 1000.0, 1.0]
    with pytest.warns(UserWarning, match=r"gene 1\.1 has 100.0% of the variance of all 3 features"):
        fit(numbers(spark, tall), 2)
    still = np.column_stack([rows[:, :2], np.full(len(rows), 7.0)])
    with pytest.warns(UserWarning, match=r"gene 2\.1 does not vary: it is not scaled"):
        fit(numbers(spark, still), 2, scale="std")


def test_a_column_without_any_value_is_named(spark, rows):
    df = numbers(spark, np.column_stack([rows[:, :3], np.full(len(rows), np.nan)]))
    with pytest.warns(UserWarning, match=r"gene 3\.1 has no observed value"):
        fit(df, 2)


def test_empty_partitions_one_row_and_more_partitions_than_rows(spark, rows):
    df = numbers(spark, rows, 6)
    few = df.filter(functions.col(f"`{NAMES[0]}`") > float(np.quantile(rows[:, 0], 0.995)))
    assert_fits(fit(few, 2), rows[rows[:, 0] > np.quantile(rows[:, 0], 0.995)])
    assert_fits(fit(numbers(spark, rows[:7], 30), 3), rows[:7])
    with pytest.warns(UserWarning, match="n_components=2 but only 0 found"):
        one = fit(numbers(spark, rows[:1]), 2)
    assert (one.count, one.rank) == (1, 0)


# --- scores ---


def test_scores_are_one_more_column_beside_all_others(spark, rows):
    model = StreamingPCA(3).fit(rows).subspace_.truncate(3)
    df = arrays(spark, rows).withColumn("label", functions.lit("a"))
    scored = transform(df, model, columns="x", output="pca")
    assert scored.columns == ["id", "x", "label", "pca"]
    table = scored.toArrow().to_pandas().sort_values("id")
    np.testing.assert_allclose(np.stack(table["pca"]), model.project(rows), atol=1e-10)
    np.testing.assert_array_equal(np.stack(table["x"]), rows)


def test_other_columns_keep_their_metadata_and_whether_they_may_be_null(spark, rows):
    model = Subspace.from_rows(rows, 2)
    features = functions.col("x").alias("x", metadata={"ml_attr": {"num_attrs": 12}})  # as MLlib notes it
    df = arrays(spark, rows[:5]).select(features, functions.lit(1).alias("one"))
    scored = transform(df, model, columns="x")
    assert scored.schema.fields[:2] == df.schema.fields
    assert [row.one for row in scored.collect()] == [1] * 5


def test_a_model_finds_its_columns_by_their_names(spark, rows):
    df = numbers(spark, rows, id=np.arange(len(rows)))
    model = fit(df, 3, columns=NAMES[:5])
    table = (
        transform(df.select("id", *(f"`{name}`" for name in reversed(NAMES))), model).toArrow().to_pandas()
    )
    expected = model.project(rows[:, :5])[table["id"]]
    np.testing.assert_allclose(np.stack(table["scores"]), expected, atol=1e-10)
    with pytest.raises(ValueError, match=r"there is no 'gene 3\.1'"):
        transform(df.drop("gene 3.1"), model)
    with pytest.raises(ValueError, match="same feature names in the same order"):
        transform(df, model, columns=NAMES[1:6])


def test_scores_of_vectors_and_of_scaled_models(spark, rows):
    few = with_zeros(rows)
    df = vectors(spark, few)
    model = fit(df, 3, columns="v", scale="std")
    found = transform(df, model, columns="v").select("id", "v", "scores").toPandas().sort_values("id")
    np.testing.assert_allclose(np.stack(found["scores"]), model.project(few), atol=1e-10)
    assert found["v"].iloc[0] == Vectors.dense(few[0])  # passes through as it is


def test_a_null_has_null_for_its_scores(spark, rows):
    model = fit(arrays(spark, rows[:, :3]), 2, columns="x")
    df = spark.createDataFrame([(0, [1.0, 2.0, 3.0]), (1, None)], "id long, x array<double>")
    found = transform(df, model, columns="x").orderBy("id").collect()
    np.testing.assert_allclose(found[0].scores, model.project([[1.0, 2.0, 3.0]])[0])
    assert found[1].scores is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "model"}, "model must be a Subspace"),
        ({"model": Subspace.empty(3)}, "model must have components"),
        ({"output": "x"}, "output must be the name of a new column"),
        ({"output": 3}, "output must be the name of a new column"),
    ],
)
def test_scores_that_cannot_be(spark, rows, settings, message):
    df = arrays(spark, rows[:20])
    given = {"model": Subspace.from_rows(rows, 2), "columns": "x"} | settings
    with pytest.raises((TypeError, ValueError), match=message):
        transform(df, given.pop("model"), **given)


# --- what cannot be fitted: one line, on the driver ---


def refused(df, message, n_components=2, kind=ValueError, **settings):
    with pytest.raises(kind, match=message) as caught:
        fit(df, n_components, **settings)
    assert caught.type is kind
    assert "\n" not in str(caught.value)


def test_columns_that_cannot_be_features(spark, rows):
    df = numbers(spark, rows[:, :3], who=["x"] * 1500)
    refused(df, "columns must be numeric, or one column of .*, but who contains string; name the others")
    refused(df, "there is no 'nobody'; it has gene 0.1, gene 1.1", columns=["nobody"])
    refused(df, "columns must name every column once", columns=[NAMES[0], NAMES[0]])
    refused(df, "columns must name at least one", columns=[])
    refused(df, "columns must be names of columns", columns=3, kind=TypeError)
    refused(df, "weights must name a column of numbers, and who contains string", weights="who")
    refused(df, "weights must name columns of df, and there is no 'w'", weights="w")
    refused(df, "weights must be the name of a column", weights=[1.0], kind=TypeError)
    twice = df.select(f"`{NAMES[0]}`", functions.col(f"`{NAMES[0]}`"))
    refused(twice, "columns must name one column of df, and 2 are called 'gene 0.1'", columns=NAMES[0])
    refused(twice, "columns must name one column of df, and 2 are called 'gene 0.1'; rename them")
    mixed = arrays(spark, rows[:20])
    refused(mixed, "x contains array<double>")
    refused(
        mixed.select(functions.array(functions.array("id")).alias("x")), "x contains array<array<bigint>>"
    )


def test_settings_that_cannot_be(spark, rows):
    df = numbers(spark, rows[:, :3])
    refused(df, "n_components must be at most the number of features, 3", n_components=4)
    refused(arrays(spark, rows), "n_components must be .* 12", n_components=13, columns="x")
    refused(df, "n_components must be a whole number", n_components=0.9, kind=TypeError)
    refused(df, "fanout must be at least 2", fanout=1)
    refused(df, "scale", scale=[1.0, 2.0])
    refused(arrays(spark, rows), "scale", scale=[1.0, 2.0], columns="x")
    refused(rows, "df must be a Spark DataFrame, got ndarray; StreamingPCA", kind=TypeError)
    refused(spark.readStream.format("rate").load(), "df must not be a streaming DataFrame")


def test_rows_that_cannot_be_fitted(spark, rows):
    lists = [(row,) for row in rows[:40, :3].tolist()]

    def frame(bad):
        return spark.createDataFrame([*lists, (bad,)], "x array<double>").repartition(3)

    refused(frame(None), "every row must have its vector or array, and one is null; drop these rows")
    refused(frame([1.0, 2.0]), "all rows must have the same number of features, got 2, 3; drop or pad")
    refused(frame([1.0, 2.0, float("inf")]), "infinity")
    refused(frame([]), "all rows must have the same number of features, got 0, 3")
    refused(spark.createDataFrame([([],)] * 3, "x array<double>"), "must have at least one feature")
    refused(frame(None).limit(0), "data must have rows")
    nothing = spark.createDataFrame([([None, None],)] * 5, "x array<double>")
    refused(nothing, "data must have rows")
    short = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(3, {1: 1.0}),)], ["v"])
    refused(short, "all rows must have the same number of features, got 2, 3")
    refused(short.repartition(1), "all rows must have the same number of features, got 2, 3")
    refused(short, "all rows must have the same number of features, got 2, 3", scale="std")


@pytest.mark.parametrize("module", ["fedpca", "safetensors"])
def test_executors_that_lack_a_package_are_said_in_one_line(module):
    class Frame:
        def collect(self):
            raise PySparkException(f"Traceback\n...\nModuleNotFoundError: No module named '{module}'\n")

    with pytest.raises(ModuleNotFoundError, match=f"one has no '{module}': set PYSPARK_PYTHON") as caught:
        spark_tree._collected(Frame())
    assert "\n" not in str(caught.value)


def test_without_spark_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ImportError, match=r"fedpca\[spark\]"):
        fit(None, 1)


# --- privacy ---


@pytest.fixture
def exact_sums(monkeypatch):
    """The sums over all partitions, as they come to the driver, and what they are sums of."""
    found, add = [], private_parts.PrivateParts.add

    def recorded(self, total):
        found.append((self._machine.next.name, total))
        return add(self, total)

    monkeypatch.setattr(private_parts.PrivateParts, "add", recorded)
    return found


@pytest.mark.parametrize("mechanism", ["gram", "sketch"])
def test_the_sums_of_partitions_are_exact_and_get_one_noise(spark, rows, exact_sums, drawn, mechanism):
    privacy = Privacy(8.0, 1e-6, bound=4.0, center=rows.mean(axis=0), mechanism=mechanism)
    model = fit(numbers(spark, rows, 7), 2, privacy=privacy)
    names = [name for name, _ in exact_sums]
    assert names == [mechanism, "evaluation"]
    alone = PrivateFit(privacy, 12, 2)
    alone.begin(len(rows), 1.0)
    np.testing.assert_array_equal(exact_sums[0][1].values, alone.vector([rows], np.random.default_rng(0)))
    assert all(total.n_rows == len(rows) for _, total in exact_sums)
    assert (
        len(drawn) == len(set(drawn)) == {"gram": 2, "sketch": 1}[mechanism] + 1
    )  # a draw per block, of all
    assert len({key for key, _ in drawn}) == 2  # of the release, and of the evaluation
    certificate = model.certificate
    assert certificate.private
    assert (certificate.epsilon, certificate.records) == (8.0, len(rows))
    assert certificate.sampler.startswith("rounded Gaussian, exact on the integers")
    assert certificate.ledger.spent == pytest.approx(8.0, rel=1e-6)
    assert certificate.ledger.spent <= 8.0
    assert model.feature_names == NAMES


def test_a_private_model_is_as_noisy_as_that_of_one_process(spark, exact_sums):
    rows = power_law(np.random.default_rng(2), 4000, 6, mean_size=3)
    ours = fit(arrays(spark, rows, 5), 2, columns="x", privacy=Privacy(2.0, 1e-6), width=6)
    theirs = PrivatePCA(2, epsilon=2.0, delta=1e-6).fit(rows).summary_.certificate
    steps = [step.step for step in theirs.steps]
    assert [step.step for step in ours.certificate.steps] == steps
    assert ours.certificate.noise_edge == pytest.approx(theirs.noise_edge, rel=0.6)  # by the bound found
    assert shortfall(ours.components, rows) < 0.1
    assert [name for name, _ in exact_sums] == steps
    known = dict(exact_sums)["lengths and spread"].values
    assert known.sum() == 4000 + sum(size // 2 for size in [800] * 5)  # lengths, and pairs in every partition


def test_a_private_scale(spark):
    rows = power_law(np.random.default_rng(2), 6000, 4) * [1.0, 10.0, 100.0, 1000.0]
    model = fit(numbers(spark, rows), 1, privacy=Privacy(8.0, 1e-6), scale="std")
    assert np.abs(np.log(model.scale / rows.std(axis=0))).max() < 0.5
    assert model.certificate.scale is not None


def test_no_value_of_a_row_makes_a_private_fit_fail(spark, rows):
    bad = [[None] * 3, [float("inf"), 0.0, float("nan")], None, [1e308, -1e308, 0.0], [], [1.0], [2.0] * 4]
    lists = [(row,) for row in rows[:400, :3].tolist() + bad]
    df = spark.createDataFrame(lists, "x array<double>").repartition(3)
    for given in (Privacy(8.0, 1e-5, bound=4.0, center=[3.0] * 3), Privacy(8.0, 1e-5)):
        assert fit(df, 1, privacy=given, width=3).certificate.records == 407
    sparse_ones = vectors(spark, np.where(np.abs(rows) > 2, rows, 0.0))
    private = fit(sparse_ones, 1, columns="v", privacy=Privacy(8.0, 1e-5), width=rows.shape[1])
    assert private.certificate.records == len(rows)


def test_a_budget_that_is_spent_is_refused_before_anything_is_drawn(spark, rows, tmp_path, drawn):
    df = numbers(spark, rows[:, :3])
    settings = {"bound": 4.0, "center": None, "ledger": tmp_path / "ledger"}
    fit(df, 1, privacy=Privacy(4.0, 1e-6, **settings))
    n_drawn = len(drawn)
    with pytest.raises(BudgetExceeded):
        fit(df, 1, privacy=Privacy(4.0, 1e-6, **settings))
    assert len(drawn) == n_drawn


def test_private_fits_that_cannot_be(spark, rows):
    df = numbers(spark, rows[:, :3], w=np.ones(1500))
    refused(df, "weights must be None with privacy", weights="w", privacy=Privacy(1.0, 1e-6))
    refused(df, "privacy must be a Privacy", privacy=1.0, kind=TypeError)
    refused(df, "scale must be None, 'std' or public", privacy=Privacy(1.0, 1e-6), scale="binomial")
    ragged = spark.createDataFrame([([1.0, 2.0],), ([1.0],), ([3.0, 1.0],)], "x array<double>")
    refused(ragged, "width must say how many numbers", privacy=Privacy(1.0, 1e-6), n_components=1)
    refused(df, "width is for fits with privacy", width=3)
    refused(df, "width is for one column of vectors", privacy=Privacy(1.0, 1e-6), width=3)


def test_rows_that_change_between_passes_are_refused(spark, rows):
    def some(batches):
        for batch in batches:
            yield batch.slice(int.from_bytes(os.urandom(4)) % batch.num_rows)  # others in every pass

    df = arrays(spark, rows[:, :3]).select("x")
    df = df.mapInArrow(some, df.schema)
    refused(df, "all passes must read the same rows", privacy=Privacy(1.0, 1e-6, 4.0, center=None), width=3)


# --- other ways to run Spark, each in a process of its own ---


def run(program):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_an_executor_killed_in_the_middle_costs_time_only(tmp_path):
    pytest.importorskip("psutil")
    out = run(f"""
        import collections, os, pathlib, signal, time
        from concurrent.futures import ThreadPoolExecutor
        import psutil
        from pyspark.sql import SparkSession
        from fedpca.federation.engines.spark import fit

        spark = (
            SparkSession.builder.master("local-cluster[2,1,1024]")
            .config("spark.executor.memory", "512m").config("spark.sql.shuffle.partitions", "4").getOrCreate()
        )
        folder = pathlib.Path({str(tmp_path)!r})

        def slow(batches):
            from pyspark import TaskContext
            number = TaskContext.get().partitionId()
            time.sleep(0.3)
            (folder / f"{{number}}-{{os.getpid()}}-{{time.time_ns()}}").touch()
            yield from batches

        columns = "sin(id) * 5 a", "cos(id * 3) b", "sin(id * 7) + cos(id) c"
        df = spark.range(0, 2400, 1, 24).selectExpr(*columns)
        undisturbed = fit(df, 2)

        def executor(worker):
            above = psutil.Process(worker).parents()
            return next(one for one in above if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()))

        def kill():
            while len(done := list(folder.iterdir())) < 6:
                time.sleep(0.01)
            workers = collections.Counter(int(path.name.split("-")[1]) for path in done)
            executor(workers.most_common(1)[0][0]).send_signal(signal.SIGKILL)  # it has tasks behind it
            print("killed")

        with ThreadPoolExecutor(1) as threads:
            killed = threads.submit(kill)
            model = fit(df.mapInArrow(slow, df.schema), 2)
            killed.result()
        done = [path.name.partition("-")[0] for path in folder.iterdir()]
        print("same" if model == undisturbed else "different", len(set(done)), len(done) > 24)
        spark.stop()
    """)
    assert out.split() == ["killed", "same", "24", "True"]


def test_tasks_of_another_python():
    """One that has no package at all: what Spark's `python3` is where an environment is not activated."""
    out = run("""
        import os, pathlib, sys, tempfile
        from pyspark.sql import SparkSession
        from fedpca.federation.engines.spark import fit

        bare = pathlib.Path(tempfile.mkdtemp()) / "python3"
        bare.write_text(f'#!/bin/sh\\nexec "{sys.executable}" -S "$@"\\n')  # without site-packages
        bare.chmod(0o755)
        os.environ["PYSPARK_PYTHON"] = str(bare)
        spark = SparkSession.builder.master("local[2]").getOrCreate()
        try:
            fit(spark.range(9).selectExpr("id a", "id * id b"), 1)
        except ModuleNotFoundError as error:
            print(error)
        spark.stop()
    """)
    assert out.count("\n") == 1
    assert "Spark's executors must have fedpca and what it imports, and one has no '" in out


def test_spark_connect():
    pytest.importorskip("grpc_status", reason="Spark Connect needs pyspark[connect]")
    out = run("""
        import fedpca
        from pyspark.sql import SparkSession
        from fedpca.federation.engines.spark import fit, transform

        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        df = spark.range(0, 1000, 1, 4).selectExpr("id", "sin(id) * 5 a", "cos(id) b", "sin(id) + cos(id) c")
        model = fit(df, 2, columns=["a", "b", "c"])
        private = fit(df, 1, columns=["a", "b"], privacy=fedpca.Privacy(8.0, 1e-5))
        print(type(df).__module__, model.count, len(transform(df, model).first().scores), private.count)
        spark.stop()
    """)
    assert out.split() == ["pyspark.sql.connect.dataframe", "1000.0", "2", "1000.0"]
