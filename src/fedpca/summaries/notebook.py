"""What a notebook shows of a model: a few facts, as HTML without scripts; `fedpca.plot` draws."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from fedpca._util.text import percent, pluralize, sanitize

if TYPE_CHECKING:
    from fedpca.summaries.base import BaseSummary
    from fedpca.summaries.subspace import Subspace


def card(
    title: str,
    summary: "BaseSummary",
    subspace: "Subspace | None" = None,
    n_shown: int = 0,
    more: Sequence[str] = (),
) -> str:
    """Facts about a summary; about its directions, where they are known, and how many of them are shown."""
    facts = [pluralize(summary.count, "row"), pluralize(summary.n_features, "feature")]
    if subspace is not None:
        explained = percent(float(subspace.explained_variance_ratio[:n_shown].sum()))
        share = f", {explained} of the variance" if n_shown else ""
        facts.append(f"{pluralize(n_shown, 'component')}{share}")
    if summary.scale is not None:
        facts.append("features divided by their scale")
    facts += more
    if summary.certificate is not None:
        facts.append(summary.certificate.describe())
    text = " · ".join(escape(sanitize(fact, 200)) for fact in facts)
    return (
        '<div style="display:inline-block;max-width:100%;padding:.5em .8em;border:1px solid '
        'rgba(128,128,128,.4);border-radius:6px;font:13px/1.5 system-ui,sans-serif">'
        f"<div><strong>{escape(sanitize(title, 80))}</strong></div><div>{text}</div></div>"
    )
