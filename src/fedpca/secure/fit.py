"""PrivateFit: the list of sums over owners that a private model is made of.

Owners and the coordinator each have a fit, built from the same public settings. Every fit names the next sum;
an owner's gives the integers of its rows; the total, which is public, takes every fit to the next sum. What a
sum is protected by, masks and noise, is not known here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Protocol

import numpy as np

from fedpca._typing import AnyArray, Array
from fedpca.errors import SecureError
from fedpca.privacy.certify import make_certificate
from fedpca.privacy.clipping import MAX_ROWS, Pairing
from fedpca.privacy.evaluation import Energies
from fedpca.privacy.mechanisms import Mechanism, NoiseBlock, build, mechanism_class
from fedpca.privacy.release_checks import bound_warning
from fedpca.privacy.rules import check_delta_for_rows
from fedpca.privacy.search import Search
from fedpca.privacy.settings import Privacy
from fedpca.privacy.steps import Step, StepSum
from fedpca.summaries import validation
from fedpca.summaries.certificate import SecureSum, StepCost
from fedpca.summaries.rank import FixedRank
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.view import SummaryView

_TAIL = 10.0  # standard deviations, by which the norm of Gaussian noise never exceeds what is expected
SAMPLER = (
    "sum of owners' rounded Gaussians, exact on the integers; words of SHAKE128 from random 256-bit keys"
)


class Total(Protocol):
    """A sum over owners, as it was published.

    Attributes:
        name: of the sum.
        values: in the units of the fit, shape (length,).
        rows: of all owners in it.
        owners: ids of these.
        noise: the variance of the noise in it, in units of that of the sum's blocks.
    """

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Array: ...
    @property
    def rows(self) -> int: ...
    @property
    def owners(self) -> Sequence[str]: ...
    @property
    def noise(self) -> float: ...


@dataclass(frozen=True)
class Sum:
    """A sum over all owners' rows.

    Attributes:
        name: what is summed.
        blocks: length and standard deviation of the noise of every part; 0 for no noise.
        mu: what it costs every row, of Gaussian differential privacy.
        largest: per part, the largest size of an entry of the total of honest owners, without noise.
        norms: per part, the largest norm that one row gives it.
    """

    name: str
    blocks: tuple[tuple[int, float], ...]
    mu: float
    largest: tuple[float, ...]
    norms: tuple[float, ...]

    @property
    def length(self) -> int:
        return sum(length for length, _ in self.blocks)

    def check(self, total: Total, rows: int) -> None:
        """Refuse a total that no honest owners can have.

        Args:
            rows: of all owners that may be in it.
        """
        if total.name != self.name or total.values.shape != (self.length,):
            raise ValueError(
                f"the total must be that of {self.name!r}, {self.length} numbers, got {total.name!r:.80} "
                f"with shape {total.values.shape}."
            )
        if not 1 <= total.rows <= rows:
            raise ValueError(f"the total must be of 1 to {rows} rows, got {total.rows}.")
        least = 1.0 if any(sd for _, sd in self.blocks) else 0.0
        if not least <= total.noise < inf:
            raise ValueError(f"the noise of a total must be {least:g} or more, got {total.noise!r:.80}.")
        rest = total.values
        for (length, sd), of_row in zip(self.blocks, self.norms, strict=True):
            part, rest = np.split(rest, [length])
            most = of_row * total.rows + sd * sqrt(total.noise) * (sqrt(length) + _TAIL)
            norm = float(np.linalg.norm(part))
            if not norm <= most * (1 + 1e-9):
                raise SecureError(
                    f"the total of {self.name!r} is {norm:.4g} long; {total.rows} rows and noise have at "
                    f"most {most:.4g}: an owner has sent other numbers than those of its rows. Find out who, "
                    "and begin the study anew without it."
                )


class Fit(Protocol):
    """A model made of sums over owners.

    Attributes:
        n_features: of the rows.
        feature_names: one per feature, or None.
        most_sums: how many there are at most.
        most_words: the length of the longest.
        next: the next one; None when all are taken.
        taken: who took part in those so far.
        view: the model when all are taken, and how many of its directions are shown.
        model: the directions that are shown, with the certificate of a private model.
    """

    @property
    def n_features(self) -> int: ...
    @property
    def feature_names(self) -> tuple[str, ...] | None: ...
    @property
    def most_sums(self) -> int: ...
    @property
    def most_words(self) -> int: ...

    def begin(self, rows: int, noise: float) -> None:
        """Let the sums begin.

        Args:
            rows: of all owners that may take part.
            noise: the variance of the noise in a total of all of these, in units of that of its blocks.
        """

    @property
    def next(self) -> Sum | None: ...
    @property
    def taken(self) -> tuple[SecureSum, ...]: ...

    def check_rows(self, parts: Iterable[Array]) -> None:
        """Refuse, by ValueError, rows that no sum takes, before anything leaves.

        Args:
            parts: dense rows, shape (n, d), NaN for missing.
        """

    def vector(self, parts: Iterable[Array], random: np.random.Generator) -> AnyArray:
        """The integers of the next sum over an owner's rows, without noise: they must not leave like this.

        Args:
            parts: dense rows, shape (n, d), NaN for missing.
            random: of pairs of rows; never the rows.
        """

    def add(self, total: Total) -> None:
        """Take the total of the next sum, and go on."""

    @property
    def view(self) -> SummaryView: ...
    @property
    def model(self) -> Subspace: ...


class PrivateFit:
    """The sums of a private model: what is found privately, the release, and its evaluation.

    Each is one Gaussian mechanism; all together cost what `privacy` states.

    Args:
        privacy: the settings; its ledger is not used here.
        n_features: d.
        rank: how many components are wanted.
        scale: what features are divided by, public numbers; "std" to find it; None for nothing.
        feature_names: one per feature, or None.
    """

    def __init__(
        self,
        privacy: Privacy,
        n_features: int,
        rank: int,
        *,
        scale: Array | str | None = None,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        _check_settings(privacy)
        if isinstance(scale, str) and scale != "std":
            raise ValueError(
                f"scale must be None, 'std' or public numbers with privacy, got scale={scale!r}."
            )
        mechanism_class(privacy).check_features(n_features)
        self._privacy = privacy
        self.n_features = n_features
        self.feature_names = feature_names
        self._rank = validation.rank(rank, n_features)
        self._search = Search(privacy, n_features, self._rank, scale=scale, feature_names=feature_names)
        self._finds_scale = isinstance(scale, str)
        self._rows = 0  # of all that may take part
        self._taken: list[SecureSum] = []
        self._view: SummaryView | None = None
        self._margin = 0.0
        self._energies: Energies | None = None  # until they are measured
        self._evaluated: Subspace | None = None  # if not the model released here

    @property
    def most_sums(self) -> int:
        """How many sums there are at most: public, and known before the first."""
        steps = Search.most_steps(self._privacy, finds_scale=self._finds_scale)
        return steps + 1 + (self._privacy.evaluation_share > 0)

    @property
    def most_words(self) -> int:
        """The length of the longest sum: public, and known before the first."""
        return max(
            mechanism_class(self._privacy).most_words(self.n_features, self._rank),
            Search.most_words(self._privacy, self.n_features, finds_scale=self._finds_scale),
            self._rank + 2,
        )

    def begin(self, rows: int, noise: float) -> None:
        """Let the sums begin; see `Fit`."""
        if not 2 <= rows <= MAX_ROWS:
            raise ValueError(f"secure sums must be of 2 to {MAX_ROWS} rows of all owners, got {rows}.")
        check_delta_for_rows(self._privacy.delta, rows)
        self._rows = rows
        if self._search.step is not None:
            self._search.replay(StepSum("rows", np.zeros(0), rows, noise), paid=True)

    @property
    def next(self) -> Sum | None:
        """The next sum; None when all are taken."""
        if not self._rows:
            raise ValueError("the sums must begin first: call begin.")
        search = self._search
        if (step := search.step) is not None:
            return self._sum(step.name, _blocks(step, search.deviations), search.cost)
        if self._view is None:
            mechanism = self._mechanism()
            blocks, per_row = mechanism.blocks(), 0.5 if mechanism.clipping.pairs else 1.0
            blocks = tuple(block._replace(largest=block.largest * per_row) for block in blocks)
            return self._sum(mechanism.name, blocks, mechanism.calibration.mu)
        if self._energies is not None:
            step, sd = self._energies.step(self.model), self._energies.sd(self.model)
            return self._sum(step.name, _blocks(step, [sd]), self._energies.mu)
        return None

    def _sum(self, name: str, blocks: Sequence[NoiseBlock], mu: float) -> Sum:
        norms = tuple(block.largest for block in blocks)
        largest = tuple(self._rows * norm for norm in norms)
        return Sum(name, tuple((block.length, block.sd) for block in blocks), mu, largest, norms)

    @property
    def searches(self) -> bool:
        """Whether the next sum is one of those before the release."""
        return self._search.step is not None

    @property
    def taken(self) -> tuple[SecureSum, ...]:
        """Who took part in the sums so far."""
        return tuple(self._taken)

    def evaluate(self, model: Subspace) -> None:
        """Let the next sum evaluate a model that another fit, with the same sums, has released."""
        assert self._search.found is not None
        self._energies, self._evaluated = Energies(self._privacy, self._search.found), model

    def check_rows(self, parts: Iterable[Array]) -> None:
        """Nothing: private rows are of any values, and are not looked at before they are paid for."""

    def vector(self, parts: Iterable[Array], random: np.random.Generator) -> Array:
        """The integers of the next sum over an owner's rows, without noise; see `Fit`."""
        if self._search.step is not None:
            return self._search.raw_sum(parts, random)
        if self._energies is not None:
            model = self.model if self._evaluated is None else self._evaluated
            return self._energies.raw_sum(parts, model, random)
        mechanism = self._mechanism()
        clipping = mechanism.clipping
        pairing = Pairing(random)
        for rows in parts:
            deviations = clipping.deviations(rows)
            for part in pairing.take(deviations) if clipping.pairs else (deviations,):
                mechanism.take(clipping.points(part))
        if pairing.n_waiting:
            mechanism.take(clipping.points(pairing.flush()))
        return mechanism.statistic()

    def add(self, total: Total) -> None:
        """Take the total of the next sum, and go on."""
        if (announced := self.next) is None:
            raise ValueError("all sums were taken already.")
        announced.check(total, self._rows)
        if (step := self._search.step) is not None:
            pooled = StepSum(step.name, total.values, total.rows, total.noise, step.radius)
            self._search.replay(pooled, paid=True)
        elif self._view is None:
            self._release(total)
        else:
            self._evaluate(total)
        self._taken.append(SecureSum(announced.name, tuple(total.owners), total.rows, float(total.noise)))

    @property
    def view(self) -> SummaryView:
        """The model, and how many of its directions are shown."""
        if self._view is None:
            raise ValueError("there is no model yet: the sums are not complete.")
        return self._view

    @property
    def model(self) -> Subspace:
        """The directions that are shown, with their certificate."""
        return self.view.summary().truncate(max(self.view.n_components(), 1))

    @property
    def left_out(self) -> AnyArray | None:
        """Which features have no scale that was found, shape (d,)."""
        found = self._search.found
        return None if found is None or found.clipping.scale is None else found.clipping.left_out

    def bound_warning(self) -> str:
        """A warning if the release shows that a public bound does not fit, else ""."""
        bound = self._privacy.bound
        return "" if isinstance(bound, str) else bound_warning(self.view.whole, bound, self._margin)

    # --- the release and its evaluation ---

    def _mechanism(self) -> Mechanism:
        """The mechanism of the release, without rows."""
        found = self._search.found
        assert found is not None
        return build(
            self._privacy,
            found.clipping,
            self.n_features,
            mu=self._search.mu_left,
            joint=self._privacy.center == "private" and not found.clipping.pairs,
            rank=self._rank,
        )

    def _release(self, total: Total) -> None:
        mechanism, found = self._mechanism(), self._search.found
        assert found is not None
        count = total.rows / 2 if mechanism.clipping.pairs else total.rows
        certificate = make_certificate(
            self._privacy,
            mechanism,
            sampler=SAMPLER,
            records=total.rows,
            count=count,
            report=1,
            steps=tuple(StepCost(*cost) for cost in self._search.costs),
            center_noise=found.center_noise,
            accumulated=sqrt(total.noise),
        )
        released = mechanism.summary_of(total.values, count=count, noise=total.noise, certificate=certificate)
        self._view = SummaryView(released, FixedRank(self._rank), "auto", np.float64)
        self._margin = mechanism.clipping.unit * mechanism.total_margin(sqrt(total.noise), count)
        if self._privacy.evaluation_share and found.radius and self._view.n_components():
            self._energies = Energies(self._privacy, found)

    def _evaluate(self, total: Total) -> None:
        assert self._view is not None
        assert self._energies is not None
        model, certificate = self.model, self._view.whole.certificate
        assert certificate is not None
        step = self._energies.step(model)
        pooled = StepSum(step.name, total.values, total.rows, total.noise, step.radius)
        found = self._energies.result(pooled, model)
        self._view, self._energies = self._view.evaluated(certificate.evaluated(found)), None


def _blocks(step: Step, deviations: Sequence[float]) -> tuple[NoiseBlock, ...]:
    """How a step is noised, and the largest norm that one row gives each part."""
    return tuple(
        NoiseBlock(block.length, sd, min(block.sensitivities) / (2 if block.of_pairs else 1))
        for block, sd in zip(step.blocks, deviations, strict=True)
    )


def _check_settings(privacy: Privacy) -> None:
    """Refuse what is not one release, with noise from random keys."""
    if not isinstance(privacy, Privacy):
        raise TypeError(f"privacy must be a fedpca.Privacy, got {type(privacy).__name__}.")
    if privacy.releases != 1:
        raise ValueError(f"secure sums make one release, got releases={privacy.releases}; leave it out.")
    if privacy.insecure_seed_for_tests is not None:
        raise ValueError("secure sums draw noise from random keys; leave out insecure_seed_for_tests.")
