"""Model files of the command line: a summary, and how many of its components are shown."""

from pathlib import Path

from fedpca._typing import JSON
from fedpca._util.text import feature_label, pluralize
from fedpca.disclosure.row_counts import RowCounts
from fedpca.errors import ModelFileError
from fedpca.summaries import model_file
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.loading import from_file, split_facts
from fedpca.summaries.summary import Summary
from fedpca.trust.roster import Signer


def read(path: Path) -> tuple[Summary, int]:
    """The summary in a model file, and how many of its components are shown."""
    return decode(path, model_file.read_bytes(path))


def decode(path: Path, contents: bytes) -> tuple[Summary, int]:
    """The same, of a file that was read already."""
    kind, arrays, metadata = model_file.decode(contents, path)
    facts, beside = split_facts(path, metadata)
    counts_of(path, beside)
    summary = from_file(path, kind, arrays, facts)
    if (shown := beside.get("n_components", 0)) < 0:
        raise ModelFileError(f"{path} is damaged: n_components must be at least 0, got {shown}.")
    return summary, beside.get("n_components", summary.subspace().rank)


def counts_in(path: Path, contents: bytes) -> RowCounts | None:
    """What was counted in the rows of a model when it was fitted under a policy; None if nothing was."""
    return counts_of(path, model_file.decode(contents, path)[2])


def counts_of(path: Path, metadata: JSON) -> RowCounts | None:
    """The same, of the metadata of a file."""
    counted = metadata.get("counted")
    try:
        return None if counted is None else RowCounts.from_json(counted)
    except ValueError as error:
        raise ModelFileError(f"{path} is damaged: {error}") from error


def write(
    path: Path,
    summary: Summary,
    n_components: int,
    counts: RowCounts | None = None,
    signer: Signer | None = None,
    reading: JSON | None = None,
    limits: JSON | None = None,
) -> None:
    """Write a model file, see `encode`, signed if there is a signer."""
    contents = encode(summary, n_components, counts, reading if signer is None else None, limits)
    model_file.write_bytes(path, contents if signer is None else signer.sign(contents))


def encode(
    summary: Summary,
    n_components: int,
    counts: RowCounts | None = None,
    reading: JSON | None = None,
    limits: JSON | None = None,
) -> bytes:
    """A model file; it carries more directions than it shows, so that little is lost in merges.

    Of a private model that is the number asked for: merged with others, more may rise above the noise. What a
    policy had counted in the rows stays with the model, so that it can be checked without them. So do the
    options its rows were read with, unless the model is signed and so to leave, and the limit of their
    scores.
    """
    metadata = summary.metadata | {"n_components": n_components}
    if counts is not None:
        metadata["counted"] = counts.to_json()
    if reading:
        metadata["reading"] = reading
    if limits is not None:
        metadata["limits"] = limits
    return model_file.encode(summary.kind, summary.arrays, metadata)


def refuse_own_facts(path: Path, contents: bytes) -> None:
    """Refuse a file that is to leave and has what stays with its owner."""
    model_file.require_no_own_facts(model_file.decode(contents, path)[2], path)


def without_reading(path: Path, contents: bytes) -> bytes:
    """The same model for others: they read their own rows."""
    kind, arrays, metadata = model_file.decode(contents, path)
    if metadata.pop("reading", None) is None:
        return contents
    return model_file.encode(kind, arrays, metadata)


def require_components(path: Path, summary: Summary, n_components: int | None) -> None:
    """Reject a number of components larger than that of the directions a model has."""
    if n_components is not None and n_components > (rank := summary.subspace().rank):
        raise ValueError(
            f"--components must be at most {rank}, all directions of {path}, got {n_components}."
        )


def describe(summary: Summary, n_components: int) -> JSON:
    """What is known about a model, as JSON."""
    directions = summary.subspace()
    values = directions.singular_values[:n_components]
    return {
        "kind": summary.kind,
        "rows": summary.count,
        "n_features": summary.n_features,
        "n_components": len(values),
        "carried": directions.rank,
        "centered": summary.centered,
        "scale": summary.scale if summary.scale is None or isinstance(summary.scale, str) else "numbers",
        "explained_variance": (values**2 / degrees_of_freedom(summary.count)).tolist(),
        "explained_variance_ratio": directions.explained_variance_ratio[:n_components].tolist(),
        "feature_names": None if summary.feature_names is None else list(summary.feature_names),
        "certificate": None if summary.certificate is None else summary.certificate.to_json(),
    }


def loadings(summary: Summary, n_components: int) -> JSON:
    """A table with one row per feature; features without names have numbers, from 1."""
    directions = summary.subspace()
    scale = directions.scale
    means = {"mean": directions.mean} if scale is None else {"mean": directions.mean * scale, "scale": scale}
    return {
        "feature": [feature_label(i, summary.feature_names) for i in range(summary.n_features)],
        **means,
        **{f"pc{i}": component for i, component in enumerate(directions.components[:n_components], 1)},
    }


def headline(path: Path, summary: Summary, description: JSON) -> str:
    """A model in one line."""
    components = pluralize(description["n_components"], "component")
    share = sum(description["explained_variance_ratio"])
    text = f"{path}: {components} of {pluralize(description['rows'], 'row')}, {share:.1%} of the variance"
    if summary.certificate is None:
        return text
    text = f"{text}; {summary.certificate.describe()}"
    found = summary.certificate.evaluation
    return text if found is None else f"{text}\n{found.describe(description['n_components'])}"
