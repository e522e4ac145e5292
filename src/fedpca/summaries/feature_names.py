"""Names of features in messages: how those of two owners differ."""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from unicodedata import normalize

import numpy as np

from fedpca._typing import AnyArray
from fedpca._util.text import feature_label, join_names

if TYPE_CHECKING:
    from fedpca.summaries.base import BaseSummary

Names = tuple[str, ...]
SHOWN = 4  # names in a message


def quoted(names: Sequence[str], quote: Callable[[str], str] = repr) -> str:
    """Some names, for a message; anybody may have chosen them.

    >>> quoted(["age", "bmi", "dose", "ward", "room"])
    "'age', 'bmi', 'dose', 'ward' and 1 more"
    """
    shown = [quote(name)[:80] for name in names[:SHOWN]]
    return join_names([*shown, *names[SHOWN:]], SHOWN)


def difference(ours: Names, theirs: Names, option: str) -> str:
    """How names of features differ, and what to do: `option` is how to ask for the intersection.

    >>> print(difference(("age", "bmi"), ("age", "dose"), "--features intersection"))
    summaries must have the same features: only one has 'bmi', and only another 'dose'; select the same \
columns, or leave out what not all have with --features intersection.
    """
    mine, others = set(ours), set(theirs)
    one = [name for name in ours if name not in others]
    another = [name for name in theirs if name not in mine]
    if not one and not another and len(ours) == len(theirs):
        first, second = next(pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1])
        return (
            f"summaries must have the same features in the same order: one has {first!r:.80} where another "
            f"has {second!r:.80}; order the columns alike, or match them by name with {option}."
        )
    # é can be one letter or two.
    alike = {normalize("NFKC", name) for name in one} & {normalize("NFKC", name) for name in another}
    shown = [quoted(names, ascii if alike else repr) for names in (one, another) if names]
    what = f"got {len(ours)} and {len(theirs)}, some of them twice"
    if shown:
        what = f"only one has {', and only another '.join(shown)}"
    remedy = f", or leave out what not all have with {option}" if mine & others else ""
    return f"summaries must have the same features: {what}; select the same columns{remedy}."


def feature_labels(which: AnyArray, names: Sequence[str] | None) -> str:
    """The labels of some features, for a message.

    >>> feature_labels(np.array([True, False, True]), None)
    'feature 1, feature 3'
    """
    return join_names([feature_label(i, names) for i in np.flatnonzero(which).tolist()])


def warn_if_unknown(summary: "BaseSummary") -> None:
    """Warn of features without any observed value, by name."""
    unknown = ~summary.known
    if unknown.any() and summary.count:
        has = "has" if np.count_nonzero(unknown) == 1 else "have"
        warnings.warn(
            f"{feature_labels(unknown, summary.feature_names)} {has} no observed value: the model knows "
            "nothing about it. Merge it with one that does, or leave it out.",
            stacklevel=3,
        )
