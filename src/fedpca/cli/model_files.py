"""Model files of the command line: a summary, and how many of its components are shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedpca._util.text import feature_label, pluralize

if TYPE_CHECKING:
    from fedpca._typing import JSON
    from fedpca.cli.common import Reading
    from fedpca.disclosure.row_counts import RowCounts
    from fedpca.summaries.summary import Summary
    from fedpca.trust.roster import Signer


def read(path: Path) -> "tuple[Summary, int]":
    """The summary in a model file, and how many of its components are shown."""
    from fedpca.summaries import model_file

    return decode(path, model_file.read_bytes(path))


def decode(path: Path, contents: bytes) -> "tuple[Summary, int]":
    """The same, of a file that was read already."""
    from fedpca.errors import ModelFileError
    from fedpca.summaries import model_file
    from fedpca.summaries.loading import from_file, split_facts

    kind, arrays, metadata = model_file.decode(contents, path)
    facts, beside = split_facts(path, metadata)
    counts_of(path, beside)
    summary = from_file(path, kind, arrays, facts)
    if (shown := beside.get("n_components", 0)) < 0:
        raise ModelFileError(f"{path} is damaged: n_components must be at least 0, got {shown}.")
    return summary, beside.get("n_components", summary.subspace().rank)


def counts_in(path: Path, contents: bytes) -> "RowCounts | None":
    """What was counted in the rows of a model when it was fitted under a policy; None if nothing was."""
    from fedpca.summaries import model_file

    return counts_of(path, model_file.decode(contents, path)[2])


def counts_of(path: Path, metadata: "JSON") -> "RowCounts | None":
    """The same, of the metadata of a file."""
    from fedpca.disclosure.row_counts import RowCounts
    from fedpca.errors import ModelFileError

    counted = metadata.get("counted")
    try:
        return None if counted is None else RowCounts.from_json(counted)
    except ValueError as error:
        raise ModelFileError(f"{path} is damaged: {error}") from error


def write(
    path: Path,
    summary: "Summary",
    n_components: int,
    counts: "RowCounts | None" = None,
    signer: "Signer | None" = None,
    reading: "Reading | None" = None,
    limits: "JSON | None" = None,
) -> None:
    """Write a model file, see `encode`, signed if there is a signer."""
    from fedpca.summaries import model_file

    contents = encode(summary, n_components, counts, reading if signer is None else None, limits)
    model_file.write_bytes(path, contents if signer is None else signer.sign(contents))


def encode(
    summary: "Summary",
    n_components: int,
    counts: "RowCounts | None" = None,
    reading: "Reading | None" = None,
    limits: "JSON | None" = None,
) -> bytes:
    """A model file; it carries more directions than it shows, so that little is lost in merges.

    Of a private model that is the number asked for: merged with others, more may rise above the noise. What a
    policy had counted in the rows stays with the model, so that it can be checked without them. So do the
    options its rows were read with, unless the model is signed and so to leave, and the limit of their
    scores.
    """
    from fedpca.summaries import model_file

    metadata = summary.metadata | {"n_components": n_components}
    if counts is not None:
        metadata["counted"] = counts.to_json()
    given = {name: value for name, value in (reading or {}).items() if _is_given(value)}
    if given:
        metadata["reading"] = given
    if limits is not None:
        metadata["limits"] = limits
    return model_file.encode(summary.kind, summary.arrays, metadata)


def refuse_own_facts(path: Path, contents: bytes) -> None:
    """Refuse a file that is to leave and has what stays with its owner."""
    from fedpca.summaries import model_file

    model_file.require_no_own_facts(model_file.decode(contents, path)[2], path)


def reading_of(path: Path, contents: bytes, rows: Sequence[str], given: "Reading") -> "Reading":
    """How to read more rows of a model: as given, and else as those of its fit were, if they have options."""
    from fedpca.errors import ModelFileError
    from fedpca.readers.row_reader import options_of
    from fedpca.summaries import model_file

    if not rows:
        return given
    stored = model_file.decode(contents, path)[2].get("reading", {})
    if not isinstance(stored, dict) or not stored.keys() <= given.keys():
        raise ModelFileError(f"{path} is damaged: reading must be options of how text is read.")
    own = {name: value for name, value in given.items() if _is_given(value)}
    known = options_of(rows)
    return cast("Reading", given | {name: value for name, value in stored.items() if name in known} | own)


def without_reading(path: Path, contents: bytes) -> bytes:
    """The same model for others: they read their own rows."""
    from fedpca.summaries import model_file

    kind, arrays, metadata = model_file.decode(contents, path)
    if metadata.pop("reading", None) is None:
        return contents
    return model_file.encode(kind, arrays, metadata)


def _is_given(value: object) -> bool:
    """Whether an option is; --no-header is, too."""
    return (value is not None and value not in ((), [], 0)) or value is False


def require_components(path: Path, summary: "Summary", n_components: int | None) -> None:
    """Reject a number of components larger than that of the directions a model has."""
    if n_components is not None and n_components > (rank := summary.subspace().rank):
        raise ValueError(
            f"--components must be at most {rank}, all directions of {path}, got {n_components}."
        )


def describe(summary: "Summary", n_components: int) -> "JSON":
    """What is known about a model, as JSON."""
    from fedpca.summaries.algebra import degrees_of_freedom

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


def loadings(summary: "Summary", n_components: int) -> "JSON":
    """A table with one row per feature; features without names have numbers, from 1."""
    directions = summary.subspace()
    scale = directions.scale
    means = {"mean": directions.mean} if scale is None else {"mean": directions.mean * scale, "scale": scale}
    return {
        "feature": [feature_label(i, summary.feature_names) for i in range(summary.n_features)],
        **means,
        **{f"pc{i}": component for i, component in enumerate(directions.components[:n_components], 1)},
    }


def headline(path: Path, summary: "Summary", description: "JSON") -> str:
    """A model in one line."""
    components = pluralize(description["n_components"], "component")
    share = sum(description["explained_variance_ratio"])
    text = f"{path}: {components} of {pluralize(description['rows'], 'row')}, {share:.1%} of the variance"
    if summary.certificate is None:
        return text
    text = f"{text}; {summary.certificate.describe()}"
    found = summary.certificate.evaluation
    return text if found is None else f"{text}\n{found.describe(description['n_components'])}"
