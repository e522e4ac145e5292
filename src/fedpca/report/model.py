"""The sections about a model: its spectrum, its loadings, its certificate."""

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from fedpca.report.figures import FAINT, INK, MUTED, SERIES, canvas
from fedpca.report.formatting import clean, moment, number, share, value
from fedpca.report.layout import Chart, Choice, Section, Table
from fedpca.summaries.certificate import Certificate, noise_edge
from fedpca.summaries.subspace import Subspace

_MOST_COMPONENTS = 50
_MOST_LOADINGS = 15
_MOST_CHOICES = 6


def spectrum(model: Subspace, shown: int) -> Section:
    """Variance by component and together, what was discarded on the way, and what drowns in noise."""
    if not shown:
        return Section("spectrum", "Spectrum", ("The rows do not vary: there are no components.",), ())
    return Section("spectrum", "Spectrum", (), (_scree(model, shown), _cumulative(model, shown)))


def _scree(model: Subspace, shown: int) -> Chart:
    shares = model.explained_variance_ratio[:_MOST_COMPONENTS]
    places = np.arange(1, len(shares) + 1)
    figure, axes = canvas()
    axes.bar(places[:shown], 100 * shares[:shown], color=SERIES[0], label="shown")
    if len(shares) > shown:
        axes.bar(places[shown:], 100 * shares[shown:], color=FAINT, label="carried for merging")
    caption = f"Component 1 holds {share(shares[0])} of the variance"
    caption += f", component {shown} holds {share(shares[shown - 1])}." if 1 < shown <= len(shares) else "."
    edge = noise_edge(model.certificate) / 2 / model.total
    if 0 < edge < np.inf:
        # Half the edge: a model's variances are what noise made of smaller ones, taken back.
        axes.axhline(100 * edge, color=SERIES[1], linestyle="--", linewidth=1.5, label="noise edge")
        drowned = int(np.count_nonzero(shares[:shown] <= edge))
        caption += f" The dashed line is the noise edge, {share(edge)}: "
        caption += (
            f"{drowned} of {shown} shown do not rise above it." if drowned else "all shown rise above it."
        )
    axes.set(xlabel="component", ylabel="% of the variance")
    _whole_places(axes, len(shares))
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend()
    lines = [
        (
            str(place),
            number(float(size) ** 2 / max(model.count - 1, 1)),
            share(part),
            "shown" if place <= shown else "carried",
        )
        for place, size, part in zip(places, model.singular_values, shares, strict=False)
    ]
    numbers = Table("Variance by component", ("component", "variance", "share", "it is"), lines)
    return Chart("scree", "Variance by component", caption, figure, numbers)


def _cumulative(model: Subspace, shown: int) -> Chart:
    together = np.cumsum(model.explained_variance_ratio[:_MOST_COMPONENTS])
    most = np.minimum(together + model.discarded / model.total, 1.0)
    places = np.arange(1, len(together) + 1)
    known = model.certificate is None  # noise may exceed what was left out
    figure, axes = canvas()
    held = float(model.explained_variance_ratio[:shown].sum())
    caption = f"{number(shown)} components together hold" if shown > 1 else "One component holds"
    caption += f" {share(held)} of the variance."
    if not known:
        caption += " There is noise in it: what was left out is not known."
    elif model.discarded > 1e-9 * model.total:
        room = 100 * (most - together)
        axes.bar(places, room, bottom=100 * together, color=SERIES[0], alpha=0.18, width=0.9)
        best = f"{number(shown)} directions hold" if shown > 1 else "direction holds"
        caption += (
            f" Summarizing and merging left out {share(model.discarded / model.total)}: what the best {best} "
            "lies within the pale bars."
        )
    else:
        caption += " Summarizing and merging left out nothing."
    axes.plot(places, 100 * together, color=SERIES[0], marker="o", markersize=4, linewidth=1.8)
    if len(together) > shown:
        axes.axvline(shown, color=MUTED, linestyle=":", linewidth=1.2)
    axes.set(xlabel="components", ylabel="% of the variance, together", ylim=(0, 104))
    _whole_places(axes, len(together))
    lines = [
        (str(place), share(float(low)), share(float(high)) if known else "not known")
        for place, low, high in zip(places, together, most, strict=True)
    ]
    numbers = Table("Variance together", ("components", "hold", "the best hold at most"), lines)
    return Chart("cumulative", "Variance together", caption, figure, numbers)


def _whole_places(axes: Any, count: int) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.set_xlim(0.4, count + 0.6)
    axes.grid(visible=False, axis="x")


def loadings(model: Subspace, shown: int) -> Section:
    """Which features make the components."""
    count = min(shown, _MOST_CHOICES)
    charts = [_loadings_of(model, place) for place in range(count)]
    labels = [str(place + 1) for place in range(count)]
    words = ["How much each feature counts for a component, or against it; which of the two is arbitrary."]
    if shown > count:
        words.append(f"These are the first {count} of {number(shown)} components.")
    items = charts if count == 1 else [Choice("loadings", "Component", labels, charts)]
    return Section("loadings", "Loadings", words, items)


def _loadings_of(model: Subspace, place: int) -> Chart:
    weights = model.components[place].astype(float)
    order = np.argsort(-np.abs(weights), kind="stable")[:_MOST_LOADINGS]
    names = [_feature(model, int(feature)) for feature in order]
    values = weights[order]
    figure, axes = canvas(80 + 20 * len(order))
    bars = np.arange(len(order))
    axes.barh(bars, values, color=[SERIES[0] if weight >= 0 else SERIES[1] for weight in values], height=0.7)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(bars, [clean(name, 18) for name in names])
    axes.invert_yaxis()
    axes.set(xlabel=f"loading on component {place + 1}")
    axes.grid(visible=False, axis="y")
    title = f"Component {place + 1}"
    held = float(np.square(values).sum())
    caption = f"{clean(names[0], 40)} counts most."
    if len(weights) > len(order):
        caption += f" These {len(order)} of {number(len(weights))} features make up {share(held)} of it."
    lines = [(clean(name), f"{weight:+.4f}") for name, weight in zip(names, values, strict=True)]
    numbers = Table(f"Loadings of component {place + 1}", ("feature", "loading"), lines)
    return Chart(f"loadings-{place + 1}", title, caption, figure, numbers)


def _feature(model: Subspace, place: int) -> str:
    return model.feature_names[place] if model.feature_names else f"feature {place + 1}"


_MEANINGS = {
    "epsilon": "epsilon, the promise for every record",
    "delta": "delta, how likely it may fail",
    "mu": "mu, the same as one number",
    "unit": "what is protected",
    "adjacency": "how data sets may differ",
    "mechanism": "what was noised",
    "calibration": "how the noise was calibrated",
    "sampler": "how noise was drawn",
    "bound": "rows were clipped to a length of",
    "center": "around which center",
    "sensitivity": "how far one record moves the sum",
    "sigma": "noise on the sum, in units of bound²",
    "noise_edge": "largest eigenvalue of the noise",
    "records": "records",
    "merged": "releases merged",
    "assumes": "assuming that",
    "public": "public in any case",
}


def privacy(certificate: Certificate) -> Section:
    """What the model promises, as its file says."""
    epsilon, delta = value(certificate.epsilon), value(certificate.delta)
    words = [
        f"The model says that it is differentially private, with epsilon = {epsilon} and delta = {delta}: "
        "whoever sees it, and knows every record but one, can hardly tell that one."
        if certificate.private
        else "The model says that it is NOT private.",
        "This is the word of whoever made it: a certificate is a statement, not a proof.",
    ]
    words += [f"Warning: {clean(text, 200)}." for text in certificate.warnings[:10]]
    stated = certificate.to_json()
    lines = [(meaning, value(stated[name])) for name, meaning in _MEANINGS.items() if name in stated]
    items = [Table("Certificate", ("fact", "value"), lines)]
    if certificate.releases:
        columns = ("release", "records", "epsilon", "delta", "time")
        released = [
            (*(value(getattr(part, name)) for name in columns[:-1]), moment(part.time or ""))
            for part in certificate.releases
        ]
        items.append(Table("Releases", columns, released))
    return Section("privacy", "Privacy", words, items)
