"""fedpca.plot: each function draws one plot on one pair of axes, with the numbers of the model."""

import numpy as np
import pytest
from helpers import power_law
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA

import fedpca
from fedpca import Aggregator, FederatedPCA, Moments, StreamingPCA, Subspace

mpl = pytest.importorskip("matplotlib", reason="the plot extra")

from matplotlib import pyplot  # noqa: E402
from matplotlib.colors import to_hex, to_rgb  # noqa: E402

from fedpca.plot.style import FAINT  # noqa: E402

WINE = load_wine(as_frame=True)
ROWS = (WINE.data - WINE.data.mean()) / WINE.data.std()


@pytest.fixture(autouse=True)
def close_figures():
    backend = mpl.get_backend()
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(backend)


@pytest.fixture(scope="module")
def pca():
    return StreamingPCA(4).fit(ROWS)


@pytest.fixture(scope="module")
def federation():
    aggregator, rng = Aggregator(3), np.random.default_rng(0)
    for client in range(6):
        rows = rng.normal(size=(40, 8)) * [5, 4, 3, 1, 1, 1, 1, 0.5]
        rows[:, 7] *= 100 if client == 2 else 1
        aggregator.receive(f"client {client}", 1, Subspace.from_rows(rows))
    return aggregator


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


def points(axes):
    return np.concatenate([line.get_xydata() for line in axes.lines if line.get_marker() == "o"])


def in_order(values):
    return values[np.lexsort(values.T)]


def test_the_scree_plot_has_the_explained_variance(pca):
    offline = 100 * PCA().fit(ROWS).explained_variance_ratio_
    bars = heights(fedpca.plot.scree(pca))
    np.testing.assert_allclose(bars, offline[: len(bars)], rtol=1e-6)
    assert len(bars) > 4
    for model in (pca.subspace_, Moments.from_rows(ROWS)):
        np.testing.assert_allclose(heights(fedpca.plot.scree(model))[:4], offline[:4], rtol=1e-6)


def test_scores_are_those_of_the_rows_or_those_given(pca):
    expected = in_order(pca.transform(ROWS)[:, [0, 2]])
    for model, options in [
        (pca, {"rows": ROWS}),
        (pca, {"scores": pca.transform(ROWS)}),
        (pca.subspace_, {"rows": ROWS}),
        (pca, {"rows": ROWS, "color": WINE.target}),
    ]:
        axes = fedpca.plot.scores(model, components=(1, 3), **options)
        np.testing.assert_allclose(in_order(points(axes)), expected, rtol=1e-6)
        assert axes.get_xlabel().startswith("component 1 (")
        assert axes.get_ylabel().startswith("component 3 (")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "2"]


def test_scores_of_one_component_are_strips():
    axes = fedpca.plot.scores(StreamingPCA(1).fit(ROWS), ROWS, color=WINE.target)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    assert len(points(axes)) == len(ROWS)
    assert (
        fedpca.plot.scores(StreamingPCA(3).fit(ROWS), ROWS, components=[2])
        .get_xlabel()
        .startswith("component 2")
    )


def test_loadings_are_those_of_the_component(pca):
    axes = fedpca.plot.loadings(pca, component=2)
    weights = np.abs(PCA(2).fit(ROWS).components_[1])
    names = [label.get_text() for label in axes.get_yticklabels()]
    strongest = np.argsort(-weights)
    assert [name[:6] for name in names] == [ROWS.columns[i][:6] for i in strongest]
    np.testing.assert_allclose([abs(bar.get_width()) for bar in axes.patches], weights[strongest], rtol=1e-6)


def test_a_biplot_has_points_and_arrows_in_the_direction_of_loadings(pca):
    axes = fedpca.plot.biplot(pca, ROWS)
    assert len(points(axes)) == len(ROWS)
    names = [note for note in axes.texts if note.get_text()]
    assert len(names) == 8
    for note in names:
        feature = next(i for i, name in enumerate(ROWS.columns) if name[:9] == note.get_text()[:9])
        x, y = pca.components_[:2, feature]
        assert np.cross([x, y, 0], [*note.xy, 0])[2] == pytest.approx(0, abs=1e-6)
        assert np.dot([x, y], note.xy) > 0


def test_rows_without_a_value_to_color_by_are_drawn(pca):
    ages = np.where(np.arange(len(ROWS)) % 5, np.linspace(20, 80, len(ROWS)), np.nan)
    axes = fedpca.plot.scores(pca, ROWS, color=ages)
    assert len(points(axes)) == len(ROWS)
    assert axes.get_legend_handles_labels()[1][-1] == "missing"


@pytest.mark.parametrize(
    ("color", "labels"),
    [
        ([0.0, 1.0, np.nan, -0.0], ["0", "1", "missing"]),
        (["x", None, "y", ""], ["x", "y", "missing"]),
        (["1", "NA", "2", "NA"], ["1", "2", "missing"]),
        (["None", "some", "NA", "some"], ["NA", "None", "some"]),
        (np.array(["2026-01-01", "NaT"] * 2, "M8[D]"), ["2026-01-01", "missing"]),
        ([np.nan] * 4, ["missing"]),
    ],
)
def test_what_is_missing_is_one_gray_group(pca, color, labels):
    color = np.asarray(color)[np.arange(len(ROWS)) % 4]
    handles, found = fedpca.plot.scores(pca, ROWS, color=color).get_legend_handles_labels()
    assert found == labels
    colors = [to_hex(handle.get_color()) for handle in handles]
    assert (FAINT in colors) == ("missing" in labels)
    assert len({*colors}) == len(labels)


def test_gaps_in_text_leave_numbers_a_ramp(pca):
    color = np.where(np.arange(len(ROWS)) % 5, np.arange(len(ROWS)).astype(str), "NA")
    labels = fedpca.plot.scores(pca, ROWS, color=color).get_legend_handles_labels()[1]
    assert [" to " in label for label in labels] == [True] * 5 + [False]


def test_values_without_a_color_of_their_own_do_not_outshine_the_others(pca):
    color = np.minimum(np.arange(len(ROWS)) % 50, 40).astype(str)
    handles, labels = fedpca.plot.scores(
        pca, ROWS, color=np.char.add("site ", color)
    ).get_legend_handles_labels()
    assert labels[-1] == "32 others"
    red, green, blue = to_rgb(handles[-1].get_color())
    assert max(red, green, blue) - min(red, green, blue) < 0.1


@pytest.mark.parametrize(
    "color",
    [1000 + np.arange(178) / 1e5, np.datetime64("2026-01-01") + np.arange(178).astype("timedelta64[s]")],
    ids=["numbers", "times"],
)
def test_ranges_that_are_close_have_different_names(pca, color):
    labels = fedpca.plot.scores(pca, ROWS, color=color).get_legend_handles_labels()[1]
    ends = [label.split(" to ") for label in labels]
    assert len(labels) == 5
    assert all(low != high for low, high in ends)


def test_names_in_a_biplot_stay_inside_the_axes_beside_a_wide_legend(pca):
    axes = fedpca.plot.biplot(pca, ROWS, color=[f"{c}: a name of thirty letters" for c in WINE.target])
    axes.figure.canvas.draw()
    inside = axes.get_window_extent()
    boxes = [note.get_window_extent() for note in axes.texts if note.get_text()]
    assert boxes
    assert min(box.x0 for box in boxes) > inside.x0 - 10
    assert max(box.x1 for box in boxes) < inside.x1 + 10


def test_a_feature_with_a_blank_name_has_a_number(rng):
    model = Subspace.from_rows(rng.normal(size=(50, 3)) * [1, 9, 1]).with_about(names=["a", " ", "b"])
    assert fedpca.plot.loadings(model).get_yticklabels()[0].get_text() == "feature 2"


def test_influence_is_that_of_the_clients(federation):
    axes = fedpca.plot.influence(federation)
    found = federation.influence()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0] == "client 2"
    for name, bar in zip(names, axes.patches, strict=True):
        assert bar.get_width() == pytest.approx(np.degrees(found[name].angle))
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor()
    rows = {f"{c}": power_law(np.random.default_rng(c), 40, 5) for c in range(4)}
    assert len(fedpca.plot.influence(FederatedPCA(2).fit_clients(rows)).patches) == 4


@pytest.mark.slow
def test_they_draw_on_the_axes_given_and_leave_the_style_alone(pca, federation):
    before = dict(mpl.rcParams)
    _, axes = pyplot.subplots(2, 3)
    assert fedpca.plot.scree(pca, axes[0, 0]) is axes[0, 0]
    assert fedpca.plot.scores(pca, ROWS, axes[0, 1], color=WINE.target) is axes[0, 1]
    assert fedpca.plot.loadings(pca, ax=axes[0, 2]) is axes[0, 2]
    assert fedpca.plot.biplot(pca, ROWS, axes[1, 0]) is axes[1, 0]
    assert fedpca.plot.influence(federation, axes[1, 1]) is axes[1, 1]
    assert len(pyplot.get_fignums()) == 1
    pyplot.gcf().canvas.draw()
    fedpca.plot.scree(pca)
    assert dict(mpl.rcParams) == before


def test_names_are_text_whatever_they_contain(rng):
    names = ["$x_1$", r"$\frac{$", "_hidden", "long " * 40]
    rows = rng.normal(size=(50, 4))
    model = Subspace.from_rows(rows).with_about(names=names)
    _, axes = pyplot.subplots()  # its ticks exist already
    axes.figure.canvas.draw()
    for plotted in (
        fedpca.plot.loadings(model, axes),
        fedpca.plot.biplot(model, rows, color=[r"$\frac{$", "_b"] * 25),
        fedpca.plot.scores(model.subspace(1), rows, color=[r"$\frac{$", "$b$"] * 25),
    ):
        plotted.figure.canvas.draw()  # does not raise


@pytest.mark.parametrize(
    ("draw", "error", "rule"),
    [
        (lambda pca: fedpca.plot.scree(ROWS), TypeError, "a Subspace or Moments, got DataFrame"),
        (lambda pca: fedpca.plot.scores(pca), TypeError, "either rows or scores"),
        (lambda pca: fedpca.plot.scores(pca, ROWS, components=(1, 5)), ValueError, "in 1 to 4, got 5"),
        (lambda pca: fedpca.plot.scores(pca, ROWS, components=(1, 2, 3)), ValueError, "one or two, such as"),
        (lambda pca: fedpca.plot.scores(pca, ROWS, components=1), ValueError, "one or two, .* got 1"),
        (lambda pca: fedpca.plot.scores(pca, ROWS, color=[1]), ValueError, "one value per row: 178"),
        (lambda pca: fedpca.plot.scores(pca, ROWS, color="hue"), ValueError, "one value per row, got str"),
        (lambda pca: fedpca.plot.scree(pca, np.zeros(2)), TypeError, "ax must be axes .* got ndarray"),
        (lambda pca: fedpca.plot.scores(pca, scores=np.ones((3, 1))), ValueError, "got shape"),
        (lambda pca: fedpca.plot.loadings(pca, component=0), ValueError, "must lie in 1 to 4, got 0"),
        (lambda pca: fedpca.plot.biplot(StreamingPCA(1).fit(ROWS), ROWS), ValueError, "needs two components"),
        (lambda pca: fedpca.plot.influence(pca), TypeError, "an Aggregator, got StreamingPCA"),
        (lambda pca: fedpca.plot.influence(Aggregator(2)), ValueError, "two clients or more"),
        (lambda pca: fedpca.plot.scores(Subspace.empty(3), np.ones((2, 3))), ValueError, "no components"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_rejected(pca, draw, error, rule):
    with pytest.raises(error, match=rule):
        draw(pca)
    assert not pyplot.get_fignums()


def test_a_missing_extra_is_named(fork):
    program = (
        "import sys, numpy; sys.modules['matplotlib'] = None; import fedpca\n"
        "fedpca.plot.scree(fedpca.Subspace.from_rows(numpy.eye(3)))"
    )
    _, _, errors = fork(program).wait()
    assert errors.endswith("a plot needs matplotlib: pip install 'fedpca[plot]'.\n")
