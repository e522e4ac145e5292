"""Progress: a model that takes the totals of a session as they come. Anyone can compute it."""

from math import ceil, frexp, ldexp
from typing import TypeVar

from fedpca.errors import SecureError
from fedpca.secure.aliasing import added_to_delta
from fedpca.secure.board import CheckedBoard
from fedpca.secure.fit import Fit
from fedpca.secure.messages import Board, Total
from fedpca.secure.session import Session
from fedpca.summaries.base import BaseSummary
from fedpca.summaries.certificate import Secured
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_S = TypeVar("_S", bound=BaseSummary)

# Owners compute the deviation of the noise from public numbers, each on its own machine, and results differ
# in the last digits: a fit has some hundred operations. At these limits epsilon is 1e-12 of itself larger, or
# 1e-5 smaller than needed (`benchmarks.secure`, announced deviations). What is announced is rounded up to 24
# bits, so at most 1.2e-7 larger: the same number on nearly all machines, and large enough for each.
SAME = 1e-12
LARGER = 1e-5
_DIGITS = 24


class Progress:
    """A session, and the model of the sums that have their totals.

    Args:
        session: that boards are of.
        fit: what its members have agreed on, from the first sum on: it is changed.
    """

    def __init__(self, session: Session, fit: Fit) -> None:
        self.session = session
        self.fit = fit
        self._begun = False
        self._n_taken = 0

    def follow(self, board: Board) -> CheckedBoard:
        """Take the totals that are new, and read the board."""
        shown = CheckedBoard(self.session, board)
        if not self._begun and shown.has("members"):
            self._begin(shown)
        while self._begun and self._n_taken < shown.n_totals:
            self._add(shown.total(self._n_taken))
            self._n_taken += 1
        return shown

    @property
    def has_ended(self) -> bool:
        """Whether all sums are taken."""
        return self._begun and self.fit.next is None

    @property
    def announcement(self) -> tuple[str, list[tuple[int, float]]] | None:
        """Name and blocks of the next sum, as they are announced; None after the last."""
        if (needed := self.fit.next) is None:
            return None
        return needed.name, [(length, _rounded_up(sd)) for length, sd in needed.blocks]

    def model(self, board: Board) -> Subspace:
        """The model, once all sums are taken, with its certificate."""
        shown = self.follow(board)
        return self._secured(self.fit.model, shown)

    def release(self, board: Board) -> Summary:
        """What the model is taken from, with the same certificate: it merges with others."""
        shown = self.follow(board)
        return self._secured(self.fit.view.whole, shown)

    def _begin(self, board: CheckedBoard) -> None:
        members = board.members
        try:
            self.fit.begin(board.rows, board.levels.variance(len(members), len(members)))
        except ValueError as error:  # a member may state any number
            most = max(members, key=board.rows_of)
            raise SecureError(
                f"{str(error).rstrip('.')}. Of {board.rows} rows that the members state, "
                f"{board.names([most])} states the most, {board.rows_of(most)}; if that is wrong, let "
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

    def _secured(self, model: _S, board: CheckedBoard) -> _S:
        """The model, or its release, with a certificate that states who took part, and against whom it
        holds."""
        certificate = model.certificate
        if certificate is None:
            return model
        terms = self.session.terms
        added = sum(
            added_to_delta(board.levels, len(total.owners), total.blocks, certificate.epsilon)
            for total in board.totals
        )
        secured = Secured(
            study=self.session.roster.study,
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
        opened = self.session.opened.isoformat()
        certificate = certificate.secured(secured, session=self.session.id, time=opened)
        return model.with_about(certificate=certificate)


def _rounded_up(sd: float) -> float:
    mantissa, exponent = frexp(sd)
    return ldexp(ceil(mantissa * 2**_DIGITS * (1 - SAME / 10)) / 2**_DIGITS, exponent)
