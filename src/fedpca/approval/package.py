"""A package for approval: a model, what there is to know about it, and a page to sign.

What never leaves is written apart from it, for its owner only.
"""

import hashlib
import json
import platform
import zipfile
from collections.abc import Mapping
from math import inf, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedpca import progress
from fedpca._typing import JSON
from fedpca._util.files import atomic_write
from fedpca._util.text import utc_timestamp
from fedpca._util.version import __version__
from fedpca.approval.sign_off import sign_off_page
from fedpca.disclosure.policy import Policy, shows_mean
from fedpca.disclosure.row_counts import RowCounts
from fedpca.estimators.streaming import StreamingPCA
from fedpca.parallel import prefetch
from fedpca.privacy.calibration import epsilon_of, mu_of
from fedpca.readers import RowReader
from fedpca.report.write import write_report
from fedpca.summaries.certificate import IN_MEMORY, Certificate
from fedpca.summaries.summary import Summary

MODEL, CERTIFICATE, RELEASE = "model.safetensors", "certificate.json", "release.json"
REPORT, SIGN_OFF = "report.html", "sign-off.html"
FILES = (MODEL, CERTIFICATE, RELEASE, REPORT, SIGN_OFF)
_NEVER = "This file describes single rows. It stays with the owner of the rows, and no part of the package."


def is_zip(path: Path) -> bool:
    """Whether a package is one file."""
    return path.suffix.lower() == ".zip"


def write_package(
    out: Path,
    contents: bytes,
    summary: Summary,
    *,
    n_components: int,
    title: str,
    policy: Policy | None,
    counts: RowCounts | None,
) -> list[str]:
    """Write a package, whole or not at all; a folder that is not whole has no page to sign.

    Args:
        out: a folder, or a file that ends in .zip.
        contents: of the model file, as its summary was written again.
        summary: what it contains.
        n_components: how many of its components are shown.
        title: of the pages.
        policy: which lets it out; None if nothing was checked.
        counts: of its rows; None of a private model.

    Returns:
        The names of the files in it.
    """
    files = {MODEL: contents}
    if summary.certificate is not None:
        files[CERTIFICATE] = _json(summary.certificate.to_json())
    with TemporaryDirectory(prefix="fedpca-") as temporary:
        page = write_report(Path(temporary) / REPORT, summary, n_components=n_components, title=title)
        files[REPORT] = page.read_bytes()
    release = release_facts(summary, n_components, policy, counts, files)
    files[RELEASE] = _json(release)
    files[SIGN_OFF] = sign_off_page(title, release, _hash(files[RELEASE])).encode()
    if is_zip(out):
        with atomic_write(out) as path, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, written in files.items():
                archive.writestr(f"{out.stem}/{name}", written)
    else:
        _write_folder(out, files)
    return list(files)


def _write_folder(out: Path, files: Mapping[str, bytes]) -> None:
    with TemporaryDirectory(dir=out.parent, prefix=".fedpca-") as temporary:
        for name, written in files.items():
            (Path(temporary) / name).write_bytes(written)
        out.mkdir(exist_ok=True)
        (out / SIGN_OFF).unlink(missing_ok=True)  # of an earlier package; the new one is written last
        for name in FILES:
            if name in files:
                (Path(temporary) / name).replace(out / name)
            else:
                (out / name).unlink(missing_ok=True)  # of an earlier package


def release_facts(
    summary: Summary,
    n_components: int,
    policy: Policy | None,
    counts: RowCounts | None,
    files: Mapping[str, bytes],
) -> JSON:
    """What may be known about a release: of a private one public numbers only."""
    certificate = summary.certificate
    directions = summary.subspace().rank
    facts: JSON = {
        "format": "fedpca release 1",
        "time": utc_timestamp(),
        "rows": summary.count,
        "columns": summary.n_features,
        "column_names": None if summary.feature_names is None else list(summary.feature_names),
        "components": n_components,
        "directions": directions,
        "features_per_row": _ratio(summary.n_features, summary.count),
        "directions_per_row": _ratio(directions, summary.count),
        "contents": summary.kind,
        "means": shows_mean(summary),
        "scaled": summary.scale is not None,
        "privacy": None,
        "secure": None,
        "ledgers": None,
    }
    if certificate is None:
        facts["smallest_level"] = None if counts is None else counts.smallest_level
        facts["levels_counted"] = counts is not None
    else:
        names = ("private", "epsilon", "delta", "adjacency", "mechanism", "unit")
        facts["privacy"] = {name: getattr(certificate, name) for name in names}
        facts["privacy"]["warnings"] = list(certificate.warnings)
        facts["privacy"]["of_five"] = epsilon_of(5 * certificate.mu, certificate.delta)
        facts["secure"] = _secure(certificate)
        facts["ledgers"] = _ledgers(certificate)
    facts["policy"] = None
    if policy is not None:
        facts["policy"] = {
            "hash": policy.hash,
            "keys": policy.to_json(),
            "rules": [result.to_json() for result in policy.results(summary, counts)],
        }
    facts["files"] = {
        name: {"bytes": len(written), "sha256": _hash(written)} for name, written in files.items()
    }
    facts["versions"] = {
        "fedpca": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    return facts


def _secure(certificate: Certificate) -> JSON | None:
    """The weakest terms of the secure sums behind a release; None if it is not all of secure sums."""
    found = [release.secure for release in certificate.all_releases()]
    terms = [each for each in found if each is not None]
    if not terms or len(terms) < len(found):
        return None
    return {name: min(getattr(each, name) for each in terms) for name in ("least", "colluding")}


def _ledgers(certificate: Certificate) -> JSON:
    """What had been spent with the release, as its certificate states it."""
    releases = certificate.all_releases()
    state = certificate.ledger
    facts: JSON = {
        "releases": len(releases),
        "kept": sum(each.ledger is not None for each in releases),
        "one": None,
    }
    if state is None:
        return facts
    facts["kept"] = int(state.kept != IN_MEMORY)
    budget, spent = mu_of(state.epsilon, state.delta), mu_of(max(state.spent, 1e-12), state.delta)
    # What rounding leaves of differences of squares is nothing.
    before, left = (
        epsilon_of(sqrt(square), state.delta) if square > 1e-6 * budget**2 else 0.0
        for square in (spent**2 - certificate.mu**2, budget**2 - spent**2)
    )
    steps = 1 if certificate.steps is None else len(certificate.steps)
    entries = None if state.entries is None else max(state.entries - steps, 0)
    facts["one"] = {"id": state.id, "epsilon": state.epsilon, "delta": state.delta, "spent": state.spent}
    facts["one"] |= {"before": before, "entries_before": entries, "left": left}
    return facts


def local_facts(summary: Summary, rows: RowReader, counts: RowCounts) -> JSON:
    """What never leaves: the row with the largest leverage, and the column with the smallest level.

    The leverage of a row is its share in finding the directions: 1 if one is there for its sake alone.
    """
    largest, where, done = -inf, 0, 0
    directions = summary.subspace()
    if directions.rank:
        pca = StreamingPCA(directions.rank, center=summary.centered, scale=summary.scale).merge(summary)
        lengths = pca.singular_values_
        own = 1 / summary.count if summary.centered else 0.0
        with progress.bar("leverage", rows.n_rows, "rows") as bar, prefetch(rows.batches()) as batches:
            for batch in batches:
                scores = pca.transform(batch) / lengths
                leverages = np.einsum("ij,ij->i", scores, scores) + own
                highest = int(leverages.argmax())
                if leverages[highest] > largest:
                    largest, where = float(leverages[highest]), done + highest + 1
                done += len(batch)
                bar.advance(len(batch))
    facts: JSON = {"format": "fedpca local 1", "note": _NEVER, "rows": summary.count}
    facts["largest_leverage"] = {"value": largest, "row": where} if where else None
    facts["mean_leverage"] = _ratio(directions.rank + summary.centered, summary.count)
    facts["smallest_level"] = {"rows": counts.smallest_level, "column": counts.column or None}
    return facts


def write_local(path: Path, facts: JSON) -> None:
    """Write what never leaves, for its owner only."""
    with atomic_write(path, owner_only=True) as temporary:
        temporary.write_bytes(_json(facts))


def _ratio(number: float, count: float) -> float | None:
    return number / count if count else None


def _json(contents: JSON) -> bytes:
    return json.dumps(contents, indent=2, allow_nan=False).encode() + b"\n"


def _hash(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()
