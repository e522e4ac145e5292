"""The sections about a model: explained variance, loadings, privacy certificate."""

import numpy as np

from fedpca._typing import Array
from fedpca._util.text import feature_label, format_number, percent, sanitize
from fedpca.plot.model import (
    MAX_COMPONENTS,
    MAX_LOADINGS,
    draw_loadings,
    draw_scree,
    noise_level,
)
from fedpca.plot.names import draw_names
from fedpca.plot.style import FAINT, MUTED, SERIES, integer_axis, legend, scatter
from fedpca.report.data import MAX_FEATURES, all_variances, correlations, strongest_features
from fedpca.report.figures import UNIT, WIDTH, ZOOMED, canvas
from fedpca.report.formatting import cell, timestamp
from fedpca.report.layout import Chart, Choice, Explorer, Section, Table
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.certificate import CORRECTED_SCALE, PRIVATE_SCALE, PUBLIC_SCALE, Certificate
from fedpca.summaries.subspace import Subspace

_MAX_CHOICES = 6


def explained_variance(model: Subspace, n_shown: int) -> Section:
    """Scree plot and cumulative explained variance, with the noise edge of a private model."""
    name, title = "explained-variance", "Explained variance"
    if not n_shown:
        reason = "The rows have no variance" if model.certificate is None else "Nothing rises above the noise"
        return Section(name, title, (f"{reason}: there are no components.",), ())
    return Section(name, title, (), (_scree(model, n_shown), _cumulative(model, n_shown)))


def _scree(model: Subspace, n_shown: int) -> Chart:
    shares = model.explained_variance_ratio[:MAX_COMPONENTS]
    components = np.arange(1, len(shares) + 1)
    figure, axes = canvas()
    draw_scree(axes, model, n_shown)
    caption = f"Component 1 explains {percent(shares[0])} of the variance"
    caption += (
        f", component {n_shown} explains {percent(shares[n_shown - 1])}."
        if 1 < n_shown <= len(shares)
        else "."
    )
    if level := noise_level(model):
        n_below = int(np.count_nonzero(shares[:n_shown] <= level))
        caption += (
            f" Dashed line: noise level ({percent(level)}). Components below it cannot be distinguished from "
            f"noise: {n_below or 'none'} of the {n_shown} shown."
        )
    if len(axes.get_legend_handles_labels()[0]) > 1:
        legend(figure, columns=3)
    lines = [
        (
            str(component),
            format_number(float(value) ** 2 / degrees_of_freedom(model.count)),
            percent(share),
            "shown" if component <= n_shown else "kept for merging",
        )
        for component, value, share in zip(components, model.singular_values, shares, strict=False)
    ]
    numbers = Table("Explained variance", ("component", "variance", "explained", "status"), lines)
    return Chart("scree", "Scree plot", caption, figure, numbers)


def _cumulative(model: Subspace, n_shown: int) -> Chart:
    explained = np.cumsum(model.explained_variance_ratio[:MAX_COMPONENTS])
    bound = np.minimum(explained + model.discarded / model.total, 1.0)
    components = np.arange(1, len(explained) + 1)
    is_known = model.certificate is None  # noise may exceed the discarded variance
    figure, axes = canvas()
    total = float(model.explained_variance_ratio[:n_shown].sum())
    together = f"The first {format_number(n_shown)} components together explain"
    caption = together if n_shown > 1 else "The first component explains"
    caption += f" {percent(total)} of the variance."
    axes.plot(components, 100 * explained, "o-", color=SERIES[0], ms=4, linewidth=1.8, label="this model")
    if model.certificate is not None and (found := model.certificate.evaluation) is not None:
        _, low, high = found.explained(n_shown)
        caption += (
            f" Measured privately, of rows clipped to length {format_number(found.radius)}: 95 % interval "
            f"{percent(low)} to {percent(high)}. Longer rows: {percent(found.beyond)}.{found.not_counted}"
        )
    elif not is_known:
        caption += " The discarded variance is unknown, because noise was added."
    elif model.discarded > 1e-9 * model.total:
        caption += f" Directions that the model does not carry have {percent(model.discarded / model.total)}."
        is_useful = bound < 1
        if is_useful.any():
            left, right = components[is_useful] - 0.4, components[is_useful] + 0.4
            axes.hlines(
                100 * bound[is_useful], left, right, color=MUTED, linewidth=1.5, label="exact PCA, at most"
            )
            legend(figure, columns=2)
            caption += " Gray marks: the most that exact PCA can explain, had these been carried."
    else:
        caption += " The model carries all directions."
    if len(explained) > n_shown:
        axes.axvline(n_shown, color=MUTED, linestyle=":", linewidth=1.2)
    axes.set(xlabel="number of components", ylabel="explained variance (%)", ylim=(0, 104))
    integer_axis(axes, len(explained))
    lines = [
        (str(component), percent(float(low)), percent(float(high)) if is_known else "unknown")
        for component, low, high in zip(components, explained, bound, strict=True)
    ]
    title = "Cumulative explained variance"
    numbers = Table(title, ("components", "this model", "exact PCA, at most"), lines)
    return Chart("cumulative", title, caption, figure, numbers)


def loadings(model: Subspace, n_shown: int, variances: Array | None) -> Section:
    """The features with the largest loadings, by component; a loading plot; a table of features.

    Args:
        variances: of the features, of rows divided by any scale, shape (d,); None where they are unknown.
    """
    count = min(n_shown, _MAX_CHOICES)
    charts = [_component_loadings(model, i) for i in range(count)]
    labels = [str(i + 1) for i in range(count)]
    paragraphs = ["The weight of each feature in a component. The overall sign of a component is arbitrary."]
    if model.scale is not None:
        paragraphs.append(
            "Every feature was divided by its scale before the components were computed, so loadings compare "
            "features in units of their scales."
        )
    if n_shown > count:
        paragraphs.append(f"Bars show the first {count} of {format_number(n_shown)} components.")
    bars = charts if count == 1 else [Choice("loadings", "Component", labels, charts)]
    table = _features(model, variances is not None)
    return Section("loadings", "Loadings", paragraphs, [*_plane(model, n_shown, variances), *bars, table])


def _plane(model: Subspace, n_shown: int, variances: Array | None) -> list[Explorer]:
    if n_shown < 2:
        return []
    circle = _circle(model, all_variances(model, variances))
    caption = (
        "Each point is a feature. Features that lie close together, far from the center, vary together. In "
        "the correlation circle, one on the circle varies along the two components alone."
    )
    caption += _selection(model, "shown")
    return [Explorer("loadings", "Loading plot", caption, circle)]


def _circle(model: Subspace, variances: Array) -> Chart:
    """Correlations of the features that vary most along two components with these."""
    shown = strongest_features(model, 2)
    points = correlations(model, variances, 2)[shown]
    figure, axes = canvas(WIDTH)
    turns = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turns), np.sin(turns), color=FAINT, linewidth=1.2, gid="guide-circle")
    axes.axvline(0, color=FAINT, linewidth=1.2, gid="guide-x")
    axes.axhline(0, color=FAINT, linewidth=1.2, gid="guide-y")
    scatter(axes, points[:, 0], points[:, 1], [("features", SERIES[0], np.ones(len(points), dtype=bool))])
    labels = [f"correlation with component {i + 1}" for i in range(2)]
    axes.set(xlim=UNIT, ylim=UNIT, xlabel=labels[0], ylabel=labels[1])
    axes.set_aspect("equal")
    axes.yaxis.labelpad = ZOOMED
    order = np.argsort(-np.hypot(*points.T), kind="stable")[:MAX_LOADINGS]
    names = [feature_label(int(shown[i]), model.feature_names) for i in order]
    draw_names(axes, points[order], names)
    caption = (
        "Each point is a feature. One on the circle varies along the two components alone; features that lie "
        "close together, far from the center, vary together."
    )
    lines = [
        (sanitize(name, 60), *(f"{value:+.3f}" for value in point))
        for name, point in zip(names, points[order], strict=True)
    ]
    title = "Correlation circle of components 1 and 2"
    return Chart(
        "circle",
        title,
        caption + _selection(model, "shown"),
        figure,
        Table(title, ("feature", *labels), lines),
    )


def _selection(model: Subspace, how: str) -> str:
    """Which features explorers have, if not all."""
    if model.n_features <= MAX_FEATURES:
        return ""
    most, all_features = format_number(MAX_FEATURES), format_number(model.n_features)
    return f" The {most} of {all_features} features that vary most along the components are {how}."


def _features(model: Subspace, variances_known: bool) -> Explorer:
    caption = "Explained is the share of a feature's variance along the components of this page."
    caption += _selection(model, "listed")
    if not variances_known:
        caption += (
            " The model does not know the variance of each feature: what lies outside its components is "
            "taken to be spread evenly over all."
        )
    return Explorer("features", "Features", caption)


def _component_loadings(model: Subspace, i: int) -> Chart:
    figure, axes = canvas(80 + 20 * min(MAX_LOADINGS, model.n_features))
    order = draw_loadings(axes, model, i)
    weights = model.components[i].astype(float)
    names = [feature_label(int(feature), model.feature_names) for feature in order]
    values = weights[order]
    caption = f"The largest absolute loading is that of {sanitize(names[0], 40)}."
    if len(weights) > len(order):
        share = float(np.square(values).sum())
        caption += (
            f" The {len(order)} of {format_number(len(weights))} features shown account for {percent(share)} "
            "of the squared loadings."
        )
    columns = [[sanitize(name, 60) for name in names], [f"{weight:+.4g}" for weight in values]]
    heads = ["feature", "loading"]
    if model.scale is not None:
        columns.append([f"{number:.4g}" for number in model.scale[order]])
        heads.append("scale")
    title = f"Loadings of component {i + 1}"
    lines = list(zip(*columns, strict=True))
    return Chart(f"loadings-{i + 1}", title, caption, figure, Table(title, heads, lines))


_LABELS = {
    "epsilon": "epsilon",
    "delta": "delta",
    "mu": "mu (Gaussian DP)",
    "unit": "protected unit",
    "adjacency": "neighboring data sets differ in",
    "mechanism": "noise was added to",
    "calibration": "noise calibration",
    "sampler": "noise sampler",
    "scale": "features were divided by",
    "clipping": "rows were clipped to",
    "bound": "rows were clipped to length",
    "center": "center subtracted from rows",
    "sensitivity": "sensitivity to one record, of clipped rows of length one",
    "sigma": "standard deviation of the noise, of clipped rows of length one",
    "noise_edge": "largest eigenvalue of the noise",
    "records": "records",
    "merged": "releases merged",
    "assumes": "assumption",
    "public": "not protected",
}
_VALUES = {
    "replace-one": "one record, replaced by any other",
    "zero-out": "one record, replaced by the center",
    "gram": "the Gram matrix",
    "sketch": "a random sketch of the Gram matrix",
    "analytic": "analytic Gaussian mechanism",
    "public": "a public vector",
    "private": "the mean, estimated privately",
    "none: about the origin": "none",
    "none: differences of pairs": "none: differences of random pairs of rows were taken",
    "sphere": "length one, all of them",
    "ball, differences of pairs": "a length, of differences of random pairs",
    "sphere, differences of pairs": "length one, differences of random pairs",
}
_SCALES = {
    PUBLIC_SCALE: "public numbers",
    PRIVATE_SCALE: "their standard deviations, estimated privately",
    CORRECTED_SCALE: "their standard deviations, estimated privately",
}


def certificate_section(certificate: Certificate) -> Section:
    """The privacy certificate of a model, as its file states it."""
    epsilon, delta = cell(certificate.epsilon), cell(certificate.delta)
    paragraphs = [
        f"According to its certificate, the model is differentially private (epsilon={epsilon}, "
        f"delta={delta}): it reveals little about any one record, even to someone who knows all others."
        if certificate.private
        else "According to its certificate, the model is NOT private.",
        "The certificate is a statement by whoever made the model. This page does not verify it.",
    ]
    paragraphs += [f"Warning: {sanitize(text, 200)}." for text in certificate.warnings[:10]]
    if (found := certificate.evaluation) is not None and isinstance(certificate.bound, float):
        paragraphs.append(
            f"There are two lengths. Rows were clipped to {cell(certificate.bound)} to find components, and "
            f"to {cell(found.radius)} to measure what they explain: that is a few numbers, which need less "
            "noise, so that fewer rows have to be clipped."
        )
    stated = certificate.to_json()
    lines = [
        (label, _SCALES.get(stated[name], "") if name == "scale" else _value(stated[name]))
        for name, label in _LABELS.items()
        if stated.get(name) not in (None, "") and (name, stated[name]) != ("clipping", "ball")
    ]
    items = [Table("Certificate", ("property", "value"), lines)]
    if certificate.steps:
        steps = [
            (step.step, cell(step.mu), percent(step.mu**2 / certificate.mu**2 if certificate.mu else 0.0))
            for step in certificate.steps
        ]
        items.append(Table("Noisy sums", ("sum", "mu", "share of the budget, mu²"), steps))
    if certificate.releases:
        columns = ("release", "records", "epsilon", "delta", "time")
        releases = [
            (*(cell(getattr(release, name)) for name in columns[:-1]), timestamp(release.time or ""))
            for release in certificate.releases
        ]
        items.append(Table("Releases", columns, releases))
    return Section("privacy", "Privacy certificate", paragraphs, items)


def _value(value: object) -> str:
    """A value of a certificate in words; " | " separates those of a merge."""
    if not isinstance(value, str):
        return cell(value)
    return cell("; ".join(_VALUES.get(text, text) for text in value.split(" | ")))
