"""The sections about a model: explained variance, loadings, privacy certificate."""

import numpy as np

from fedpca._util.text import format_number, sanitize
from fedpca.report.figures import FAINT, INK, MUTED, SERIES, canvas, integer_axis, legend
from fedpca.report.formatting import cell, percent, timestamp
from fedpca.report.layout import Chart, Choice, Section, Table
from fedpca.summaries.certificate import CORRECTED_SCALE, PRIVATE_SCALE, PUBLIC_SCALE, Certificate, noise_edge
from fedpca.summaries.subspace import Subspace

_MAX_COMPONENTS = 50
_MAX_LOADINGS = 15
_MAX_CHOICES = 6


def explained_variance(model: Subspace, n_shown: int) -> Section:
    """Scree plot and cumulative explained variance, with the noise edge of a private model."""
    name, title = "explained-variance", "Explained variance"
    if not n_shown:
        reason = "The rows have no variance" if model.certificate is None else "Nothing rises above the noise"
        return Section(name, title, (f"{reason}: there are no components.",), ())
    return Section(name, title, (), (_scree(model, n_shown), _cumulative(model, n_shown)))


def _scree(model: Subspace, n_shown: int) -> Chart:
    shares = model.explained_variance_ratio[:_MAX_COMPONENTS]
    components = np.arange(1, len(shares) + 1)
    figure, axes = canvas()
    width = min(0.8, 0.25 * len(shares))
    axes.bar(components[:n_shown], 100 * shares[:n_shown], width, color=SERIES[0], label="shown")
    if len(shares) > n_shown:
        axes.bar(components[n_shown:], 100 * shares[n_shown:], width, color=FAINT, label="kept for merging")
    caption = f"Component 1 explains {percent(shares[0])} of the variance"
    caption += (
        f", component {n_shown} explains {percent(shares[n_shown - 1])}."
        if 1 < n_shown <= len(shares)
        else "."
    )
    evaluated = model.certificate is not None and model.certificate.evaluation is not None
    edge = 0.0 if evaluated else noise_edge(model.certificate) / 2 / model.total
    if 0 < edge < np.inf:
        # Half the edge: the variances of a model are already shrunk by what noise adds to them.
        axes.axhline(100 * edge, color=SERIES[1], linestyle="--", linewidth=1.5, label="noise level")
        n_below = int(np.count_nonzero(shares[:n_shown] <= edge))
        caption += (
            f" Dashed line: noise level ({percent(edge)}). Components below it cannot be distinguished from "
            f"noise: {n_below or 'none'} of the {n_shown} shown."
        )
    axes.set(xlabel="component", ylabel="explained variance (%)")
    integer_axis(axes, len(shares))
    if len(axes.get_legend_handles_labels()[0]) > 1:
        legend(figure, columns=3)
    lines = [
        (
            str(component),
            format_number(float(value) ** 2 / max(model.count - 1, 1)),
            percent(share),
            "shown" if component <= n_shown else "kept for merging",
        )
        for component, value, share in zip(components, model.singular_values, shares, strict=False)
    ]
    numbers = Table("Explained variance", ("component", "variance", "explained", "status"), lines)
    return Chart("scree", "Scree plot", caption, figure, numbers)


def _cumulative(model: Subspace, n_shown: int) -> Chart:
    explained = np.cumsum(model.explained_variance_ratio[:_MAX_COMPONENTS])
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
            f"{percent(low)} to {percent(high)}. Longer rows: {percent(found.beyond)}."
        )
    elif not is_known:
        caption += " The discarded variance is unknown, because noise was added."
    elif model.discarded > 1e-9 * model.total:
        caption += f" Summarizing and merging discarded {percent(model.discarded / model.total)} of it."
        is_useful = bound < 1
        if is_useful.any():
            left, right = components[is_useful] - 0.4, components[is_useful] + 0.4
            axes.hlines(
                100 * bound[is_useful], left, right, color=MUTED, linewidth=1.5, label="exact PCA, at most"
            )
            legend(figure, columns=2)
            caption += " Gray marks: the most that exact PCA can explain."
    else:
        caption += " Summarizing and merging discarded nothing."
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


def loadings(model: Subspace, n_shown: int) -> Section:
    """The features with the largest loadings, by component."""
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
        paragraphs.append(f"The first {count} of {format_number(n_shown)} components are shown.")
    items = charts if count == 1 else [Choice("loadings", "Component", labels, charts)]
    return Section("loadings", "Loadings", paragraphs, items)


def _component_loadings(model: Subspace, i: int) -> Chart:
    weights = model.components[i].astype(float)
    order = np.argsort(-np.abs(weights), kind="stable")[:_MAX_LOADINGS]
    names = [_feature_name(model, int(feature)) for feature in order]
    values = weights[order]
    figure, axes = canvas(80 + 20 * len(order))
    bars = np.arange(len(order))
    axes.barh(bars, values, color=[SERIES[0] if weight >= 0 else SERIES[1] for weight in values], height=0.7)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(bars, [sanitize(name, 18) for name in names])
    axes.invert_yaxis()
    axes.set(xlabel=f"loading on component {i + 1}")
    axes.grid(visible=False, axis="y")
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


def _feature_name(model: Subspace, feature: int) -> str:
    return model.feature_names[feature] if model.feature_names else f"feature {feature + 1}"


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
    "bound": "rows were clipped to norm",
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
    "streaming-mod-sulq": "the Gram matrix of each batch (streaming MOD-SuLQ)",
    "mod-sulq": "the Gram matrix (MOD-SuLQ)",
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
