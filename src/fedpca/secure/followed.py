"""Followed: a fit that goes along with a board, and the model that follows from it: anyone can compute it."""

from collections.abc import Iterable
from typing import TypeVar

from fedpca.errors import SecureError
from fedpca.secure.aliasing import aliasing
from fedpca.secure.fit import Fit
from fedpca.secure.messages import NoiseBlock, Total
from fedpca.secure.noise_shares import Levels
from fedpca.secure.record import Record
from fedpca.secure.session import Session
from fedpca.secure.wire import Board
from fedpca.summaries.base import BaseSummary
from fedpca.summaries.certificate import Secured
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_S = TypeVar("_S", bound=BaseSummary)


class Followed:
    """A fit that takes the totals of a board as they come.

    Args:
        session: that the board is of.
        fit: that of the roster.
    """

    def __init__(self, session: Session, fit: Fit) -> None:
        self.fit = fit
        self._session = session
        self._begun = False
        self._n_taken = 0

    def follow(self, board: Board) -> Record:
        """Take what is new, and read the board."""
        record = Record(self._session, board)
        if not self._begun and record.has("members"):
            self._begin(record)
        while self._begun and self._n_taken < record.n_totals:
            self._add(record.total(self._n_taken))
            self._n_taken += 1
        return record

    @property
    def has_ended(self) -> bool:
        """Whether all sums are taken."""
        return self._begun and self.fit.next is None

    def model(self, record: Record) -> Subspace:
        """The model, once all sums are taken, with its certificate."""
        return self._secured(self.fit.model, record)

    def release(self, record: Record) -> Summary:
        """What the model is taken from, with the same certificate."""
        return self._secured(self.fit.view.whole, record)

    def _begin(self, record: Record) -> None:
        members = record.members.members
        try:
            self.fit.begin(record.rows, record.levels.variance(len(members), len(members)))
        except ValueError as error:  # a member may state any number
            most = max(members, key=lambda index: record.keys_of(index).rows)
            raise SecureError(
                f"{str(error).rstrip('.')}. Of {record.rows} rows that the members state, "
                f"{record.names([most])} states the most, {record.keys_of(most).rows}; if that is wrong, let "
                "the coordinator open another session without it."
            ) from error
        self._begun = True

    def _add(self, total: Total) -> None:
        try:
            self.fit.add(total)
        except SecureError:
            raise
        except (ValueError, ArithmeticError) as error:  # numpy's LinAlgError, too
            raise SecureError(
                f"the total of {total.name!r:.80} is not one of rows ({str(error).rstrip('.')}): an owner "
                "has sent other numbers than those of its rows, or the coordinator published a false total. "
                "Find out who, and begin the study anew without it."
            ) from error

    def _secured(self, model: _S, record: Record) -> _S:
        """The model, or its release, with a certificate that states who took part, and against whom it
        holds."""
        certificate = model.certificate
        if certificate is None:
            return model
        terms, totals = self._session.terms, record.totals
        added = sum(
            added_to_delta(record.levels, len(total.owners), total.blocks, certificate.epsilon)
            for total in totals
        )
        secured = Secured(
            study=self._session.roster.study,
            members=terms.ids,
            least=terms.least,
            colluding=terms.colluding,
            threshold=terms.threshold,
            sums=self.fit.taken,
            sigma=certificate.sigma or 0.0,
            aliasing=added,
            promise=(
                f"holds against the coordinator together with any {terms.colluding} of the "
                f"{terms.n_members} members"
            ),
        )
        opened = self._session.opened.isoformat()
        certificate = certificate.secured(secured, session=self._session.id, time=opened)
        return model.with_about(certificate=certificate)


def added_to_delta(levels: Levels, present: int, blocks: Iterable[NoiseBlock], epsilon: float) -> float:
    """What rounding the parts of honest owners adds to delta, in a sum of so many owners."""
    kept = levels.reached(present) + 1
    return sum(
        aliasing(
            levels.sds(block.sd, block.shift)[:kept] * (present - levels.colluding), block.length, epsilon
        )
        for block in blocks
        if block.sd > 0
    )
