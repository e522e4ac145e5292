"""The rank rule that the settings `n_components` and `energy` of an estimator describe."""

from dataclasses import replace
from numbers import Integral

from fedpca.summaries import validation
from fedpca.summaries.rank import EnergyBand, FixedRank, RankRule, VarianceShare


def rank_rule(n_components: object, energy: object, n_features: int) -> RankRule | None:
    """The rule for rows of `n_features`; None where both settings are None: all directions.

    >>> rank_rule(3, None, n_features=8), rank_rule(0.9, None, n_features=8)
    (FixedRank(rank=3), VarianceShare(share=0.9))
    """
    if energy is not None:
        band = EnergyBand(*energy) if isinstance(energy, tuple | list) and len(energy) == 2 else energy
        if not isinstance(band, EnergyBand):
            raise TypeError(f"energy must be an EnergyBand or its (low, high), got {energy!r}.")
        if n_components is not None:
            band = replace(band, first=validation.rank(n_components, n_features, "n_components"))
        return band
    if n_components is None:
        return None
    if isinstance(n_components, Integral) and not isinstance(n_components, bool):
        return FixedRank(validation.rank(n_components, n_features, "n_components"))
    rule = "n_components must be a whole number, a share of the variance in (0, 1) or None"
    if not validation.is_real(n_components):
        raise TypeError(f"{rule}, got {n_components!r}.")
    if not 0 < n_components < 1:
        raise ValueError(f"{rule}, got {n_components!r}.")
    return VarianceShare(float(n_components))
