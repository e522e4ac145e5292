"""What members agree on before a secure study: how few may take part, and how many may collude."""

from dataclasses import dataclass
from math import isfinite
from typing import Self

from fedpca.summaries import validation
from fedpca.trust.roster import Roster

MOST_MEMBERS = 1000  # their numbers have three digits


@dataclass(frozen=True)
class SecureSums:
    """Sums over owners that nobody can take apart.

    Args:
        least: the fewest owners in a valid sum; None for the threshold, the smallest number that is safe.
        colluding: how many owners may side with the coordinator, at least 1: each knows its own noise.
        largest: without privacy, a public bound on the absolute value of any entry of a row.

    >>> SecureSums(least=6, colluding=1).terms([f"owner {number}" for number in range(10)]).threshold
    6
    """

    least: int | None = None
    colluding: int = 1
    largest: float | None = None

    def __post_init__(self) -> None:
        if self.least is not None:
            object.__setattr__(self, "least", validation.integer(self.least, "least", at_least=1))
        object.__setattr__(self, "colluding", validation.integer(self.colluding, "colluding", at_least=1))
        if self.largest is not None:
            if not validation.is_real(self.largest):
                raise TypeError(f"largest must be a number, got largest={self.largest!r:.80}.")
            if not (isfinite(self.largest) and self.largest > 0):
                raise ValueError(f"largest must be a number above 0, got largest={self.largest!r:.80}.")
            object.__setattr__(self, "largest", float(self.largest))

    def terms(self, ids: list[str]) -> "Terms":
        """What they mean for these members."""
        threshold = (len(ids) + self.colluding) // 2 + 1
        return Terms(tuple(ids), threshold if self.least is None else self.least, self.colluding)


@dataclass(frozen=True)
class Terms:
    """The numbers of a secure study.

    Attributes:
        ids: of the members, in the order of the roster: a member's number is its place here.
        least: the fewest owners in a valid sum.
        colluding: how many owners may side with the coordinator.
    """

    ids: tuple[str, ...]
    least: int
    colluding: int

    def __post_init__(self) -> None:
        if not 3 <= self.n_members <= MOST_MEMBERS:
            raise ValueError(
                f"secure sums must have 3 to {MOST_MEMBERS} members, got {self.n_members}; "
                "with fewer, a sum shows each of them what the others have."
            )
        if self.colluding > self.n_members - 2:
            raise ValueError(
                f"colluding must be at most {self.n_members - 2} of {self.n_members} members, got "
                f"colluding={self.colluding}: two others must be left."
            )
        if not self.threshold <= self.least <= self.n_members:
            raise ValueError(
                f"least must be from {self.threshold} to {self.n_members}, for {self.n_members} members of "
                f"whom {self.colluding} may collude, got least={self.least}."
            )

    @classmethod
    def of(cls, roster: Roster) -> Self:
        """Those that members agreed on."""
        if "colluding" not in roster.settings:
            raise ValueError(
                f"the roster of a secure study must have `colluding` in [settings], and that of "
                f"{roster.study!r:.80} has not; begin one with `fedpca roster new NAME --set colluding=1`."
            )
        colluding = roster.settings["colluding"]
        least = roster.settings.get("least", (len(roster.members) + colluding) // 2 + 1)
        return cls(tuple(roster.members), least, colluding)

    @property
    def n_members(self) -> int:
        """M."""
        return len(self.ids)

    @property
    def threshold(self) -> int:
        """How many shares open a secret, and how many signatures make a set the only one: two sets of so many
        members have more than `colluding` in common, and an honest member signs one."""
        return (self.n_members + self.colluding) // 2 + 1
