"""Models of several biobanks that count different alleles, turned to count the same ones.

Copies of the other allele are x' = 2 - x: in a model the mean of the variant becomes 2 - mean, and its
loadings change sign.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.genetics.variants import Names, VariantMatch, match_variants, parse_name
from fedpca.summaries.features import columns_of, select
from fedpca.summaries.moments import Moments
from fedpca.summaries.patchwork import Patchwork
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.summary import Summary

Countable = TypeVar("Countable", Summary, Scaling)


def count_alike(
    models: Sequence[Countable], owners: Sequence[str]
) -> tuple[list[Countable], list[VariantMatch]]:
    """Models that count the alleles which the first counts, under its names, and how each was matched.

    Models whose features are no variants named by position, or are those of the first, stay as they are.
    Variants that do not show their strand are left out of a model that had to be matched.

    Args:
        models: summaries, or scalings, with feature names.
        owners: what to call each in a message.

    >>> north = Scaling.from_rows([[0.0, 1.0], [1.0, 2.0]]).with_names(["1:100:A:G", "1:200:C:T"])
    >>> south = Scaling.from_rows([[2.0, 0.0], [1.0, 0.0]]).with_names(["1:100:G:A", "1:200:C:T"])
    >>> (_, turned), matches = count_alike([north, south], ["north", "south"])
    >>> turned.feature_names, turned.mean
    (('1:100:A:G', '1:200:C:T'), array([0.5, 0. ]))
    >>> print(*matches)
    south: 2 of 2 variants found, 1 with swapped alleles
    """
    first = models[0].feature_names
    if first is None or not _have_positions(first):
        return list(models), []
    turned, matches = [], []
    for model, owner in zip(models, owners, strict=True):
        names = model.feature_names
        if names is None or set(names) == set(first) or not _have_positions(names):
            turned.append(model)
            continue
        match = match_variants(Path(owner), (known for name in names if (known := parse_name(name))), first)
        turned.append(_turned(model, names, match))
        matches.append(match)
    return turned, matches


def _have_positions(names: Names) -> bool:
    return all((known := parse_name(name)) is not None and known.position for name in names)


def _turned(model: Countable, names: Names, match: VariantMatch) -> Countable:
    renamed, swapped = list(names), np.zeros(len(names), dtype=bool)
    for wanted, source in zip(match.names, match.sources, strict=True):
        if source is not None:
            renamed[source[0]], swapped[source[0]] = wanted, source[1].swaps
    unclear = set(match.ambiguous)
    kept = tuple(name for name in renamed if name not in unclear)
    if isinstance(model, Scaling):
        mean = np.where(swapped & (model.observed > 0), 2 - model.mean, model.mean)
        scaling = Scaling(model.observed, mean, model.variance, tuple(renamed))
        columns = columns_of(tuple(renamed), kept)
        return scaling.with_columns(columns).with_names(kept)
    return select(_swapped(model, swapped).with_about(names=renamed), kept)


def _swapped(model: Summary, swapped: AnyArray) -> Summary:
    """The model of the same people, in which these variants are counted by their other allele."""
    if not swapped.any():
        return model
    if not model.centered:
        raise ValueError(
            "models that count different alleles must be centered to be merged; fit them with --variants of "
            "one list."
        )
    two: Array = np.full(model.n_features, 2.0)
    if isinstance(model.scale, np.ndarray):
        two /= model.scale
    plain = model.with_about(scale=None)
    if isinstance(plain, Patchwork):
        turned: Summary = plain.of([_swapped_leaf(part, swapped, two) for part in plain.parts])
    else:
        turned = _swapped_leaf(plain, swapped, two)
    if isinstance(model, Moments) and model.scaling is not None:
        of = model.scaling
        mean = np.where(swapped & (of.observed > 0), 2 - of.mean, of.mean)
        return turned.with_about(scale=model.scale, scaling=Scaling(of.observed, mean, of.variance))
    return turned.with_about(scale=model.scale)


def _swapped_leaf(leaf: Summary, swapped: AnyArray, two: Array) -> Summary:
    signs = np.where(swapped, -1.0, 1.0)
    mean = np.where(swapped & leaf.known, two - leaf.mean, leaf.mean)
    if isinstance(leaf, Moments):
        return replace(leaf, mean=mean, scatter=leaf.scatter * np.outer(signs, signs))
    return replace(leaf, mean=mean, components=leaf.components * signs.astype(leaf.components.dtype))
