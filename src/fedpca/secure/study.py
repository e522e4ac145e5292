"""What the members of a study by secure sums have agreed on: its privacy, and what is summed."""

from fedpca.privacy.settings import Privacy
from fedpca.secure.fit import Fit, PrivateFit
from fedpca.secure.plain_fit import PlainFit
from fedpca.trust.roster import Roster


def privacy_of(roster: Roster) -> Privacy | None:
    """The privacy that all members of a study have agreed on; None without."""
    return Privacy.agreed(roster.settings)


def fit_of(roster: Roster) -> Fit:
    """What the members of a study have agreed to sum."""
    settings = roster.settings
    names = tuple(settings["features"]) if "features" in settings else None
    n_features = len(names) if names is not None else settings.get("n_features")
    if n_features is None or "rank" not in settings:
        raise ValueError(
            "a study by secure sums must state rank, and features or n_features, in [settings] of its roster."
        )
    rank, scale = settings["rank"], settings.get("scale", "none")
    if scale == "binomial":
        raise ValueError("scale='binomial' cannot be found by secure sums; use 'std' or 'none'.")
    scale = None if scale == "none" else scale
    privacy = privacy_of(roster)
    if privacy is not None:
        return PrivateFit(privacy, n_features, rank, scale=scale, feature_names=names)
    if "largest" not in settings:
        raise ValueError(
            "a study by secure sums must state epsilon and delta or, without noise, largest, a public bound "
            "on the entries of rows, in [settings] of its roster."
        )
    return PlainFit(
        settings["largest"],
        n_features,
        rank,
        center=settings.get("center", True),
        scale=scale,
        feature_names=names,
    )
