"""Draw the figures of the documentation: `python docs/figures.py [NAME ...]` writes docs/images/NAME.svg.

Besides fedpca[report] they need bed-reader, anndata and scanpy, as the examples do that they show.
"""

import io
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits, load_wine
from sklearn.preprocessing import StandardScaler

import fedpca
from fedpca.federation.one_process.simulate import Faults, simulate

DOCS = Path(__file__).parent
sys.path += [str(DOCS.parent / "examples"), str(DOCS.parent)]

# Colors on a light and on a dark page.
INK, MUTED = ("#1c2128", "#e6e8ec"), ("#57606a", "#a3abb6")
SERIES = [
    ("#2767c8", "#6ea8fe"), ("#b4500a", "#f0965a"), ("#1b7f45", "#56c288"), ("#8447c9", "#bd93f9"),
    ("#c2255c", "#f5799f"), ("#0b7285", "#45c1d6"), ("#7f5a0d", "#d8b14a"), ("#5f6773", "#9aa2ae"),
    ("#5c7f00", "#a5cc3d"), ("#b5179e", "#f28be4"),
]  # fmt: skip
BLUE, ORANGE, GREEN, RED, GRAY = (SERIES[i][0] for i in (0, 1, 2, 4, 7))

STYLE = {
    "axes.edgecolor": MUTED[0],
    "axes.labelcolor": INK[0],
    "axes.prop_cycle": mpl.cycler(color=[light for light, _ in SERIES]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.handletextpad": 0.3,
    "path.simplify": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedpca",
    "text.color": INK[0],
    "xtick.color": MUTED[0],
    "ytick.color": MUTED[0],
}


def panels(n_columns: int = 1, height: float = 3.2, **settings) -> tuple[Figure, list]:
    """A figure with panels side by side."""
    figure = Figure(figsize=(6.2 if n_columns == 1 else 9, height), layout="constrained")
    return figure, figure.subplots(1, n_columns, squeeze=False, **settings)[0].tolist()


def save(figure: Figure, name: str) -> None:
    """Write SVG whose colors follow the page: light or dark."""
    file = io.StringIO()
    figure.savefig(file, format="svg", dpi=160, transparent=True, metadata={"Date": None})
    code = re.sub(
        r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1; font-family: system-ui, sans-serif", file.getvalue()
    )
    short = r"-?\d+\.\d{2,}"
    code = re.sub(
        r'(?<= d=")[^"]*', lambda path: re.sub(short, lambda n: f"{float(n[0]):.1f}", path[0]), code
    )
    code = re.sub(r"<metadata>.*?</metadata>\s*", "", code, flags=re.DOTALL)
    light, dark = "", ""
    for i, (on_light, on_dark) in enumerate([INK, MUTED, *SERIES]):
        if on_light in code:
            code = code.replace(on_light, f"var(--c{i})")
            light, dark = f"{light} --c{i}: {on_light};", f"{dark} --c{i}: {on_dark};"
    scheme = f"svg {{{light} }} @media (prefers-color-scheme: dark) {{ svg {{{dark} }} }}"
    code = code.replace("<defs>", f"<style>{scheme}</style>\n <defs>", 1)
    (DOCS / "images" / f"{name}.svg").write_text(code, encoding="utf-8")


def dots(axis, points: np.ndarray, size: float = 4, **settings) -> None:
    """Scores on the first two components: one path, whose round ends are the dots."""
    x, y = (np.stack([side, side, np.full(len(side), np.nan)], axis=1).ravel() for side in points[:, :2].T)
    axis.plot(x, y, linewidth=size, solid_capstyle="round", **settings)
    axis.set(xlabel="component 1", ylabel="component 2")


def legend(owner, **settings) -> None:
    """The legend of dots."""
    for line in owner.legend(handlelength=0, handletextpad=0.8, **settings).get_lines():
        line.set(linewidth=6, solid_capstyle="round", xdata=[0, 0], ydata=[3, 3])


def csv_scores() -> Figure:
    """The wines of how-to/one-csv.md, as they are and standardized."""
    wine = load_wine()
    figure, axes = panels(2)
    kinds = wine.target_names[wine.target]
    scaled = StandardScaler().fit_transform(wine.data)
    for axis, rows, title in zip(axes, (wine.data, scaled), ("raw units", "standardized"), strict=True):
        pca = fedpca.StreamingPCA(n_components=2).fit(rows)
        scores = pca.transform(rows)
        for kind in wine.target_names:
            dots(axis, scores[kinds == kind], label=kind)
        axis.set_title(title)
        first, second = pca.explained_variance_ratio_
        axis.set(xlabel=f"component 1 ({first:.1%})", ylabel=f"component 2 ({second:.1%})")
    axes[1].set_ylim(-4.2, 6.5)
    legend(axes[1], loc="upper right")
    return figure


def csv_scree() -> Figure:
    """Scree plot and cumulative explained variance of the standardized wines."""
    rows = StandardScaler().fit_transform(load_wine().data)
    pca = fedpca.StreamingPCA(n_components=10).fit(rows)
    numbers = np.arange(1, 11)
    figure, (left, right) = panels(2, 2.8)
    left.bar(numbers, pca.explained_variance_, color=BLUE)
    left.set(title="scree plot", xlabel="component", ylabel="variance", xticks=numbers)
    right.plot(numbers, 100 * np.cumsum(pca.explained_variance_ratio_), "o-", color=BLUE)
    right.set(title="cumulative explained variance", xlabel="components", ylabel="%", ylim=(0, 100))
    right.set_xticks(numbers)
    return figure


def wine_biplot() -> Figure:
    """Scree plot and biplot of the wines, as reference/plot.md draws them."""
    wine = load_wine(as_frame=True)
    pca = fedpca.StreamingPCA(n_components=4, scale="std").fit(wine.data)
    figure, (left, right) = panels(2, 3.8)
    fedpca.plot.scree(pca, left)
    fedpca.plot.biplot(pca, wine.data, right, color=wine.target_names[wine.target])
    for name in right.texts:
        name.set_path_effects([])  # halos would be white in dark mode
    return figure


def digits_scores() -> Figure:
    """The tutorial's digits on the components of the merged model."""
    images, digits = load_digits(return_X_y=True)
    parts = [
        fedpca.StreamingPCA(n_components=10).fit(rows).subspace_ for rows in (images[:700], images[700:])
    ]
    figure, (axis,) = panels(1, 3.8)
    scores = fedpca.merge(parts, rank=10).project(images)
    for digit in range(10):
        dots(axis, scores[digits == digit], size=3, label=str(digit))
    legend(figure, loc="outside right center")
    return figure


def sensor_alarms() -> Figure:
    """Pump 7 of examples/sensors.py: the squared prediction error, its limit, and the alarms."""
    import sensors

    watch, hours, medians, limits, alarms = sensors.Watch(), [], [], [], []
    for hour, rows in enumerate(sensors.pump(7, sensors.FAULT)):
        if len(watch.normal) >= watch.learn:
            hours.append(hour)
            medians.append(np.quantile(watch.pca.anomaly_scores(rows)[0], 0.75))
            limits.append(watch.limits()[0])
        if watch.see(rows):
            alarms.append(hour)
    figure, (axis,) = panels()
    spe = dict(zip(hours, medians, strict=True))
    axis.plot(hours, medians, color=BLUE, label="SPE, upper quartile of the hour")
    axis.plot(hours, limits, "--", color=GRAY, label="limit: 99 % of normal readings")
    axis.plot(alarms, [spe[hour] for hour in alarms], "o", color=RED, markersize=4, label="alarm")
    axis.set(xlabel="hour", ylabel="SPE", ylim=(0, None))
    axis.legend(loc="upper left")
    return figure


def ancestry_scores() -> Figure:
    """The people of examples/biobanks.py on the components of all three biobanks."""
    import biobanks

    with tempfile.TemporaryDirectory() as folder:
        members = biobanks.write_biobanks(Path(folder))
        beds = [Path(folder) / f"{name}.bed" for name in members]
        model, frequency = biobanks.federated(beds)
        scores = {bed.stem: biobanks.scores(bed, model, frequency) for bed in beds}
    figure, axes = panels(3, sharey=True)
    for axis, (name, points) in zip(axes, scores.items(), strict=True):
        for population in range(3):
            dots(axis, points[members[name] == population], label=f"population {population + 1}")
        axis.set(title=name, xlim=(-20, 20), ylim=(-16, 26))
        axis.label_outer()
    legend(axes[0], loc="upper right")
    return figure


def hapmap_scores() -> Figure:
    """The people of examples/five_biobanks.py on the merged components, and those left out of the fit."""
    import five_biobanks

    genotypes = five_biobanks.load()
    rows = five_biobanks.standardized(np.concatenate([*genotypes.values()]))
    start, parts = 0, {}
    for name, people in genotypes.items():
        parts[name], start = rows[start : start + len(people)], start + len(people)
    model = fedpca.merge(
        [fedpca.Subspace.from_rows(part, rank=44) for part in parts.values()], rank=five_biobanks.COMPONENTS
    )
    figure, (left, right) = panels(2)
    for name, part in parts.items():
        dots(left, model.project(part), label=f"{name} ({five_biobanks.POPULATION[name]})")
    left.set_title("five biobanks, merged")
    legend(left, loc="best", fontsize=9)
    inside, plain, corrected = five_biobanks.left_out(rows)
    for projected, label in ((plain, "plain"), (corrected, "asymptotic")):
        dots(right, np.stack([inside[:, 1], (projected - inside)[:, 1]], axis=1), 3, label=label)
    right.axhline(0, color=GRAY, linewidth=1)
    right.set(title="people left out", xlabel="component 2, in the fit", ylabel="projected less in the fit")
    legend(right, loc="best")
    return figure


def cell_scores() -> Figure:
    """The cells of examples/single_cell.py, by lab."""
    import anndata
    import single_cell

    with tempfile.TemporaryDirectory() as folder:
        files = single_cell.write_labs(Path(folder))
        sums = sum(single_cell.gene_sums(path) for path in files)
        genes = single_cell.most_variable(sums, single_cell.GENES)
        summaries = [single_cell.summary(path, genes) for path in files]
        model = fedpca.merge(summaries, rank=single_cell.COMPONENTS)
        for path in files:
            single_cell.annotate(path, model, genes)
        scores = {path.stem: anndata.read_h5ad(path).obsm["X_pca"] for path in files}
    figure, axes = panels(3, sharex=True, sharey=True)
    for axis, color, (name, points) in zip(axes, (BLUE, ORANGE, GREEN), scores.items(), strict=True):
        dots(axis, points, size=2.5, color=color)
        axis.set_title(name)
        axis.label_outer()
    return figure


def cell_umap() -> Figure:
    """The cells of examples/scanpy_umap.py, by cluster."""
    import scanpy_umap
    from sklearn.cluster import KMeans

    cells, _ = scanpy_umap.main()
    clusters = KMeans(8, random_state=0).fit_predict(cells.obsm["X_pca"])
    figure, (axis,) = panels(1, 4.2)
    for cluster in range(8):
        dots(axis, cells.obsm["X_umap"][clusters == cluster], size=2)
    axis.set(xlabel="UMAP 1", ylabel="UMAP 2", xticks=[], yticks=[])
    return figure


def private_affinity() -> Figure:
    """How well three components of 12 laboratory values are found, by epsilon and number of people."""
    shared = np.random.default_rng(0).normal(size=(3, 12)) * [[2.0], [1.5], [1.0]]
    rng = np.random.default_rng(1)
    rows = 1 + rng.normal(size=(70_000, 3)) @ shared + 0.5 * rng.normal(size=(70_000, 12))
    epsilons = (0.05, 0.1, 0.2, 0.5, 1, 2, 4)
    nothing, public = {}, {"center": np.ones(12)}

    def affinity(epsilon: float, people: int, settings: dict) -> float:
        """Of the three leading directions, above the noise or not: the mean of 20 releases."""
        exact, found = fedpca.Subspace.from_rows(rows[:people], rank=3), []
        for seed in range(20):
            privacy = fedpca.Privacy(epsilon, 1e-6, **settings, insecure_seed_for_tests=seed)
            release = fedpca.PrivatePCA(3, **privacy.settings).fit(rows[:people]).release()
            directions = np.linalg.eigh(release.scatter)[1][:, -3:].T
            found.append(fedpca.metrics.affinity(directions, exact))
        return float(np.mean(found))

    figure, (axis,) = panels()
    for people, color in zip((700, 7_000, 70_000), (BLUE, ORANGE, GREEN), strict=True):
        for settings, style in ((nothing, "o-"), (public, ":")):
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # of what noise hides
                found = [affinity(epsilon, people, settings) for epsilon in epsilons]
            label = f"{people:,} people" if settings is nothing else None
            axis.plot(epsilons, found, style, color=color, markersize=4, label=label)
    axis.plot([], [], ":", color=GRAY, label="with a public center")
    axis.set(xlabel="epsilon", ylabel="affinity to the exact components", xscale="log", ylim=(0, 1.02))
    axis.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axis.minorticks_off()
    axis.legend(loc="lower right")
    return figure


def bars(axis, values: dict[str, float]) -> None:
    """Horizontal bars with their values; fedpca's is blue."""
    colors = [BLUE if name.startswith("fedpca") else GRAY for name in values]
    for label in axis.bar_label(
        axis.barh([*values], [*values.values()], color=colors, height=0.6), padding=3
    ):
        label.set_fontsize(10)
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
    axis.spines.left.set_visible(False)


def dask_costs() -> Figure:
    """The float32 table of how-to/dask.md."""
    page = (DOCS / "how-to" / "dask.md").read_text(encoding="utf-8")
    table = page[page.index("| method, float32") : page.index("| method, float64")]
    found = re.findall(r"^\| \**([^|*]+?)\** \| ([\d.]+) \| [\d.]+ \| (\d+) \|", table, re.MULTILINE)
    methods = {
        name: (float(seconds), float(memory)) for name, seconds, memory in found if "pca" in name.lower()
    }
    figure, axes = panels(2, 2.4, sharey=True)
    for i, (axis, title) in enumerate(zip(axes, ("seconds", "peak memory, MB"), strict=True)):
        bars(axis, {name: values[i] for name, values in methods.items()})
        axis.set_title(title)
    axes[1].invert_yaxis()  # shared, so turned twice
    return figure


def federation_growth() -> Figure:
    """Rows in the model as messages of a faulty federation arrive."""
    images, digits = load_digits(return_X_y=True)
    clients = {f"client {digit}": np.array_split(images[digits == digit], 6) for digit in range(10)}
    faults = Faults(stragglers=0.3, late=0.2, dropouts=0.1, duplicates=0.3, crashes=0.05, seed=3)
    run = simulate(clients, 10, faults=faults)
    figure, (axis,) = panels()
    axis.step([it.time for it in run.timeline], [it.rows for it in run.timeline], where="post", color=BLUE)
    crashes = [(it.time, it.rows) for it in run.timeline if it.crashed]
    axis.plot(*zip(*crashes, strict=True), "x", color=RED, label="crash and restart of an aggregator")
    axis.axhline(len(images), linestyle="--", color=GRAY, linewidth=1, label="rows of all clients")
    axis.set(xlabel="time", ylabel="rows in the model", ylim=(0, None))
    axis.legend(loc="lower right")
    return figure


def map_of_europe() -> Figure:
    """The map of docs/outside.md, of 1,387 Europeans, not private and private; turned towards the north."""
    from benchmarks import outside

    people = outside.europe()
    if people is None:
        raise SystemExit("map-of-europe needs europe_pcs.npz in the folder that FEDPCA_DATA names")
    exact = fedpca.StreamingPCA(2).fit(people.rows)
    private = outside.private_pca(people.rows, np.sqrt(2 * outside.RHO), seed=0)
    places = np.stack([people.longitude, people.latitude], axis=1)
    places -= places.mean(axis=0)
    names, counts = np.unique(people.country, return_counts=True)
    colored = names[np.argsort(-counts)][:7]  # of those with most people; the others are gray
    figure, axes = panels(2, 4.6, sharex=True, sharey=True)
    for axis, pca, title in zip(axes, (exact, private), ("not private", "private, rho = 1"), strict=True):
        scores = pca.transform(people.rows)
        left, _, right = np.linalg.svd(scores.T @ places)
        points = scores @ left @ right  # turned and mirrored, never stretched
        dots(axis, points[~np.isin(people.country, colored)], size=2.5, color=GRAY)
        for country, (color, _) in zip(colored, SERIES, strict=False):
            dots(axis, points[people.country == country], size=2.5, color=color)
        for country in names[counts >= 8]:
            place = np.median(points[people.country == country], axis=0)
            axis.annotate(country, place, ha="center", va="center", weight="bold", color=INK[0])
        axis.set(title=title, xlabel="", ylabel="", xticks=[], yticks=[], aspect="equal")
        axis.spines[:].set_visible(False)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "csv-scores": csv_scores,
    "csv-scree": csv_scree,
    "wine-biplot": wine_biplot,
    "digits-scores": digits_scores,
    "sensor-alarms": sensor_alarms,
    "ancestry-scores": ancestry_scores,
    "hapmap-scores": hapmap_scores,
    "cell-scores": cell_scores,
    "cell-umap": cell_umap,
    "private-affinity": private_affinity,
    "dask-costs": dask_costs,
    "federation-growth": federation_growth,
    "map-of-europe": map_of_europe,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        with mpl.rc_context(STYLE):
            save(FIGURES[name](), name)
