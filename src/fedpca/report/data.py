"""What readers of a page can explore, as JSON: tables of features and rows, and plots of their columns."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpca._typing import JSON, AnyArray, Array
from fedpca._util.text import feature_label, percent, sanitize
from fedpca.estimators.base import BasePCA
from fedpca.plot.groups import as_ramp, group_rows, labeled, ramp_labels
from fedpca.plot.rows import MAX_ARROWS, arrow_factor, axis_label, strip_heights, strongest
from fedpca.plot.style import RAMP, SERIES, name_limits
from fedpca.report.figures import UNIT, Limits, span
from fedpca.report.sample import MAX_SCORES, Sample
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.subspace import Subspace

MAX_FEATURES = 1000
STRIP_LETTERS = 14  # of the name of a strip
_MOST_LETTERS = 60
_STRONGEST = 15  # of each component, in any case
_MAX_NAMES = 18  # of features in a plot
_STEP = 100  # places from one color of a ramp to the next


def explorable(model: Subspace, n_shown: int, variances: Array | None, sample: Sample | None) -> JSON:
    """Everything that the page's script shows: tables, and plots of their columns.

    A column has `values` or `texts` per line, or both; or a text per code, in order, the `known` ones first,
    and `codes` per line. A plot has one state, or two to switch between; `drawn` are the limits of its
    picture. An axis has its coordinates in the first of its `columns`, and a point tells all of them.

    Args:
        n_shown: number of components shown; at most 20 of them can be explored.
        variances: of the features, of rows divided by any scale, shape (d,); None where they are unknown.
        sample: rows, or None: then there is nothing about any row.
    """
    count = min(n_shown, MAX_SCORES)
    shown = strongest_features(model, n_shown)
    weights = model.components[:count, shown].astype(float)
    variances = all_variances(model, variances)
    related = correlations(model, variances, count)[shown].T
    tables = {"features": _features(model, n_shown, shown, variances, weights, related)}
    plots = {"loadings": _loading_plot(weights, related)}
    if sample is not None:
        tables["rows"] = _rows(sample)
        plots["scores"] = _score_plot(model, sample, weights) if count > 1 else _strip_plot(model, sample)
        plots["outliers"] = _outlier_map(sample)
    shares = [percent(float(share)) for share in model.explained_variance_ratio[:count]]
    components = [f"{k} ({share})" for k, share in enumerate(shares, start=1)]
    return {"components": components, "tables": tables, "plots": plots}


def known_variances(model: object, subspace: Subspace) -> Array | None:
    """Variances of the features, of rows divided by any scale, where the model knows them exactly."""
    if isinstance(model, BasePCA):
        try:
            variances = model.var_ * subspace.count / degrees_of_freedom(subspace.count)
        except AttributeError:
            pass
        else:
            return variances if subspace.scale is None else variances / subspace.scale**2
    if subspace.certificate is None and subspace.discarded <= 1e-9 * subspace.total:
        return _kept(subspace, subspace.rank)
    return None


def strongest_features(model: Subspace, n_shown: int) -> AnyArray:
    """At most 1,000 features, those that vary most along the components first; with the strongest of each."""
    order = np.argsort(-_kept(model, n_shown), kind="stable")
    leading = [strongest(model.components[[k]], _STRONGEST) for k in range(min(n_shown, MAX_SCORES))]
    chosen = list(dict.fromkeys(np.concatenate([*leading, order[:MAX_FEATURES]]).tolist()))[:MAX_FEATURES]
    return order[np.isin(order, chosen)]


def _kept(model: Subspace, n_shown: int) -> Array:
    """Variance of each feature along the first components, shape (d,)."""
    scaled = model.singular_values[:n_shown, None] * model.components[:n_shown].astype(float)
    return np.square(scaled).sum(axis=0) / degrees_of_freedom(model.count)


def all_variances(model: Subspace, known: Array | None) -> Array:
    """Variances of the features, shape (d,); where unknown, what the components lack is spread evenly."""
    if known is not None:
        return known
    spread = model.discarded / degrees_of_freedom(model.count) / max(model.n_known, 1)
    return _kept(model, model.rank) + spread * model.known


def correlations(model: Subspace, variances: Array, n_shown: int) -> Array:
    """Of features with the first components, shape (d, n_shown); 0 for features without variance."""
    deviations = model.singular_values[:n_shown, None] / np.sqrt(degrees_of_freedom(model.count))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = model.components[:n_shown].astype(float) * deviations / np.sqrt(variances)
    return np.clip(np.nan_to_num(found, posinf=0, neginf=0), -1, 1).T


# --- tables ---


def _features(
    model: Subspace, n_shown: int, shown: AnyArray, variances: Array, weights: Array, related: Array
) -> JSON:
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.nan_to_num(np.clip(_kept(model, n_shown) / variances, 0, 1))[shown]
    units = variances if model.scale is None else variances * model.scale**2
    names = [sanitize(feature_label(int(feature), model.feature_names), _MOST_LETTERS) for feature in shown]
    columns = [
        _texts("feature", names),
        *(_numbers(f"loading on {k}", each) | {"absolute": True} for k, each in enumerate(weights, start=1)),
        *(
            _numbers(f"correlation with {k}", each.round(3)) | {"hidden": True}
            for k, each in enumerate(related, start=1)
        ),
        _numbers("explained", shares) | {"texts": [percent(float(share)) for share in shares]},
        _numbers("variance", units[shown]),
    ]
    return {"size": len(shown), "columns": columns}


def _rows(sample: Sample) -> JSON:
    far = np.stack([sample.t2 > sample.t2_limit, sample.spe > sample.spe_limit], axis=1)
    columns = [
        {"name": "row", "values": sample.numbers.tolist()},
        *(_passthrough(name, texts) for name, texts in sample.columns.items()),
        *(_numbers(f"component {k}", scores) for k, scores in enumerate(sample.scores.T, start=1)),
        _numbers("T²", sample.t2),
        _numbers("SPE", sample.spe),
        _texts("above the limit of", [", ".join(np.array(["T²", "SPE"])[each]) for each in far]),
    ]
    if sample.scores.shape[1] == 1:
        heights = strip_heights(sample.groups, len(far))
        columns.append(_numbers("", heights.round(3)) | {"hidden": True})
    color = 1 + list(sample.columns).index(sample.color) if sample.color in sample.columns else 0
    return {"size": len(far), "columns": columns, "color": color}


def _numbers(name: str, values: Array) -> JSON:
    return {"name": name, "number": True, "values": _list(values)}


def _texts(name: str, texts: Sequence[str]) -> JSON:
    """A column of texts, in the order in which people expect them."""
    different, codes = np.unique(np.array(texts, dtype=str), return_inverse=True)
    return _coded(name, different, codes, _natural_order(different), np.count_nonzero(different != ""))


def _coded(name: str, different: AnyArray, codes: AnyArray, order: AnyArray, known: Any) -> JSON:
    return {
        "name": sanitize(name, _MOST_LETTERS),
        "texts": [str(text) for text in different[order]],
        "codes": np.argsort(order)[codes].tolist(),
        "known": int(known),
    }


def _natural_order(texts: AnyArray) -> AnyArray:
    """9 before 10, and none last."""
    parts = [re.split(r"(\d+)", text.casefold()) for text in texts]
    keys = [[int(part) if i % 2 else part for i, part in enumerate(each)] for each in parts]
    return np.array(sorted(range(len(texts)), key=lambda i: (texts[i] == "", keys[i])), dtype=int)


def _passthrough(name: str, texts: AnyArray) -> JSON:
    """A passthrough column, and how it colors rows: by group, or by their places on a ramp of colors."""
    different, first, codes = np.unique(texts.astype(str), return_index=True, return_inverse=True)
    shown = np.array([sanitize(_shortened(text), _MOST_LETTERS) for text in different])
    if (ramp := as_ramp(different.astype(object))) is not None:
        kind, values = ramp
        order, known = np.argsort(values), ~np.isnan(values)
        of_rows = values[codes][known[codes]]
        lowest, highest = of_rows.min(), of_rows.max()
        low, high = np.quantile(of_rows, [0.01, 0.99], method="nearest")
        low, high = (low, high) if low < high else (lowest, highest)
        middle = (low + high) / 2
        middle = middle if abs(middle) > 1e-9 * (high - low) else 0.0
        ends = ramp_labels(kind, np.array([low, middle, high]))
        if kind == "number":
            ends = [text.replace("-", "\N{MINUS SIGN}") for text in ends]
        ends = [("≤ " if lowest < low else "") + ends[0], ends[1], ("≥ " if highest > high else "") + ends[2]]
        top = (len(RAMP) - 1) * _STEP
        places = np.clip((values[order] - low) / (high - low) * top, 0, top - 1)
        return _coded(name, shown, codes, order, np.count_nonzero(known)) | {
            "places": [None if np.isnan(place) else int(place) for place in places],
            "ends": ends,
        }
    order = _natural_order(different)
    groups = group_rows(texts)
    return _coded(name, shown, codes, order, np.count_nonzero(different != "")) | {
        "groups": [next(i for i, group in enumerate(groups) if group.mask[row]) for row in first[order]],
        "labels": [group.name for group in labeled(groups, _MOST_LETTERS)],
        "colors": [SERIES.index(group.color) + 1 if group.color in SERIES else 0 for group in groups],
        "sizes": [int(group.mask.sum()) for group in groups],
    }


# --- plots ---


def _loading_plot(weights: Array, related: Array) -> JSON:
    """Features by their loadings, and by their correlations; with the same unit on both axes."""
    count = len(weights)
    of_weights, of_related = np.arange(1, 2 * count + 1).reshape(2, count)
    reach, turns = np.abs(weights).max(initial=0.0), np.linspace(0, 2 * np.pi, 120)
    limits = span([-reach, reach])
    by_weight = [
        _axis(f"loading on component {k + 1}", limits, of_weights[k], of_related[k]) for k in range(count)
    ]
    by_correlation = [
        _axis(f"correlation with component {k + 1}", UNIT, of_related[k], of_weights[k]) for k in range(count)
    ]
    return {
        "table": "features",
        "facts": [0, 2 * count + 1],
        "guides": [[_list(np.cos(turns)), _list(np.sin(turns))], _up(0.0), _across(0.0)],
        "toggle": "Correlation circle",
        "states": [
            {"axes": by_weight, "names": _strongest(weights, _MAX_NAMES, of_weights)},
            {"axes": by_correlation, "names": _strongest(related, _MAX_NAMES, of_related)},
        ],
    }


def _score_plot(model: Subspace, sample: Sample, weights: Array) -> JSON:
    """Rows by their scores, without and with arrows for features."""
    count, first = len(weights), 1 + len(sample.columns)
    axes = [_axis(axis_label(model, k), span(scores), first + k) for k, scores in enumerate(sample.scores.T)]
    reach = np.abs(sample.scores).max(axis=0)
    wide = [
        axis | {"range": span([*axis["range"], -most, most])} for axis, most in zip(axes, reach, strict=True)
    ]
    names = _strongest(weights, MAX_ARROWS, np.arange(1, count + 1))
    factors = [
        [
            _rounded(arrow_factor(sample.scores[:, [p, q]], weights[[p, q]][:, features]))
            for q, features in enumerate(some, start=p + 1)
        ]
        for p, some in enumerate(names["order"])
    ]
    return _of_rows(sample, axes) | {
        "toggle": "Features as arrows (biplot)",
        "states": [{"axes": axes}, {"axes": wide, "names": names | {"factors": factors}}],
    }


def _strip_plot(model: Subspace, sample: Sample) -> JSON:
    """Rows by their only score, in a strip per group of the column that they are colored by at first."""
    first = 1 + len(sample.columns)
    names = [group.name for group in labeled(sample.groups, STRIP_LETTERS)]
    across = _axis(axis_label(model, 0), span(sample.scores[:, 0]), first)
    up = _axis(sanitize(sample.color, 30), name_limits(max(len(names), 1)), first + 4)
    up["ticks"] = list(enumerate(names))
    return _of_rows(sample, [across, up])


def _outlier_map(sample: Sample) -> JSON:
    """Rows by T² and SPE, on logarithmic axes."""
    t2 = 1 + len(sample.columns) + sample.scores.shape[1]
    (far, t2_limits), (off, spe_limits) = sample.map_axes
    across = _axis("Hotelling's T²", t2_limits, t2) | {"least": far}
    up = _axis("SPE (squared prediction error)", spe_limits, t2 + 1) | {"least": off}
    guides = [_up(np.log10(sample.t2_limit))] if sample.t2_limit < np.inf else []
    guides += [_across(np.log10(sample.spe_limit))] if sample.spe_limit < np.inf else []
    without = np.flatnonzero(~sample.on_map).tolist()
    return _of_rows(sample, [across, up]) | {"guides": guides, "without": without}


def _up(at: float) -> list[Any]:
    """A line across the frame, as its coordinates; None is the edge of the frame."""
    return [[_rounded(at)] * 2, [None, None]]


def _across(at: float) -> list[Any]:
    return [[None, None], [_rounded(at)] * 2]


def _axis(label: str, limits: Limits, *columns: int) -> JSON:
    return {"label": label, "range": limits, "columns": [int(column) for column in columns]}


def _of_rows(sample: Sample, axes: Sequence[JSON]) -> JSON:
    return {"table": "rows", "facts": list(range(1 + len(sample.columns))), "states": [{"axes": axes}]}


def _strongest(weights: Array, count: int, columns: AnyArray) -> JSON:
    """The features that are strongest along two components: `order` is by the first, then the second."""
    order = [
        [strongest(weights[[p, q]], count).tolist() for q in range(p + 1, len(weights))]
        for p in range(len(weights))
    ]
    return {"columns": columns.tolist(), "order": order}


def _shortened(text: str) -> str:
    """Six digits of a decimal with more than eight characters, anything else as it is."""
    try:
        return f"{float(text):.6g}" if "." in text and len(text) > 8 else text
    except ValueError:
        return text


def _list(values: Array) -> list[float | None]:
    return [_rounded(value) for value in values]


def _rounded(value: Any, digits: int = 5) -> float | None:
    """A number with few digits, which take little room; None if it is not finite."""
    if not np.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short
