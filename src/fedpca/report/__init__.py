"""Reports: a model, its rows and its federation on one page that needs no network."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedpca.estimators.base import BasePCA
from fedpca.federation.estimator import FederatedPCA
from fedpca.report.federation import contributions, over_time, troubles
from fedpca.report.figures import drawing
from fedpca.report.formatting import clean, number, share, value
from fedpca.report.layout import Section
from fedpca.report.model import loadings, privacy, spectrum
from fedpca.report.page import write_page, write_pictures
from fedpca.report.rows import rows_section
from fedpca.report.run import Run, run_of
from fedpca.report.sample import sample
from fedpca.summaries.moments import Moments
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

__all__ = ["write_report"]


def write_report(
    path: str | os.PathLike[str],
    model: BasePCA | Summary,
    *,
    rows: Any = None,
    color: Any = None,
    run: Any = None,
    n_components: int | None = None,
    title: str = "Principal components",
    pictures: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a page about a model: one HTML file.

    Args:
        path: where; what is there is replaced.
        model: a fitted estimator, a `Subspace` or `Moments`.
        rows: to show along the components, read once, a sample of them drawn: an array or frame, or
            `fedpca.readers.open_rows(...)`. The page is then as confidential as they are.
        color: what to color them by: the name of a column (of files, a passthrough column or a feature), or
            one value per row.
        run: how the federation behind it went: the folder of a Flower run or of an aggregator's store, an
            `Aggregator`, or a `Simulation`. Of a `FederatedPCA` its contributions are shown in any case.
        n_components: how many to show; by default as many as the estimator has, or all of a summary.
        title: of the page.
        pictures: a folder for all charts as .png and .svg.

    Returns:
        The path.

    >>> import fedpca, tempfile
    >>> from sklearn.datasets import load_iris
    >>> iris = load_iris(as_frame=True)
    >>> pca = fedpca.StreamingPCA(2).fit(iris.data)
    >>> page = Path(tempfile.mkdtemp()) / "iris.html"
    >>> text = write_report(page, pca, rows=iris.data, color=iris.target).read_text()
    >>> text.count("<svg"), "sepal length (cm)" in text
    (6, True)
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}; make it.")
    subspace, shown = _directions(model, n_components)
    if run is None and isinstance(model, FederatedPCA):
        run = model
    went = None if run is None else run_of(run)
    with drawing():
        sections = _sections(subspace, shown, rows, color, went)
    if pictures is not None:
        write_pictures(Path(pictures), sections)
    write_page(path, clean(title, 100), _facts(subspace, shown, went), sections)
    return path


def _directions(model: BasePCA | Summary, n_components: int | None) -> tuple[Subspace, int]:
    """All directions carried, and how many to show: none without variance."""
    if isinstance(model, BasePCA):
        subspace, shown = model.subspace_, model.n_components_
    elif isinstance(model, Subspace | Moments):
        subspace = model.subspace() if isinstance(model, Moments) else model
        shown = subspace.rank
    else:
        raise TypeError(f"a report is of a fitted PCA, a Subspace or Moments, got {type(model).__name__}.")
    return subspace, min(n_components or shown, int(np.count_nonzero(subspace.singular_values)))


def _sections(subspace: Subspace, shown: int, rows: Any, color: Any, run: Run | None) -> list[Section]:
    sections = [spectrum(subspace, shown)]
    if rows is not None and shown:
        seen = sample(rows, subspace, shown, color)
        sections.append(rows_section(subspace, seen, color if isinstance(color, str) else ""))
    if shown:
        sections.append(loadings(subspace, shown))
    if run is not None:
        sections += [contributions(run), over_time(run), troubles(run)]
    if subspace.certificate is not None:
        sections.append(privacy(subspace.certificate))
    return [section for section in sections if section.words or section.items]


def _facts(subspace: Subspace, shown: int, run: Run | None) -> list[tuple[str, str]]:
    """What there is to know at a glance."""
    held = float(subspace.explained_variance_ratio[:shown].sum())
    facts = [
        ("rows", number(subspace.count)),
        ("features", number(subspace.n_features)),
        ("components", number(shown)),
        ("variance held", share(held)),
    ]
    if run is not None:
        facts.append(("clients", number(len(run.contributions))))
        facts.append(("refused or silent", number(len(run.troubles))))
    certificate = subspace.certificate
    if certificate is None:
        facts.append(("privacy", "none"))
    else:
        facts.append(
            ("privacy", f"ε = {value(certificate.epsilon)}" if certificate.private else "NOT private")
        )
    return facts
