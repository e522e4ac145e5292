"""Certificate: what is promised about a released summary; it travels with it and merges with it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, isclose, sqrt
from typing import Self

from fedpca._typing import JSON
from fedpca.summaries.record import MAX_NUMBER, Record

FORMAT = "fedpca certificate 1"
MAX_WARNINGS = 100
_MAX_MEMBERS = 10_000
_MAX_SUMS = 100
_INTERVAL = 1.96  # standard deviations
PUBLIC_SCALE, PRIVATE_SCALE = "public", "private"
"""Where a scale came from. One that was found with noise is corrected by the diagonal of a release."""
CORRECTED_SCALE = "private, corrected by the release"
"""Of directions found after that."""
IN_MEMORY = "in memory"
"""Of a ledger that is gone with its process."""


@dataclass(frozen=True)
class LedgerState(Record):
    """The ledger that paid for a release, as it stood then.

    Attributes:
        id: random id.
        kept: "in memory" or "in a file".
        epsilon, delta: its budget.
        spent: epsilon spent so far, at its delta.
        entries: how many debits its file had; fewer later mean that some were removed.
    """

    id: str
    kept: str
    epsilon: float
    delta: float
    spent: float
    entries: int | None = None


@dataclass(frozen=True)
class SecureSum(Record):
    """One of the sums over owners of which nobody saw a part.

    Attributes:
        sum: what was summed.
        owners: ids of those who are in it.
        rows: how many they have together.
        noise: the variance of its noise, in units of what the promise requires.
    """

    sum: str
    owners: tuple[str, ...]
    rows: int
    noise: float


@dataclass(frozen=True)
class Secured(Record):
    """Who took part in secure sums, and against whom they protect.

    Attributes:
        study: id of the study.
        members: ids of all members of its roster.
        least: fewest owners in a valid sum.
        colluding: how many owners may side with the coordinator.
        threshold: how many owners open a sum.
        sums: who took part in each.
        sigma: standard deviation of the noise of the release that is left if colluding owners take off
            theirs; rows in the unit ball.
        aliasing: what rounding the owners' parts of the noise adds to delta; it is included there.
        promise: against whom the certificate "holds ...".
    """

    study: str
    members: tuple[str, ...]
    least: int
    colluding: int
    threshold: int
    sums: tuple[SecureSum, ...]
    sigma: float
    aliasing: float
    promise: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 3 <= len(self.members) <= _MAX_MEMBERS or len(set(self.members)) < len(self.members):
            raise ValueError(f"members must be 3 to {_MAX_MEMBERS} different ids, got {len(self.members)}.")
        if not 1 <= self.colluding < self.threshold <= self.least <= len(self.members):
            raise ValueError(
                "secure sums must have 1 <= colluding < threshold <= least <= members, got "
                f"{self.colluding}, {self.threshold}, {self.least}, {len(self.members)}."
            )
        if 2 * self.threshold <= len(self.members) + self.colluding:
            raise ValueError(
                f"threshold must be above (members + colluding) / 2, got {self.threshold} of "
                f"{len(self.members)} with {self.colluding} colluding."
            )
        if not 1 <= len(self.sums) <= _MAX_SUMS:
            raise ValueError(f"there must be 1 to {_MAX_SUMS} secure sums, got {len(self.sums)}.")
        members = set(self.members)
        for part in self.sums:
            owners = set(part.owners)
            if len(owners) < len(part.owners) or not owners <= members or len(owners) < self.least:
                raise ValueError(
                    f"a secure sum must have at least {self.least} different members in it, got "
                    f"{len(part.owners)} in {part.sum!r:.80}."
                )
            if part.noise < 1:
                raise ValueError(f"a secure sum must have all of its noise, got {part.noise:g} of 1.")

    @property
    def took_part(self) -> tuple[str, ...]:
        """Ids of those who are in any of the sums."""
        present = {owner for part in self.sums for owner in part.owners}
        return tuple(owner for owner in self.members if owner in present)

    def describe(self) -> str:
        """Who took part, and against whom the certificate holds, in two sentences."""
        return (
            f"Secure sums: {len(self.took_part)} of {len(self.members)} owners took part, at least "
            f"{self.least} in every sum, and nobody saw the part of one. The promise {self.promise}."
        )


@dataclass(frozen=True)
class Release(Record):
    """One of the releases behind a merged summary.

    Attributes:
        epsilon, delta, mu: its cost.
        release, stream: ids of the release and of the stream of rows it reports on.
        records: rows it reports on.
        time: when it was made.
        ledger: id of its owner's ledger; spent and spent_delta: epsilon spent there, at which delta.
        secure: who took part, if it is a secure sum over several owners.
    """

    epsilon: float
    delta: float
    mu: float
    release: str | None = None
    stream: str | None = None
    records: int | None = None
    time: str | None = None
    ledger: str | None = None
    spent: float | None = None
    spent_delta: float | None = None
    secure: Secured | None = None


@dataclass(frozen=True)
class StepCost(Record):
    """One of the noisy sums behind a release.

    Attributes:
        step: what was summed.
        mu: its cost.
    """

    step: str
    mu: float


@dataclass(frozen=True)
class Evaluation(Record):
    """How much of the rows' variance released components explain, measured with noise, without bias.

    Of rows clipped to a length: where `beyond` is not small, longer rows would count for more.

    Attributes:
        energies: of all rows along each component.
        rest: along all other directions.
        sd: standard deviation of the noise of each of these numbers.
        radius: rows were clipped to this length about the mean.
        beyond: share of rows that are longer.
        records: how many rows there are.
        mu: the cost.
        left_out: how many features have no scale, so that nothing here counts their variance.
    """

    energies: tuple[float, ...]
    rest: float
    sd: float
    radius: float
    beyond: float
    records: int
    mu: float
    left_out: int = 0

    @property
    def total(self) -> float:
        """The energy of all rows."""
        return sum(self.energies) + self.rest

    def scaled(self, weight: float) -> Self:
        """The evaluation of the same rows with their energies multiplied by a weight."""
        energies = tuple(weight * energy for energy in self.energies)
        return replace(self, energies=energies, rest=weight * self.rest, sd=weight * self.sd)

    def explained(self, n_components: int | None = None) -> tuple[float, float, float]:
        """The share of the variance along the first components, and its 95 % interval.

        >>> Evaluation((60.0, 20.0), 20.0, 2.0, 1.0, 0.0, 100, 0.1).explained(1)
        (0.6, 0.56, 0.64)
        """
        along = self.energies[:n_components]
        if self.total <= 0:
            return 0.0, 0.0, 1.0
        share = sum(along) / self.total
        others = len(self.energies) + 1 - len(along)
        sd = self.sd / self.total * sqrt(len(along) * (1 - share) ** 2 + others * share**2)
        low, high = (min(max(share + side * _INTERVAL * sd, 0.0), 1.0) for side in (-1, 1))
        return min(max(share, 0.0), 1.0), low, high

    def describe(self, n_components: int | None = None) -> str:
        """How good the components are, in one sentence.

        >>> Evaluation((60.0, 20.0), 20.0, 2.0, 3.5, 0.07, 100, 0.1).describe()[:57]
        'Measured privately: the components explain 80.0% of the v'
        """
        share, low, high = self.explained(n_components)
        return (
            f"Measured privately: the components explain {share:.1%} of the variance of rows clipped to "
            f"length {self.radius:.3g} (95% interval: {low:.1%} to {high:.1%}); {self.beyond:.0%} of rows "
            f"are longer.{self.not_counted}"
        )

    @property
    def not_counted(self) -> str:
        """A sentence of the features that are not counted, with a space before it, or ""."""
        if not self.left_out:
            return ""
        features = "1 feature" if self.left_out == 1 else f"{self.left_out} features"
        return f" Not counted: {features} left out, for want of a scale."


@dataclass(frozen=True)
class Certificate(Record):
    """What is promised about a released summary. Every field is public, or was released.

    Attributes:
        private: whether the promise holds; False if the noise came from a seed.
        epsilon, delta: the promise.
        mu: the promise as the mu of Gaussian differential privacy.
        unit: what is protected: a record.
        adjacency: which data sets are neighbors.
        mechanism: what noise was added to.
        sampler: how the noise was drawn.
        center: where the center that was subtracted from rows came from.
        bound: the length rows were clipped to; several after a merge of different ones.
        clipping: "ball", or "sphere" if every row was scaled to length one; of differences of pairs of rows,
            if so stated.
        scale: where the scale that features were divided by came from; None if there is none.
        warnings: what weakens the promise.
        calibration, sensitivity, sigma: how the noise was scaled.
        noise_edge: the largest eigenvalue that noise alone gives the released scatter.
        n_features, records: shape of the rows.
        report, planned: which release of a growing stream this is, of how many.
        public: what is taken to be public.
        ledger: the ledger that paid.
        release, stream, time: ids of the release and its stream of rows; when it was made.
        fedpca: version of the library.
        assumes: what the promise of a merge assumes.
        releases: the releases behind a merge.
        steps: the noisy sums that led to the release, and the release, if there were any.
        evaluation: how good the components are, if that was measured.
        secure: who took part, and against whom the promise holds, if the release is a secure sum over owners.

    >>> from fedpca.summaries.certificate_merging import combine
    >>> one = Certificate(private=True, epsilon=1.0, delta=1e-6, mu=0.2, noise_edge=3.0, stream="a")
    >>> other = replace(one, epsilon=2.0, noise_edge=4.0, stream="b")
    >>> merged = combine([one, other], summed=True)
    >>> merged.epsilon, merged.noise_edge, merged.merged
    (2.0, 5.0, 2)
    >>> Certificate.from_json(merged.to_json()) == merged
    True
    """

    private: bool
    epsilon: float
    delta: float
    mu: float
    unit: str = "record"
    adjacency: str = ""
    mechanism: str = ""
    sampler: str = ""
    center: str = ""
    bound: float | tuple[float, ...] | None = None
    warnings: tuple[str, ...] = ()
    calibration: str | None = None
    sensitivity: float | None = None
    sigma: float | None = None
    noise_edge: float | None = None
    n_features: int | None = None
    records: int | None = None
    report: int | None = None
    planned: int | None = None
    public: str | None = None
    ledger: LedgerState | None = None
    release: str | None = None
    stream: str | None = None
    time: str | None = None
    fedpca: str | None = None
    assumes: str | None = None
    releases: tuple[Release, ...] | None = None
    clipping: str | None = None
    scale: str | None = None
    steps: tuple[StepCost, ...] | None = None
    evaluation: Evaluation | None = None
    secure: Secured | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.warnings) > MAX_WARNINGS:
            raise ValueError(f"there must be at most {MAX_WARNINGS} warnings, got {len(self.warnings)}.")
        if self.releases is None:
            return
        if len(self.releases) < 2:
            raise ValueError("a merge must have two releases or more.")
        refuse_repeated(self.releases)
        promise = (self.epsilon, self.delta, self.mu)
        if not all(
            isclose(a, b, rel_tol=1e-9) for a, b in zip(promise, total_cost(self.releases), strict=True)
        ):
            raise ValueError("epsilon, delta and mu must follow from the releases behind the merge.")

    @classmethod
    def from_json(cls, contents: object) -> Self:
        """A certificate from a model file or a message; raises ValueError for anything else."""
        if not isinstance(contents, Mapping):
            raise ValueError(f"a Certificate must be a JSON object, got {type(contents).__name__}.")
        contents = dict(contents)
        if (found := contents.pop("format", None)) != FORMAT:
            raise ValueError(f"a Certificate must have format {FORMAT!r}, got {found!r:.80}.")
        merged = contents.pop("merged", 1)
        certificate = super().from_json(contents)
        if merged != certificate.merged:
            raise ValueError("a Certificate must list as many releases as it says were merged.")
        return certificate

    def to_json(self) -> JSON:
        merged = {} if self.releases is None else {"merged": self.merged}
        return {"format": FORMAT} | merged | super().to_json()

    @property
    def merged(self) -> int:
        """How many releases are behind it."""
        return 1 if self.releases is None else len(self.releases)

    def all_releases(self) -> tuple[Release, ...]:
        """The releases behind it, each with its owner's ledger and what it cost."""
        if self.releases is not None:
            return self.releases
        names = ("epsilon", "delta", "mu", "release", "stream", "records", "time", "secure")
        release = Release(**{name: getattr(self, name) for name in names})
        if self.ledger is None:
            return (release,)
        state = self.ledger
        return (replace(release, ledger=state.id, spent=state.spent, spent_delta=state.delta),)

    def scaled(self, weight: float) -> Self:
        """The certificate of the same release with its scatter multiplied by a weight."""
        edge, found = self.noise_edge, self.evaluation
        return replace(
            self,
            noise_edge=None if edge is None else weight * edge,
            evaluation=None if found is None else found.scaled(weight),
        )

    def with_ledgers(self, ledgers: Iterable[LedgerState]) -> Self:
        """The certificate after more was spent, with the ledgers as they stand now."""
        states = {ledger.id: ledger for ledger in ledgers}
        if self.releases is not None:
            releases = [
                replace(part, spent=states[part.ledger].spent) if part.ledger in states else part
                for part in self.releases
            ]
            return replace(self, releases=tuple(releases))
        if self.ledger is None:
            return self
        return replace(self, ledger=states.get(self.ledger.id, self.ledger))

    def evaluated(self, found: Evaluation) -> Self:
        """The certificate of the same release that states how good its components are."""
        steps = (*(self.steps or ()), StepCost("evaluation", found.mu))
        return replace(self, evaluation=found, steps=steps)

    def secured(self, record: Secured, *, session: str, time: str) -> Self:
        """The certificate of a release that is a secure sum over owners.

        Args:
            session: id of the attempt at the study: that of the release, as there is one.
            time: when it began.
        """
        delta = min(self.delta + record.aliasing, 1.0)
        return replace(self, delta=delta, secure=record, release=session, stream=session, time=time)

    def of_features(self, n_features: int, of: int) -> Self:
        """The certificate of `n_features` of the `of` features of the same release, the others removed.

        That is post-processing: the promise stays. The noise is a symmetric mask with independent entries of
        the same size, whose largest eigenvalue grows with the root of the number of features.
        """
        edge = None if self.noise_edge is None else sqrt(n_features / of) * self.noise_edge
        return replace(self, noise_edge=edge, n_features=self.n_features and n_features, evaluation=None)

    def describe(self) -> str:
        """The promise in a few words, as `repr` of a summary shows it.

        >>> Certificate(private=True, epsilon=1.0, delta=1e-6, mu=0.2).describe()
        'private: epsilon=1, delta=1e-06'
        """
        if not self.private:
            return "NOT private"
        doubts = ", UNSAFE" if self.warnings else ""
        return f"private: epsilon={self.epsilon:g}, delta={self.delta:g}{doubts}"


def noise_edge(certificate: Certificate | None) -> float:
    """The largest eigenvalue that noise alone gives a released scatter; 0 where there is no noise."""
    return 0.0 if certificate is None else certificate.noise_edge or 0.0


def refuse_repeated(releases: Sequence[Release]) -> None:
    """Raise for releases of which two are reports of one stream."""
    streams = [release.stream for release in releases if release.stream]
    if len(set(streams)) < len(streams):
        raise ValueError(
            "the same private stream is merged twice: rows and noise of its reports would count twice. "
            "Merge only the latest report of each."
        )


def total_cost(releases: Sequence[Release]) -> tuple[float, float, float]:
    """The largest epsilon, delta and mu of any owner: each bounds the cost to every owner.

    Releases with one ledger are of one owner; those without are taken to be of different ones.
    """
    uses = Counter(release.ledger for release in releases if release.ledger)
    alone, shared = [], defaultdict(list)
    for release in releases:
        if release.ledger and uses[release.ledger] > 1:
            shared[release.ledger].append(release)
        else:
            alone.append(release)
    costs = [shared_cost(owned) for owned in shared.values()]
    if alone:
        costs.append(tuple(max(getattr(part, name) for part in alone) for name in ("epsilon", "delta", "mu")))
    epsilon, delta, mu = (max(column) for column in zip(*costs, strict=True))
    return epsilon, delta, mu


def shared_cost(releases: Sequence[Release]) -> tuple[float, float, float]:
    """Epsilon, delta and mu of several releases of one ledger: all that it has spent."""
    if any(release.spent is None or release.spent_delta is None for release in releases):
        raise ValueError("several releases of one ledger must state what was spent; release them again.")
    last = max(releases, key=lambda release: release.spent or 0.0)
    mu = hypot(*(release.mu for release in releases))
    return last.spent or 0.0, last.spent_delta or 0.0, min(mu, MAX_NUMBER)
