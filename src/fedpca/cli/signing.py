"""Options of commands that sign, or check who signed."""

import logging
from dataclasses import dataclass

from cyclopts import Parameter

from fedpca.cli.options import File, WrongUsage
from fedpca.trust.keys import SigningKey
from fedpca.trust.roster import ANYONE, Roster, Signer

_log = logging.getLogger("fedpca.cli")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Study:
    """Who takes part."""

    roster: File | None = None
    """The roster of the study, roster.toml, which lists its members."""

    def load(self) -> Roster | None:
        """The roster; None, said in the log, if there is none."""
        if self.roster is None:
            _log.info(ANYONE)
            return None
        return Roster.load(self.roster)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Signing(Study):
    """A member of a study, which signs what is written."""

    key: File | None = None
    """Your key file: signs what is written, as a member of the roster."""

    def signer(self) -> Signer | None:
        """Who signs what a command writes; None if nobody does."""
        if (self.roster is None) != (self.key is None):
            raise WrongUsage("--roster and --key need each other: a member signs, with its key.")
        study = self.load()
        return None if study is None or self.key is None else study.signer(SigningKey.load(self.key))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Member:
    """The same, where somebody has to sign."""

    roster: File
    """The roster of the study, roster.toml."""
    key: File
    """Your key file, as a member of the roster."""

    def signer(self) -> Signer:
        """Who signs."""
        return Roster.load(self.roster).signer(SigningKey.load(self.key))
