"""Genotypes of PLINK 1: .bed, with .bim and .fam beside it."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca.errors import FileFormatError
from fedpca.genetics.genotypes import GenotypeFile, missing_beside
from fedpca.genetics.variants import Names, read_variants
from fedpca.readers.data_file import translate_errors

_MAGIC = b"\x6c\x1b\x01"
_FAM = ("fid", "iid", "father", "mother", "sex", "pheno")
_KIND = "PLINK .bed file with .bim and .fam beside it"
_PACKED_BYTES = 2**26  # of genotypes held at a time
_MAPPED_BYTES = 2**26  # of the file in memory at a time
# Two bits per genotype, the first person's lowest: two copies of allele 1, missing, one copy, none.
_COPIES = np.array([2, np.nan, 1, 0], np.float32)[np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3]


def open_bed(path: Path, columns: Names | None = None) -> GenotypeFile:
    """Copies of allele 1, one person per row, one variant per column, missing as NaN, float32.

    Args:
        path: the .bed file.
        columns: names of variants to read, which are matched as `match_variants` does; all if None.
    """
    with translate_errors(path, _KIND):
        people = _people(path.with_suffix(".fam"))
        try:
            variants = read_variants(path.with_suffix(".bim"))
        except FileNotFoundError as error:
            raise FileFormatError(missing_beside(path.with_suffix(".bim"), ".bed")) from error
        _check(path, len(people["iid"]), len(variants))
    open_columns = partial(_Genotypes, path, len(people["iid"]))
    return GenotypeFile(path, _KIND, people, variants, open_columns, columns)


def _people(path: Path) -> dict[str, NDArray[Any]]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except FileNotFoundError as error:
        raise FileFormatError(missing_beside(path, ".bed")) from error
    if short := next((number for number, line in enumerate(lines, 1) if len(line) < 6), None):
        raise FileFormatError(
            f"{path}, line {short}: expected 6 fields, got {len(lines[short - 1])}; write it again."
        )
    return {name: np.array([person[i] for person in lines]) for i, name in enumerate(_FAM)}


def _check(path: Path, n_people: int, n_variants: int) -> None:
    with path.open("rb") as file:
        if file.read(3) != _MAGIC:
            raise FileFormatError(
                f"{path} must be a PLINK .bed file, by variant; write it with plink --make-bed."
            )
    expected = len(_MAGIC) + n_variants * -(-n_people // 4)
    if path.stat().st_size != expected:
        raise FileFormatError(
            f"{path} must have {expected} bytes for {n_people} people and {n_variants} variants, got "
            f"{path.stat().st_size}; copy it again, with its .bim and .fam."
        )


class _Genotypes:
    """Rows of a file that is stored by columns, four people per byte; of some of its columns."""

    def __init__(self, path: Path, n_people: int, columns: NDArray[np.intp]) -> None:
        self.path, self.n_people, self.columns = path, n_people, columns
        self.stride = -(-n_people // 4)
        # A pass over the file gives many batches: as many as fit in memory packed.
        self.held = max(1, _PACKED_BYTES // max(1, len(columns)))
        self.packed = lru_cache(maxsize=1)(self._packed)

    def __getitem__(self, people: slice) -> NDArray[Any]:
        first, last, _ = people.indices(self.n_people)
        start, stop = first // 4, -(-last // 4)
        out = np.empty((stop - start, 4, len(self.columns)), np.float32)
        for block in range(start // self.held, -(-stop // self.held)):
            offset = block * self.held
            here = slice(max(start, offset), min(stop, offset + self.held))
            packed = self.packed(block)[here.start - offset : here.stop - offset]
            for i in range(4):
                out[here.start - start : here.stop - start, i] = _COPIES[:, i][packed]
        return out.reshape(-1, len(self.columns))[first - 4 * start : last - 4 * start]

    def _packed(self, block: int) -> NDArray[Any]:
        start, stop = block * self.held, min((block + 1) * self.held, self.stride)
        packed = np.empty((stop - start, len(self.columns)), np.uint8)
        step = max(1, _MAPPED_BYTES // self.stride)
        first = 0  # of the columns
        while first < len(self.columns):
            begin = int(self.columns[first])
            last = int(np.searchsorted(self.columns, begin + step))
            shape = int(self.columns[last - 1]) - begin + 1, self.stride
            offset = len(_MAGIC) + begin * self.stride
            mapped = np.memmap(self.path, np.uint8, "r", offset, shape)
            packed[:, first:last] = mapped[self.columns[first:last] - begin, start:stop].T
            first = last
        return packed
