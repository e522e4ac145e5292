"""Privacy: the settings of a private estimator, fixed before any row is seen."""

import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from fedpca._typing import JSON, Array
from fedpca.privacy.calibration import Adjacency, mu_of
from fedpca.privacy.ledger import Ledger
from fedpca.privacy.mechanisms.registry import MECHANISMS, MechanismName
from fedpca.privacy.rules import check_epsilon_delta
from fedpca.summaries import validation
from fedpca.trust.agreement import PROMISE
from fedpca.trust.keys import SigningKey

_MAX_RELEASES = 10_000
_BOUNDS = ("private", "sphere")
_CENTERS = ("private", "pairs")
_EVALUATION_SHARE = 0.05  # of mu²
_fits: Counter[str] = Counter()  # in this process, by the account of settings without a ledger


@dataclass(frozen=True, repr=False)
class Privacy:
    """Differential privacy of every row: all that leaves is (epsilon, delta)-private.

    All settings are public, and must be chosen without looking at the rows.

    Args:
        epsilon, delta: the guarantee, for all releases together. delta must be below one over the number of
            rows.
        bound: the length, about `center`, that rows are clipped to. "private": found with a part of the
            budget, or none at all where scaling every row to length one ("sphere") loses less; or a public
            number, which scales the noise: a typical length of a row rather than the largest. Clipping cannot
            be switched off.
        adjacency: what one row more or less means. "replace-one": any row replaced by any other;
            "zero-out": any row taken out, as if it lay at the center, with 0.7 times the noise. The number
            of rows is public in both.
        mechanism: "gram", one noisy d x d sum, for up to 4096 features; "sketch", a noisy d x k sum, for
            more.
        center: what is subtracted from rows before they are clipped. "private": the mean, found with a part
            of the budget, or differences of random pairs of rows ("pairs") where that would be too noisy;
            a vector of public numbers; or None for nothing.
        evaluate: keep 5 % of the budget to measure how much variance the released components explain.
        releases: how many times, at most, a growing stream will be released. `epsilon` covers all of them.
        ledger: a `Ledger`, or the path of its file, in which what was spent outlives the process. A new file
            gets (epsilon, delta) as its total budget. None: in memory, one account for every fit; a second
            fit with the same object, or a copy of it, warns.
        insecure_seed_for_tests: makes the noise repeatable, and therefore worthless: the certificate says so.

    >>> Privacy(epsilon=1.0, delta=1e-6)
    Privacy(epsilon=1.0, delta=1e-06)
    """

    epsilon: float
    delta: float
    bound: float | Literal["private", "sphere"] = "private"
    _: KW_ONLY
    adjacency: Adjacency = "replace-one"
    mechanism: MechanismName = "gram"
    center: Literal["private", "pairs"] | Sequence[float] | Array | None = "private"
    evaluate: bool = True
    releases: int = 1
    ledger: Ledger | str | os.PathLike[str] | None = None
    insecure_seed_for_tests: int | None = None

    def __post_init__(self) -> None:
        epsilon, delta = check_epsilon_delta(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        for name, known in (
            ("adjacency", get_args(Adjacency)),
            ("mechanism", tuple(MECHANISMS)),
        ):
            if (option := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be one of {_listed(known)}, got {name}={option!r}.")
        if not isinstance(self.evaluate, bool):
            raise TypeError(f"evaluate must be True or False, got evaluate={self.evaluate!r}.")
        validation.integer(self.releases, "releases", at_least=1)
        if self.releases > _MAX_RELEASES:
            raise ValueError(f"releases must be at most {_MAX_RELEASES}, got releases={self.releases}.")
        if self.insecure_seed_for_tests is not None:
            validation.integer(self.insecure_seed_for_tests, "insecure_seed_for_tests", at_least=0)
        if self.ledger is not None and not isinstance(self.ledger, Ledger | str | os.PathLike):
            raise TypeError(f"ledger must be a Ledger or the path of its file, got ledger={self.ledger!r}.")
        if isinstance(self.ledger, str | os.PathLike):
            object.__setattr__(self, "ledger", os.path.abspath(self.ledger))  # the same wherever it is opened
        object.__setattr__(self, "bound", self._checked_bound())
        object.__setattr__(self, "center", self._checked_center())
        object.__setattr__(self, "_account", secrets.token_hex(8))  # no field: a copy has the same

    def _checked_bound(self) -> float | str:
        if isinstance(self.bound, str):
            if self.bound not in _BOUNDS:
                raise ValueError(f"bound must be a number, 'private' or 'sphere', got bound={self.bound!r}.")
            return self.bound
        if not validation.is_real(self.bound):
            raise TypeError(f"bound must be a number, 'private' or 'sphere', got bound={self.bound!r}.")
        if not 1e-70 < self.bound < 1e70:
            raise ValueError(
                f"bound must be a positive number, about the norm of a row, got bound={self.bound}."
            )
        return float(self.bound)

    def _checked_center(self) -> str | tuple[float, ...] | None:
        if self.center is None:
            return None
        if isinstance(self.center, str):
            if self.center not in _CENTERS:
                raise ValueError(
                    "center must be None, 'private', 'pairs' or one public number per feature, got "
                    f"center={self.center!r}."
                )
            return self.center
        try:
            center = np.asarray(self.center, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"center must be one public number per feature ({error}).") from error
        if center.ndim != 1:
            raise ValueError(f"center must be one public number per feature, got shape {center.shape}.")
        if not np.isfinite(center).all():
            raise ValueError("center must be finite, and has NaN or infinity in it.")
        return tuple(center.tolist())

    @classmethod
    def agreed(cls, settings: Mapping[str, Any]) -> "Privacy | None":
        """What owners agreed on, see `fedpca.trust.agreement`; None without epsilon."""
        if "epsilon" not in settings:
            return None
        given = {name: settings[name] for name in PROMISE if name in settings}
        return cls(**given) if settings.get("center", True) else cls(**given, center=None)

    @property
    def settings(self) -> JSON:
        """All of them by name, as `PrivatePCA` takes them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def mu(self) -> float:
        """The whole budget as a Gaussian-DP parameter."""
        return mu_of(self.epsilon, self.delta)

    @property
    def needs_steps(self) -> bool:
        """Whether the bound or the center has to be found privately."""
        return "private" in (self.bound, self.center)

    @property
    def evaluation_share(self) -> float:
        """Of mu²: what an evaluation of the released components may cost."""
        return _EVALUATION_SHARE if self.evaluate else 0.0

    def public_center(self, n_features: int) -> Array | None:
        """The center as an array, if it is a public vector."""
        if not isinstance(self.center, tuple):
            return None
        if len(self.center) != n_features:
            raise ValueError(
                f"center must have one number per feature: {n_features} features, {len(self.center)} numbers."
            )
        return np.array(self.center)

    def open_ledger(self) -> Ledger:
        """The ledger named, whose file is created with its first debit, or a new one in memory."""
        if isinstance(self.ledger, Ledger):
            return self.ledger
        if self.ledger is None:
            return Ledger(epsilon=self.epsilon, delta=self.delta)
        if os.path.exists(self.ledger):
            return Ledger(self.ledger)
        return Ledger.planned(self.ledger, self.epsilon, self.delta)

    def with_signed_ledger(self, key: SigningKey) -> "Privacy":
        """The same settings; the ledger, if it is a file, is signed with the key."""
        if not isinstance(self.ledger, str):
            return self
        if os.path.exists(self.ledger):
            return replace(self, ledger=Ledger(self.ledger, key=key))
        return replace(self, ledger=Ledger.planned(self.ledger, self.epsilon, self.delta, key=key))

    def count_fit(self) -> int:
        """How often these settings, or copies of them, were fitted in this process, this time included."""
        account: str = vars(self)["_account"]
        _fits[account] += 1
        return _fits[account]

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("epsilon", "delta") or value != field.default:
                text = f"<{len(value)} public numbers>" if isinstance(value, tuple) else repr(value)
                shown.append(f"{field.name}={text}")
        return f"Privacy({', '.join(shown)})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
