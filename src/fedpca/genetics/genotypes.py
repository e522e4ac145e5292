"""GenotypeFile: people as rows, variants as columns, of files that are stored by variant."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpca.genetics.variants import Names, Relation, Variant, VariantMatch, match_variants, names_of
from fedpca.readers.data_file import Batch, DataFile, ReadRequest, translate_errors


class Genotypes(Protocol):
    """Copies of the counted allele of chosen variants, float32, NaN where missing."""

    def __getitem__(self, people: slice) -> NDArray[Any]:
        """Of these people, shape (n, variants)."""


class GenotypeFile(DataFile):
    """A file of genotypes: all its variants, or those of a list, matched and turned to the alleles it counts.

    Args:
        path: the file.
        kind: what it should be, for messages.
        people: columns beside the rows.
        variants: all that the file has, in order.
        open_columns: the genotypes of the variants with these ascending indices.
        columns: the names of variants to read; all if None. What the file does not have is missing.
    """

    path: Path
    non_numeric: Mapping[str, Any] = {}
    match: VariantMatch

    def __init__(
        self,
        path: Path,
        kind: str,
        people: Mapping[str, NDArray[Any]],
        variants: Sequence[Variant],
        open_columns: Callable[[NDArray[np.intp]], Genotypes],
        columns: Names | None,
    ) -> None:
        self.path, self._kind, self._people, self._open = path, kind, people, open_columns
        self.passthrough_names = tuple(people)
        self.n_rows = len(next(iter(people.values())))
        if columns is None:
            names = names_of(path, variants)
            self.match = VariantMatch(path, names, tuple((i, Relation.SAME) for i in range(len(names))))
        else:
            self.match = match_variants(path, variants, columns)
        self.names = self.match.names
        self.n_columns = len(self.names)

    def dtype(self, columns: Sequence[str] | None) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        known = dict(zip(self.match.names, self.match.sources, strict=True))
        sources = [known[name] for name in request.columns or self.match.names]
        found = np.array([i for i, source in enumerate(sources) if source is not None], dtype=np.intp)
        indices = np.array([source[0] for source in sources if source is not None], dtype=np.intp)
        swapped = np.array([source[1].swaps for source in sources if source is not None], dtype=bool)
        ascending, order = np.unique(indices, return_inverse=True)
        with translate_errors(self.path, self._kind):
            genotypes = self._open(ascending)
            for start in range(request.skip, self.n_rows or 0, request.batch_rows):
                part = slice(start, min(start + request.batch_rows, self.n_rows or 0))
                copies = genotypes[part][:, order]
                copies[:, swapped] = 2 - copies[:, swapped]
                rows = copies
                if len(found) < len(sources):
                    rows = np.full((len(copies), len(sources)), np.nan, copies.dtype)
                    rows[:, found] = copies
                passthrough = {name: self._people[name][part] for name in request.passthrough}
                yield Batch(rows.astype(request.dtype, copy=False), request.columns, passthrough)


def missing_beside(path: Path, beside: str) -> str:
    """What to say about a file that should be beside another."""
    return f"{path} is missing beside the {beside} file; copy all three."
