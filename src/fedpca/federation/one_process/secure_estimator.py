"""Secure sums of a FederatedPCA: which of its settings they allow, and what all clients sum."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

from fedpca._typing import AnyArray, RowsLike
from fedpca.backend import backend_of, to_host
from fedpca.federation.one_process.client_features import features_of_most
from fedpca.federation.one_process.client_rows import streams
from fedpca.federation.one_process.client_team import no_client_left
from fedpca.federation.one_process.secure_clients import SecureClients
from fedpca.parallel import single_threaded_blas
from fedpca.secure.fit import Fit, PrivateFit
from fedpca.secure.plain_fit import PlainFit
from fedpca.secure.rows import OwnerRows
from fedpca.secure.settings import SecureSums
from fedpca.summaries import validation
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.scaling import check_scale
from fedpca.summaries.view import SummaryView

if TYPE_CHECKING:
    from fedpca.federation.one_process.federated_pca import FederatedPCA


def check_settings(pca: "FederatedPCA", clients: Mapping[str, RowsLike]) -> None:
    """Before anything is read or spent: what secure sums cannot do."""
    if not isinstance(pca.secure, SecureSums):
        raise TypeError(f"secure must be a SecureSums or None, got secure={pca.secure!r}.")
    pca.secure.terms(sorted(clients))
    if pca.robust is not None:
        raise ValueError(
            f"robust must be None with secure sums, got robust={pca.robust!r}: nobody sees what a "
            "client has, so nobody sees a lie. Choose one of the two."
        )
    if pca.features != "same":
        raise ValueError(
            f"features must be 'same' with secure sums, got features={pca.features!r}: only sums of the "
            "same features add up. Select the same columns of all clients."
        )
    if pca.tracker != "auto":
        raise ValueError(
            f"tracker must be 'auto' with secure sums, got tracker={pca.tracker!r}: what is summed "
            "follows from privacy."
        )
    if pca.energy is not None or not isinstance(pca.n_components, Integral):
        raise ValueError(
            "n_components must be a whole number with secure sums, and energy None, got "
            f"n_components={pca.n_components!r}, energy={pca.energy!r}."
        )
    if (pca.privacy is None) == (pca.secure.largest is None):
        raise ValueError(
            "secure sums need privacy=Privacy(...) or, without noise, SecureSums(largest=...), a public "
            f"bound on the entries of rows, and not both; got {pca.privacy} and {pca.secure}."
        )
    if whose := streams(clients):
        raise ValueError(
            f"secure sums read rows once per sum, and those of {whose} are batches that are read once; "
            "pass tables."
        )


@dataclass(frozen=True)
class SecureModel:
    """What came out of secure sums over clients.

    Attributes:
        view: the model.
        n_features, feature_names: of all clients in it.
        n_rows: of every client in it, by name.
        problems: why others are not, or dropped out later.
        epsilon: the cost of the model for every row; None without privacy.
        constant: features that are to be scaled but do not vary.
        not_found: features whose scale was lost in the noise.
        doubt: what to say about a public bound, or "".
    """

    view: SummaryView
    n_features: int
    feature_names: tuple[str, ...] | None
    n_rows: Mapping[str, int]
    problems: Mapping[str, str]
    epsilon: float | None
    constant: AnyArray | None
    not_found: AnyArray | None
    doubt: str


def fit_securely(pca: "FederatedPCA", clients: Mapping[str, RowsLike], workers: int) -> SecureModel:
    """The model of all clients by sums of which nobody sees a part, the clients in threads."""
    assert isinstance(pca.secure, SecureSums)
    rows, problems = _owner_rows(pca, clients)
    if not rows:
        raise ValueError(no_client_left(problems))
    votes = [(own.n_features, own.feature_names, own.n_rows) for own in rows.values()]
    n_features, names = features_of_most(votes)
    for name, own in list(rows.items()):
        if own.n_features != n_features or own.feature_names not in (None, names):
            problems[name] = f"its {own.n_features} features are not those of most clients."
            del rows[name]
    study = SecureClients(rows, problems, lambda: _agreed(pca, n_features, names), pca.secure, pca.privacy)
    with single_threaded_blas(), ThreadPoolExecutor(workers) as pool:
        result = study.run(pool)
    fit, certificate = result.fit, result.model.certificate
    return SecureModel(
        _secured(fit.view, certificate),
        n_features,
        names,
        {name: rows[name].n_rows for name in result.owners},
        result.problems,
        None if certificate is None else float(certificate.epsilon),
        constant=fit.constant if isinstance(fit, PlainFit) else None,
        not_found=fit.left_out if isinstance(fit, PrivateFit) else None,
        doubt=fit.bound_warning() if isinstance(fit, PrivateFit) else "",
    )


def _owner_rows(
    pca: "FederatedPCA", clients: Mapping[str, RowsLike]
) -> tuple[dict[str, OwnerRows], dict[str, str]]:
    """The rows of clients, and why some have none that can be used."""
    rows, problems = {}, {}
    for name, given in clients.items():
        client = pca._client()
        try:
            table = client._validated(given, reset=True)
            table = to_host(table) if backend_of(table).on_device else table
            rows[name] = OwnerRows.of_table(table, client._names())
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"
    return rows, problems


def _agreed(pca: "FederatedPCA", n_features: int, names: tuple[str, ...] | None) -> Fit:
    """What all clients have agreed to sum."""
    assert isinstance(pca.secure, SecureSums)
    rank = validation.rank(pca.n_components, n_features, "n_components")
    scale = check_scale(pca.scale, n_features, names)
    if pca.privacy is not None:
        return PrivateFit(pca.privacy, n_features, rank, scale=scale, feature_names=names)
    assert pca.secure.largest is not None
    return PlainFit(
        pca.secure.largest, n_features, rank, center=bool(pca.center), scale=scale, feature_names=names
    )


def _secured(view: SummaryView, certificate: Certificate | None) -> SummaryView:
    """The view of a summary whose certificate states who took part, as that of the published model does."""
    own = view.whole.certificate
    if certificate is None or certificate.secure is None or own is None:
        return view
    own = own.secured(certificate.secure, session=certificate.release or "", time=certificate.time or "")
    return SummaryView(view.whole.with_about(certificate=own), view.rule, view.oversample, view.dtype)
