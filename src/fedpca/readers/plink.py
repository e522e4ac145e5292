"""Genotypes of PLINK 1: .bed, with .bim and .fam beside it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca._util.text import join_names
from fedpca.errors import FileFormatError
from fedpca.readers.arrays import ArrayFile, OpenFile

_MAGIC = b"\x6c\x1b\x01"
_FAM = ("fid", "iid", "father", "mother", "sex", "pheno")
_PACKED_BYTES = 2**26  # of genotypes held at a time
_MAPPED_BYTES = 2**26  # of the file in memory at a time
# Two bits per genotype, the first person's lowest: two copies of allele 1, missing, one copy, none.
_COPIES = np.array([2, np.nan, 1, 0], np.float32)[np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3]


def open_bed(path: Path) -> ArrayFile:
    """Copies of allele 1, one person per row, one variant per column, missing as NaN, float32.

    Variants are named by id and counted allele, as in rs123_A, as PLINK's export does: files that count
    different alleles do not merge. Where that is not unique, by chromosome:position:allele1:allele2.
    """
    return ArrayFile(path, "PLINK .bed file with .bim and .fam beside it", _open_bed)


@contextmanager
def _open_bed(path: Path) -> Iterator[OpenFile]:
    people = _fields(path.with_suffix(".fam"))
    variants = _fields(path.with_suffix(".bim"))
    names = tuple(f"{variant[1]}_{variant[4]}" for variant in variants)
    if len(set(names)) < len(names):
        names = tuple(":".join((variant[0], *variant[3:6])) for variant in variants)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise FileFormatError(
            f"{path}: variants must be unique, but {join_names(twice)} appears twice; leave out the copies "
            "with plink2 --rm-dup."
        )
    passthrough = {name: np.array([person[i] for person in people]) for i, name in enumerate(_FAM)}
    yield OpenFile(_Genotypes(path, len(people), len(variants)), names, passthrough)


def _fields(path: Path) -> list[list[str]]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except FileNotFoundError as error:
        raise FileFormatError(f"{path} is missing beside the .bed file; copy all three.") from error
    if short := next((number for number, line in enumerate(lines, 1) if len(line) < 6), None):
        raise FileFormatError(
            f"{path}, line {short}: expected 6 fields, got {len(lines[short - 1])}; write it again."
        )
    return lines


class _Genotypes:
    """Rows of a file that is stored by columns, four people per byte."""

    dtype = np.dtype(np.float32)

    def __init__(self, path: Path, n_people: int, n_variants: int) -> None:
        self.path, self.shape = path, (n_people, n_variants)
        self.stride = -(-n_people // 4)
        with path.open("rb") as file:
            if file.read(3) != _MAGIC:
                raise FileFormatError(
                    f"{path} must be a PLINK .bed file, by variant; write it with plink --make-bed."
                )
        expected = len(_MAGIC) + n_variants * self.stride
        if path.stat().st_size != expected:
            raise FileFormatError(
                f"{path} must have {expected} bytes for {n_people} people and {n_variants} variants, got "
                f"{path.stat().st_size}; copy it again, with its .bim and .fam."
            )
        # A pass over the file gives many batches: as many as fit in memory packed.
        self.held = max(1, _PACKED_BYTES // n_variants)
        self.packed = lru_cache(maxsize=1)(self._packed)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        start, stop = first // 4, -(-last // 4)
        out = np.empty((stop - start, 4, self.shape[1]), self.dtype)
        for block in range(start // self.held, -(-stop // self.held)):
            offset = block * self.held
            here = slice(max(start, offset), min(stop, offset + self.held))
            packed = self.packed(block)[here.start - offset : here.stop - offset]
            for i in range(4):
                out[here.start - start : here.stop - start, i] = _COPIES[:, i][packed]
        return out.reshape(-1, self.shape[1])[first - 4 * start : last - 4 * start]

    def _packed(self, block: int) -> NDArray[Any]:
        start, stop = block * self.held, min((block + 1) * self.held, self.stride)
        packed = np.empty((stop - start, self.shape[1]), np.uint8)
        step = max(1, _MAPPED_BYTES // self.stride)
        for first in range(0, self.shape[1], step):
            last = min(first + step, self.shape[1])
            shape, offset = (last - first, self.stride), len(_MAGIC) + first * self.stride
            mapped = np.memmap(self.path, np.uint8, "r", offset, shape)
            packed[:, first:last] = mapped[:, start:stop].T
        return packed
