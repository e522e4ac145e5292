"""What the certificate of a model made of secure sums says about them."""

from dataclasses import replace

from fedpca.secure.aliasing import aliasing, require_negligible
from fedpca.secure.record import Record
from fedpca.summaries.certificate import Secured, SecureSum
from fedpca.summaries.subspace import Subspace


def secured(model: Subspace, record: Record) -> Subspace:
    """The model whose certificate states who took part; one without privacy has none, and stays the same.

    The same board, the same certificate, whoever reads it and when.
    """
    certificate, terms, session = model.certificate, record.terms, record.session
    if certificate is None:
        return model
    term = _aliasing_of(record, certificate.epsilon)
    require_negligible(term, certificate.delta)
    others = "any other owner" if terms.colluding == 1 else f"any {terms.colluding} other owners"
    stated = Secured(
        study=session.roster.study,
        members=terms.ids,
        least=terms.least,
        colluding=terms.colluding,
        threshold=terms.threshold,
        sums=tuple(SecureSum(total.name, total.owners, total.rows, total.noise) for total in record.totals),
        sigma=certificate.sigma or 0.0,
        aliasing=term,
        promise=f"The promise to an owner's records holds against the coordinator together with {others}.",
    )
    time = session.opened.isoformat(timespec="milliseconds")
    return replace(model, certificate=certificate.secured(stated, session=session.id, time=time))


def _aliasing_of(record: Record, epsilon: float) -> float:
    """What rounding the parts of the noise, one by one, adds to delta in all sums."""
    term, levels = 0.0, record.levels
    for total in record.totals:
        honest = len(total.owners) - record.terms.colluding
        kept = levels.reached(len(total.owners)) + 1
        for length, sd, shift in total.blocks:
            term += aliasing(levels.sds(sd, shift)[:kept] * honest, length, epsilon)
    return term
