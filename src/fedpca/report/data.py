"""The numbers that readers of a page can explore, as JSON: components, features, rows if there are any."""

from typing import Any

import numpy as np

from fedpca._typing import JSON, AnyArray, Array
from fedpca._util.text import feature_label, percent, sanitize
from fedpca.estimators.base import BasePCA
from fedpca.plot.groups import as_ramp, group_rows, labeled
from fedpca.plot.rows import strongest
from fedpca.plot.style import SERIES
from fedpca.report.sample import MAX_SCORES, Sample
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.subspace import Subspace

MAX_FEATURES = 1000
_MOST_LETTERS = 60
_STRONGEST = 15  # of each component, in any case


def explorable(model: Subspace, n_shown: int, variances: Array | None, sample: Sample | None) -> JSON:
    """Everything that the page's script shows.

    Args:
        n_shown: number of components shown; at most 20 of them can be explored.
        variances: of the features, of rows divided by any scale, shape (d,); None where they are unknown.
        sample: rows, or None: then there is nothing about any row.
    """
    count = min(n_shown, MAX_SCORES)
    degrees = degrees_of_freedom(model.count)
    components = [
        {"share": percent(float(share)), "deviation": _rounded(value / np.sqrt(degrees))}
        for share, value in zip(model.explained_variance_ratio, model.singular_values[:count], strict=False)
    ]
    return {
        "components": components,
        "features": _features(model, n_shown, variances),
        "rows": None if sample is None else _rows(sample),
    }


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
    leading = [strongest(model, [k], _STRONGEST) for k in range(min(n_shown, MAX_SCORES))]
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


def _features(model: Subspace, n_shown: int, variances: Array | None) -> JSON:
    shown = strongest_features(model, n_shown)
    variances = all_variances(model, variances)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.nan_to_num(np.clip(_kept(model, n_shown) / variances, 0, 1))[shown]
    units = variances if model.scale is None else variances * model.scale**2
    return {
        "names": [
            sanitize(feature_label(int(feature), model.feature_names), _MOST_LETTERS) for feature in shown
        ],
        "loadings": [
            _list(model.components[k, shown].astype(float)) for k in range(min(n_shown, MAX_SCORES))
        ],
        "variance": _list(variances[shown]),
        "units": _list(units[shown]),
        "shares": _list(shares),
        "explained": [percent(float(share)) for share in shares],
    }


def _rows(sample: Sample) -> JSON:
    return {
        "number": sample.numbers.tolist(),
        "scores": [_list(column) for column in sample.scores.T],
        "t2": _list(sample.t2),
        "spe": _list(sample.spe),
        "limits": [_rounded(limit) for limit in (sample.t2_limit, sample.spe_limit)],
        "columns": [_column(name, texts) for name, texts in sample.columns.items()],
        "color": list(sample.columns).index(sample.color) if sample.color in sample.columns else -1,
    }


def _column(name: str, texts: AnyArray) -> JSON:
    """A passthrough column: its different values, which row has which, and how to color by them."""
    different, first, codes = np.unique(texts.astype(str), return_index=True, return_inverse=True)
    column: JSON = {
        "name": sanitize(name, _MOST_LETTERS),
        "texts": [sanitize(_shortened(text), _MOST_LETTERS) for text in different],
        "codes": codes.tolist(),
    }
    if (ramp := as_ramp(different.astype(object))) is not None:
        kind, values = ramp
        return column | {"kind": kind, "values": [_rounded(value, 12) for value in values]}
    groups = group_rows(texts)
    of_value = [next(i for i, group in enumerate(groups) if group.mask[row]) for row in first]
    labels = [group.name for group in labeled(groups, _MOST_LETTERS)]
    colors = [SERIES.index(group.color) + 1 if group.color in SERIES else 0 for group in groups]
    return column | {"kind": "category", "groups": of_value, "labels": labels, "colors": colors}


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
