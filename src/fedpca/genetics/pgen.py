"""Genotypes of PLINK 2: .pgen, with .pvar (or .pvar.zst) and .psam beside it; hardcalls or dosages."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca._util.extras import require
from fedpca.errors import FileFormatError
from fedpca.genetics.genotypes import GenotypeFile, missing_beside
from fedpca.genetics.variants import Names, Variant, read_variants
from fedpca.readers.data_file import translate_errors

_KIND = "PLINK .pgen file"
_PEOPLE = {"FID": "fid", "IID": "iid", "PAT": "father", "MAT": "mother", "SEX": "sex"}
_FAM = ["FID", "IID", "PAT", "MAT", "SEX", "pheno"]
_HELD_BYTES = 2**27  # of genotypes held at a time
_CHUNK_ENTRIES = 2**22  # decoded at a time
_UNITS = 2**14  # dosages are stored as multiples of 1/16384
_FIXED, _VARIABLE = 0x02, 0x10  # formats of .pgen: hardcalls of fixed width, records of any kind


def open_pgen(path: Path, columns: Names | None = None) -> GenotypeFile:
    """Copies of the ALT allele, hardcalls or dosages, one person per row, missing as NaN, float32.

    Args:
        path: the .pgen file.
        columns: names of variants to read, which are matched as `match_variants` does; all if None.
    """
    pgenlib = require("pgenlib", extra="genetics", purpose="reading .pgen")
    with translate_errors(path, _KIND):
        people = _people(path.with_suffix(".psam"))
        beside = [path.with_suffix(".pvar"), path.with_suffix(".pvar.zst")]
        pvar = next((each for each in beside if each.exists()), None)
        if pvar is None:
            raise FileFormatError(missing_beside(beside[0], ".pgen"))
        variants = read_variants(pvar)
        n_people, n_variants = _sizes(path)
        if n_people != len(people["iid"]) or n_variants != len(variants):
            raise FileFormatError(
                f"{path} has {n_people} people and {n_variants} variants, but {path.stem}.psam "
                f"{len(people['iid'])} people and {pvar.name} {len(variants)} variants; copy all three again."
            )
        open_columns = partial(_Genotypes, pgenlib, path, n_people, _offsets(variants))
        open_columns(np.zeros(0, np.intp))  # rejects a damaged file
    return GenotypeFile(path, _KIND, people, variants, open_columns, columns)


def _people(path: Path) -> dict[str, NDArray[Any]]:
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("##")]
    except FileNotFoundError as error:
        raise FileFormatError(missing_beside(path, ".pgen")) from error
    header = _FAM
    if lines and lines[0].startswith("#"):
        header = lines.pop(0).removeprefix("#").split()
    if "IID" not in header:
        raise FileFormatError(f"{path}: the header must have IID; write it again.")
    rows = [line.split() for line in lines]
    if short := next((number for number, row in enumerate(rows, 1) if len(row) < len(header)), None):
        raise FileFormatError(
            f"{path}, person {short}: expected {len(header)} fields, got {len(rows[short - 1])}; write it "
            "again."
        )
    return {_PEOPLE.get(name, name): np.array([row[i] for row in rows]) for i, name in enumerate(header)}


def _sizes(path: Path) -> tuple[int, int]:
    """People and variants, from the header."""
    with path.open("rb") as file:
        start = file.read(11)
    if start[:2] != b"\x6c\x1b" or len(start) < 11:
        raise FileFormatError(f"{path} must be a PLINK .pgen file; write it with plink2 --make-pgen.")
    if start[2] == 0x01:
        raise FileFormatError(f"{path} is a PLINK 1 .bed file; rename it, or use plink2 --make-pgen.")
    return int.from_bytes(start[7:11], "little"), int.from_bytes(start[3:7], "little")


def _offsets(variants: list[Variant]) -> NDArray[np.uintp] | None:
    """Where the alleles of each variant start among all; None if all have two."""
    alleles = np.array([variant.counted.count(",") + 2 for variant in variants], np.uintp)
    if (alleles == 2).all():
        return None
    return np.concatenate([np.zeros(1, np.uintp), np.cumsum(alleles, dtype=np.uintp)])


def _has_hardcalls_only(path: Path) -> bool:
    """By the header: records of 4-bit types have neither dosages nor phases."""
    with path.open("rb") as file:
        start = file.read(12)
    return start[2] == _FIXED or (start[2] == _VARIABLE and start[11] & 15 < 4)


class _Genotypes:
    """Rows of a file that is stored by variants; of some of these."""

    def __init__(
        self,
        pgenlib: Any,
        path: Path,
        n_people: int,
        offsets: NDArray[np.uintp] | None,
        columns: NDArray[np.intp],
    ) -> None:
        self.n_people, self.columns = n_people, columns.astype(np.uint32)
        self.reader = pgenlib.PgenReader(bytes(path), raw_sample_ct=n_people, allele_idx_offsets=offsets)
        self.hardcalls = _has_hardcalls_only(path)
        self.dtype = np.dtype(np.uint8 if self.hardcalls else np.uint16)
        self.missing = 2 ** (8 * self.dtype.itemsize) - 1  # as held
        # A pass over the file gives many batches: as many as fit in memory.
        self.held = max(1, _HELD_BYTES // max(1, len(columns) * self.dtype.itemsize))
        self.block = lru_cache(maxsize=1)(self._block)

    def __getitem__(self, people: slice) -> NDArray[Any]:
        first, last, _ = people.indices(self.n_people)
        parts = []
        for number in range(first // self.held, -(-last // self.held)):
            offset = number * self.held
            parts.append(self.block(number)[max(first - offset, 0) : last - offset])
        stored = np.concatenate(parts)
        missing = stored == self.missing
        copies = stored.astype(np.float32)
        if not self.hardcalls:
            copies /= _UNITS
        copies[missing] = np.nan
        return copies

    def _block(self, number: int) -> NDArray[Any]:
        """Copies as stored in memory, shape (people held, variants)."""
        people = np.arange(number * self.held, min((number + 1) * self.held, self.n_people), dtype=np.uint32)
        self.reader.change_sample_subset(people)
        out = np.empty((len(people), len(self.columns)), self.dtype)
        step = max(1, _CHUNK_ENTRIES // len(people))
        for first in range(0, len(self.columns), step):
            chosen = self.columns[first : first + step]
            if self.hardcalls:
                calls = np.empty((len(chosen), len(people)), np.int8)
                self.reader.read_list(chosen, calls)
                calls[calls < 0] = -1
                out[:, first : first + step] = calls.view(np.uint8).T  # -1 is 255, missing
            else:
                dosages = np.empty((len(chosen), len(people)), np.float32)
                self.reader.read_dosages_list(chosen, dosages)
                units = np.where(dosages < 0, self.missing, np.rint(dosages * _UNITS))
                out[:, first : first + step] = units.T
        return out
