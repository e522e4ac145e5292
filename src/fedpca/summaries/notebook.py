"""What a notebook shows of a summary: a few facts and a scree plot, as HTML without scripts.

Text has the notebook's own color, and bars one that is visible on light and on dark pages.
"""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from fedpca._util.text import format_number, percent, pluralize, sanitize

if TYPE_CHECKING:
    from fedpca.summaries.base import BaseSummary
    from fedpca.summaries.subspace import Subspace

_MOST_BARS = 40
_MOST_FEATURES = 512  # of moments, whose directions take a decomposition
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 320, 110, 44, 8, 8, 18
_SHOWN, _CARRIED = "#3f7fd6", "#868e98"


def summary_card(summary: "BaseSummary") -> str:
    """A summary as HTML."""
    is_cheap = summary.kind == "subspace" or summary.n_features <= _MOST_FEATURES
    subspace = summary.subspace() if is_cheap else None
    n_shown = None if subspace is None else subspace.rank
    return card(type(summary).__name__, summary, subspace, n_shown)


def card(
    title: str,
    summary: "BaseSummary",
    subspace: "Subspace | None",
    n_shown: int | None,
    more: Sequence[str] = (),
) -> str:
    """Facts about a summary, and the scree plot of its directions.

    Args:
        title: in bold.
        summary: what rows, features, scale and certificate are taken from.
        subspace: the directions, or None where they are not known yet.
        n_shown: how many of them are shown; bars of the others are gray.
        more: further facts.
    """
    facts = [pluralize(summary.count, "row"), pluralize(summary.n_features, "feature")]
    if subspace is not None and n_shown is not None:
        explained = float(subspace.explained_variance_ratio[:n_shown].sum())
        share = f", {percent(explained)} of the variance" if n_shown else ""
        facts.append(f"{pluralize(n_shown, 'component')}{share}")
    if summary.scale is not None:
        facts.append("features divided by their scale")
    facts += more
    if summary.certificate is not None:
        facts.append(summary.certificate.describe())
    text = " · ".join(escape(sanitize(fact, 200)) for fact in facts)
    picture = "" if subspace is None else _scree(subspace, n_shown or 0)
    return (
        '<div style="display:inline-block;max-width:100%;padding:.5em .8em;border:1px solid '
        'rgba(128,128,128,.4);border-radius:6px;font:13px/1.5 system-ui,sans-serif">'
        f"<div><strong>{escape(sanitize(title, 80))}</strong></div><div>{text}</div>{picture}</div>"
    )


def _scree(subspace: "Subspace", n_shown: int) -> str:
    """Bars of the explained variance; nothing without variance."""
    shares = [float(share) for share in subspace.explained_variance_ratio[:_MOST_BARS]]
    if not shares or shares[0] <= 0:
        return ""
    floor = _HEIGHT - _BOTTOM
    step = min((_WIDTH - _LEFT - _RIGHT) / len(shares), 40)
    bars = []
    for i, share in enumerate(shares):
        tall = max((floor - _TOP) * share / shares[0], 0.5)
        bars.append(
            f'<rect x="{_LEFT + (i + 0.1) * step:.1f}" y="{floor - tall:.1f}" width="{0.8 * step:.1f}" '
            f'height="{tall:.1f}" fill="{_SHOWN if i < n_shown else _CARRIED}">'
            f"<title>component {i + 1}: {percent(share)}</title></rect>"
        )
    first = percent(shares[0])
    last = "" if len(shares) == 1 else _label(_LEFT + (len(shares) - 0.5) * step, len(shares))
    rest = subspace.rank - len(shares)
    label = f"Scree plot: component 1 explains {first} of the variance"
    label += f", component {len(shares)} {percent(shares[-1])}." if len(shares) > 1 else "."
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" style="display:block;max-width:100%;margin-top:.4em" font-size="11" '
        f'fill="currentColor"><title>{escape(label)}</title>{"".join(bars)}'
        f'<path d="M{_LEFT} {_TOP}V{floor}H{_WIDTH}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
        f'<text x="{_LEFT - 5}" y="{_TOP + 8}" text-anchor="end">{first}</text>'
        f'<text x="{_LEFT - 5}" y="{floor}" text-anchor="end">0</text>'
        f"{_label(_LEFT + 0.5 * step, 1)}{last}</svg>"
        + (f"<div>{format_number(rest)} more directions are not drawn.</div>" if rest > 0 else "")
    )


def _label(x: float, component: int) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 5}" text-anchor="middle">{component}</text>'
