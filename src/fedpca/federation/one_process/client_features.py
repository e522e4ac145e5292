"""Which features clients merge: those of most of them, or those that all have."""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from fedpca._typing import AnyArray, RowsLike
from fedpca.estimators.base import BasePCA
from fedpca.summaries import validation
from fedpca.summaries.features import FeatureRule, LeftOut, columns_of, common_names, intersect, require_names
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.summary import Summary

_Value = TypeVar("_Value", bound=Hashable)


def features_of_most(
    votes: Iterable[tuple[int, tuple[str, ...] | None, float]],
) -> tuple[int, tuple[str, ...] | None]:
    """The number and names of the features of most clients; of as many, of those with more rows."""
    votes = list(votes)
    n_features = _most_frequent((number, rows) for number, _, rows in votes)
    named = [(names, rows) for number, names, rows in votes if number == n_features and names is not None]
    return n_features, _most_frequent(named) if named else None


def _most_frequent(votes: Iterable[tuple[_Value, float]]) -> _Value:
    """The value with most votes; of as many, the one whose votes weigh most, and then the first."""
    counted: dict[_Value, tuple[int, float]] = {}
    for value, weight in votes:
        number, total = counted.get(value, (0, 0.0))
        counted[value] = number + 1, total + weight
    return max(counted, key=counted.__getitem__)


def common_features(
    sent: Mapping[str, Summary], problems: dict[str, str]
) -> tuple[dict[str, Summary], dict[str, LeftOut | None]]:
    """What clients sent, of the features that all have, and what each has lost.

    Clients whose features have no names are left out, and added to the problems; none may be left.
    """
    named = {}
    for name, summary in sent.items():
        try:
            require_names(summary.feature_names, "the client")
            named[name] = summary
        except ValueError as error:
            problems[name] = str(error)
    if not named:
        return {}, {}
    chosen, lost = intersect(list(named.values()), [repr(name) for name in named])
    return dict(zip(named, chosen, strict=True)), dict(zip(named, lost, strict=True))


def shared_columns(
    scalings: Mapping[str, Scaling], rule: FeatureRule
) -> tuple[tuple[str, ...] | None, dict[str, AnyArray]]:
    """The names of the features to merge, and where they are, by client; clients that will not merge have
    none."""
    if rule == "intersection":
        named = {name: each for name, each in scalings.items() if each.feature_names}
        names = common_names(list(named.values()), [repr(name) for name in named]) if named else ()
        return names, {name: columns_of(each.feature_names or (), names) for name, each in named.items()}
    votes = [(each.n_features, each.feature_names, each.observed.max()) for each in scalings.values()]
    n_features, usual = features_of_most(votes) if votes else (0, None)
    return usual, {
        name: np.arange(n_features)
        for name, each in scalings.items()
        if each.n_features == n_features and each.feature_names in (None, usual)
    }


def shared_center(client: BasePCA, rule: FeatureRule) -> Hashable:
    """What clients that share a center have in common: their number of features or, if others are merged
    too, their names."""
    if rule == "intersection" and hasattr(client, "feature_names_in_"):
        return tuple(client.feature_names_in_)
    return client.n_features_in_


def require_the_same_names(tables: Mapping[str, RowsLike]) -> None:
    """Before anything is spent: private clients of different columns would find different scales."""
    named = {name: names for name, rows in tables.items() if (names := validation.names_of(rows)) is not None}
    first = next(iter(named), "")
    other = next((name for name, names in named.items() if names != named[first]), None)
    if other is not None:
        raise ValueError(
            f"scale='std' with privacy is found for all clients together, and the columns of {first!r} and "
            f"{other!r} differ; select the same columns of all, in one order, or give public numbers."
        )
