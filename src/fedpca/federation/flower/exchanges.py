"""What the server publishes of scalings and noisy sums: a model file of pooled scalings, sums, and models."""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

import numpy as np

from fedpca._typing import JSON, AnyArray, Array
from fedpca._util.text import join_names
from fedpca.errors import ModelFileError
from fedpca.federation.aggregator.owner_sum import Features, facts_of, step_sum
from fedpca.privacy import Privacy, StepSum
from fedpca.privacy.model import PrivateModel
from fedpca.summaries import model_file, validation
from fedpca.summaries.rank import FixedRank
from fedpca.summaries.scaling import check_scale
from fedpca.summaries.subspace import Subspace
from fedpca.trackers import fastest

MAX_SUMS = 32
"""More than there are private steps."""

_NONE = object()  # of a setting that is not there: null is a value

ReplyKind = Literal["release", "scaling", "sum", "waits"]


class Reply(NamedTuple):
    """What a node sends: its release; or, before or after it, its scaling or a noisy sum.

    Attributes:
        kind: of "waits" there is nothing to send: others take a private step without this one.
        contents: a model file; of "waits" the name of the client, in UTF-8.
    """

    kind: ReplyKind
    contents: bytes


@dataclass(frozen=True, eq=False)
class Published:
    """What nodes need from others before they release, and the model that they evaluate after it.

    Attributes:
        scale: what rows are divided by, shape (d,), of nodes without privacy; None if there is none.
        sums: of every private step so far, over all owners that took it.
        rank: components that the private steps were planned for; 0 before the first.
        model: to evaluate, or None.
        facts: what it belongs to, for the server's file.
    """

    scale: Array | None = None
    sums: tuple[StepSum, ...] = ()
    rank: int = 0
    model: Subspace | None = None
    facts: JSON = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that a node needs."""
        return self.scale is None and self.model is None and not self.sums

    def with_sum(self, pooled: StepSum) -> Self:
        """The same with one more step."""
        return replace(self, sums=(*self.sums, pooled))

    def encode(self) -> bytes:
        """A model file; the same contents give the same bytes."""
        return model_file.encode(*self.contents())

    def contents(self) -> model_file.Contents:
        """Kind, arrays and metadata of its model file."""
        arrays: dict[str, AnyArray] = {f"sum.{i}": pooled.total for i, pooled in enumerate(self.sums)}
        metadata: JSON = {"sums": [facts_of(pooled) for pooled in self.sums], "rank": self.rank}
        if self.scale is not None:
            arrays["scale"] = self.scale
        if self.model is not None:
            arrays |= {f"model.{name}": array for name, array in self.model.arrays.items()}
            metadata["model"] = self.model.metadata
        return "published", arrays, metadata | {"facts": self.facts}

    @classmethod
    def decode(cls, contents: bytes, name: object = "what was published") -> Self:
        """The inverse of `encode`, every value checked."""
        kind, arrays, metadata = model_file.decode(contents, name)
        try:
            if kind != "published":
                raise ValueError(f"it is a {kind!r:.80}")
            parts = metadata["sums"]
            if not isinstance(parts, list) or len(parts) > MAX_SUMS:
                raise ValueError(f"sums must be a list of at most {MAX_SUMS}.")
            model = None
            if "model" in metadata:
                of_model = {key[6:]: array for key, array in arrays.items() if key.startswith("model.")}
                model = Subspace.from_file_contents(of_model, metadata["model"])
            scale = arrays.get("scale")
            found = cls(
                None if scale is None else _checked_scale(scale),
                tuple(step_sum(part, arrays[f"sum.{i}"]) for i, part in enumerate(parts)),
                validation.integer(metadata["rank"], "rank", at_least=0),
                model,
                dict(metadata["facts"]),
            )
            model_file.require_exact(kind, (arrays, metadata), found.contents()[1:])
            return found
        except KeyError as error:
            raise ModelFileError(f"{name} is not valid: {error} is missing.") from error
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ModelFileError(f"{name} is not valid: {error}") from error


def shared_model(run: JSON, features: Features, published: Published) -> PrivateModel:
    """The machine of private steps, with those taken so far: it knows which comes next.

    Args:
        run: what all share, with epsilon and delta.
        features: of all rows.
        published: what was found so far.
    """
    privacy, (n_features, names) = Privacy.agreed(run), features
    assert privacy is not None
    model = PrivateModel(
        privacy,
        n_features,
        FixedRank(min(published.rank or run["rank"], n_features)),
        scale="std" if run["scale"] != "none" else None,
        feature_names=names,
    )
    for pooled in published.sums:
        model.add_pooled(pooled, paid=False)
    return model


def needs_scaling(n_features: int, rank: int) -> bool:
    """Whether a scale has to be found before releases: those of few features are moments, which have it."""
    return fastest(n_features, FixedRank(rank)) != "exact"


def renamed(contents: bytes, client: str) -> bytes:
    """A sum or release, as it was stored, under the name of its owner now; the same bytes, if that stayed."""
    kind, arrays, metadata = model_file.decode(contents, "what is kept")
    if metadata["child"] == client:
        return contents
    return model_file.encode(kind, arrays, metadata | {"child": client})


def changed_names(kept: JSON, now: JSON) -> str:
    """Which settings are not as they were, by name: their values are nobody else's business; "" if none."""
    return join_names(sorted(name for name in {*kept, *now} if kept.get(name, _NONE) != now.get(name, _NONE)))


def same_sums(ours: tuple[StepSum, ...], theirs: tuple[StepSum, ...]) -> bool:
    """Whether sums are the same as far as both go."""
    return all(
        facts_of(one) == facts_of(other) and np.array_equal(one.total, other.total)
        for one, other in zip(ours, theirs, strict=False)
    )


def _checked_scale(scale: AnyArray) -> Array:
    checked = check_scale(scale, len(scale))
    assert isinstance(checked, np.ndarray)
    return checked
