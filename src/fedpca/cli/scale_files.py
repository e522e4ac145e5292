"""Files of fedpca scale: a Scaling each, and their merge."""

from collections.abc import Mapping
from pathlib import Path

from fedpca._util.text import pluralize
from fedpca.cli.options import Output
from fedpca.genetics import count_alike
from fedpca.summaries import model_file
from fedpca.summaries.features import columns_of, common_names
from fedpca.summaries.loading import scaling_from_file, split_facts
from fedpca.summaries.scaling import Scaling


def decode_all(files: Mapping[str, bytes]) -> dict[str, Scaling]:
    """The scalings in files, by their names; none if they are models, and an error if only some are."""
    decoded = {name: model_file.decode(contents, name) for name, contents in files.items()}
    found = {
        name: scaling_from_file(name, arrays, split_facts(name, metadata)[0])
        for name, (kind, arrays, metadata) in decoded.items()
        if kind == Scaling.kind
    }
    if found and (models := [name for name in files if name not in found]):
        raise ValueError(
            f"files to merge must all be models, or all of fedpca scale, but {models[0]} is a model and "
            f"{next(iter(found))} is not; leave one out."
        )
    return found


def merge(out: Path, scalings: Mapping[str, Scaling], intersection: bool, output: Output) -> None:
    """Write the scaling of all rows behind others."""
    owners = list(scalings)
    parts, matches = count_alike(list(scalings.values()), owners)
    if intersection:
        names = common_names(parts, owners)
        chosen = [columns_of(part.feature_names or (), names) for part in parts]
        parts = [part.with_columns(own).with_names(names) for part, own in zip(parts, chosen, strict=True)]
    merged = Scaling.merge(parts, option="--features intersection")
    merged.save(out)
    data = describe(out, merged) | {"variants": [match.to_json() for match in matches]}
    output.result(data, "\n".join([headline(out, merged), *map(str, matches)]))


def describe(out: Path, scaling: Scaling) -> dict[str, object]:
    """What is known about a scaling, as JSON."""
    return {"out": str(out), "kind": scaling.kind, "rows": rows(scaling), "n_features": scaling.n_features}


def headline(out: Path, scaling: Scaling) -> str:
    """A scaling in one line."""
    return f"{out}: scale of {pluralize(scaling.n_features, 'feature')} of {pluralize(rows(scaling), 'row')}"


def rows(scaling: Scaling) -> float:
    """Rows that know the feature that most know."""
    return float(scaling.observed.max())
