"""write_report: a model, its rows and its federation as one page."""

import os
from pathlib import Path

from fedpca._typing import Array, RowsLike
from fedpca._util.files import local_path
from fedpca._util.text import format_number, percent, sanitize
from fedpca.estimators.base import BasePCA
from fedpca.estimators.detector import PCADetector
from fedpca.federation.one_process.federated_pca import FederatedPCA
from fedpca.plot.model import shown_components
from fedpca.plot.style import drawing
from fedpca.report.alarms import AlarmLog, alarms_section
from fedpca.report.data import explorable, known_variances
from fedpca.report.federation import contributions, incidents, influence, over_time
from fedpca.report.formatting import cell
from fedpca.report.layout import Section
from fedpca.report.model import certificate_section, explained_variance, loadings
from fedpca.report.page import write_page, write_pictures
from fedpca.report.run import Run, load_run
from fedpca.report.sample import Passthrough, Sample, sample_rows
from fedpca.report.scores import scores_section
from fedpca.report.secure import secure_section
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary


def write_report(
    path: str | os.PathLike[str],
    model: BasePCA | PCADetector | Summary,
    *,
    rows: RowsLike = None,
    color: object = None,
    passthrough: Passthrough = None,
    run: object = None,
    n_components: int | None = None,
    signature: str = "",
    title: str = "PCA report",
    pictures: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a report about a model: one self-contained HTML file.

    Args:
        path: the file to write; an existing one is replaced.
        model: a fitted estimator, a `Subspace` or `Moments`; of a `PCADetector` with a limit the page also
            shows the alarms among the rows, and what caused them.
        rows: data to plot along the components: an array or frame, or `fedpca.readers.open_rows(...)`. It is
            read once, and a random sample is drawn. The page is then as confidential as the rows.
        color: what to color rows by: the name of a column (of files, also a passthrough one), or one value
            per row. Readers of the page can choose another passthrough column.
        passthrough: columns to show with each row, such as ids and labels: names of columns of a frame, or a
            mapping (or frame) of names to one value per row. Those of files are the ones that `open_rows`
            passes through. At most 20.
        run: the federation behind the model: the folder of a Flower run or of an aggregator's store, an
            `Aggregator`, or a `Simulation`. The contributions to a `FederatedPCA` are shown without it.
        n_components: number of components to show; by default those of the estimator, or all of a summary.
        signature: who signed the model's file, and whether that holds, in words; "" shows nothing.
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
    (8, True)
    """
    path = local_path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}; create it.")
    if rows is None and (color is not None or passthrough is not None):
        raise ValueError("color and passthrough are about rows, but there are none; give rows, too.")
    log = None
    if isinstance(model, PCADetector):
        log = AlarmLog(model) if rows is not None and model.histogram_ is not None else None
        model = model.pca_
    subspace, n_shown = shown_components(model, n_components)
    if run is None and isinstance(model, FederatedPCA):
        run = model
    run_history = None if run is None else load_run(run)
    sample = None
    if rows is not None and n_shown:
        sample = sample_rows(rows, subspace, n_shown, color, passthrough, log)
    variances = known_variances(model, subspace)
    with drawing():
        sections = _sections(subspace, n_shown, sample, variances, run_history, signature)
        if log is not None and log.n_rows:
            sections.insert(0, alarms_section(log, subspace.feature_names))
    if pictures is not None:
        write_pictures(Path(pictures), sections)
    data = explorable(subspace, n_shown, variances, sample) if n_shown else None
    write_page(path, sanitize(title, 100), _key_figures(subspace, n_shown, run_history), sections, data)
    return path


def _sections(
    subspace: Subspace,
    n_shown: int,
    sample: Sample | None,
    variances: Array | None,
    run_history: Run | None,
    signature: str,
) -> list[Section]:
    sections = [explained_variance(subspace, n_shown)]
    if sample is not None:
        sections.append(scores_section(subspace, sample, n_shown))
    if n_shown:
        sections.append(loadings(subspace, n_shown, variances))
    if run_history is not None:
        sections += [contributions(run_history), influence(run_history)]
        sections += [over_time(run_history), incidents(run_history)]
    if subspace.certificate is not None:
        sections.append(certificate_section(subspace.certificate))
        sections.append(secure_section(subspace.certificate))
    if signature:
        text = sanitize(signature[:1].upper() + signature[1:], 1000)
        sections.append(Section("signature", "Signature", (f"{text}.",), ()))
    return [section for section in sections if section.paragraphs or section.items]


def _key_figures(subspace: Subspace, n_shown: int, run_history: Run | None) -> list[tuple[str, str]]:
    """The numbers at the top of the page, each with its name."""
    figures = [
        ("rows", format_number(subspace.count)),
        ("features" if subspace.scale is None else "features, scaled", format_number(subspace.n_features)),
        ("components", format_number(n_shown)),
        ("explained variance", percent(float(subspace.explained_variance_ratio[:n_shown].sum()))),
    ]
    if run_history is not None:
        figures.append(("clients", format_number(run_history.n_clients)))
        figures.append(("incidents", format_number(len(run_history.incidents))))
    certificate = subspace.certificate
    if certificate is None:
        privacy = "none"
    else:
        privacy = f"ε = {cell(certificate.epsilon)}" if certificate.private else "NOT private"
    return [*figures, ("privacy", privacy)]
