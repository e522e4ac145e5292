"""How owners are merged of whom a minority may lie: options of commands that merge."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from fedpca.federation.aggregator.robust import Robust


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RobustMerging:
    """Owners of whom a minority may lie."""

    robust: Literal["cap", "median", "trim"] | None = None
    """Limit what a minority of dishonest owners can do to the model, if owners are alike: cap limits rows
    and lengths, median takes the geometric median, trim also leaves out owners far from the others. By
    default all owners are trusted."""
    max_share: Annotated[float | None, Parameter(metavar="SHARE")] = None
    """With --robust, the largest weight of an owner, as a share of all. By default no owner weighs more than
    the median owner."""

    def rule(self) -> Robust | None:
        """How to merge them; None if all are trusted."""
        return Robust.of(self.robust, self.max_share)
