"""Variants of genotype files: what they are called, and which of a file's variants are those of a list.

A variant is named by chromosome, position, the other allele and the counted one, as in 1:55516888:G:A: where
a reference genome orders the alleles, that is chr:pos:ref:alt. Files without positions have ids instead, with
the counted allele, as in rs123_A.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from fedpca._util.extras import require
from fedpca._util.text import join_names, pluralize
from fedpca.errors import FileFormatError

Names = tuple[str, ...]

VARIANT_LISTS = (".pvar", ".pvar.zst", ".bim")
_COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A"}
_UNKNOWN = ("0", ".")  # the allele that nobody in the file has
_NUMBERED = {"23": "X", "24": "Y", "25": "XY", "26": "MT", "M": "MT"}
_LEAST_SHARE = 0.1  # of a list: fewer matches are coincidence
_BIM = ("#CHROM", "ID", "CM", "POS", "ALT", "REF")


class Variant(NamedTuple):
    """One variant of a file.

    Attributes:
        chromosome: 1 to 22, X, Y, XY or MT, or a contig; "0" if it is not known.
        position: base pair; 0 if it is not known.
        id: such as rs123.
        other: the allele that is not counted.
        counted: the allele whose copies are counted; separated by commas if there are several.
    """

    chromosome: str
    position: int
    id: str
    other: str
    counted: str

    @property
    def name(self) -> str:
        """By position and alleles.

        >>> Variant("1", 55516888, "rs123", "G", "A").name
        '1:55516888:G:A'
        """
        return f"{self.chromosome}:{self.position}:{self.other}:{self.counted}"

    @property
    def id_name(self) -> str:
        """By id and counted allele, as in PLINK's export.

        >>> Variant("1", 55516888, "rs123", "G", "A").id_name
        'rs123_A'
        """
        return f"{self.id}_{self.counted}"

    @property
    def is_ambiguous(self) -> bool:
        """Whether the alleles are the same on both strands, so that nothing shows the strand."""
        return self.other == _COMPLEMENT.get(self.counted)


def parse_name(name: str) -> Variant | None:
    """The variant that a name stands for; None if it is no name of a variant.

    Of one with an id only, chromosome and position are not known, nor is the other allele.

    >>> parse_name("chr23:100:a:G")
    Variant(chromosome='X', position=100, id='', other='A', counted='G')
    >>> parse_name("rs123_A")
    Variant(chromosome='0', position=0, id='rs123', other='0', counted='A')
    """
    fields = name.split(":")
    if len(fields) == 4 and all(fields) and fields[1].isdecimal():
        chromosome, position, other, counted = fields
        return Variant(_chromosome(chromosome), int(position), "", other.upper(), counted.upper())
    identifier, _, counted = name.rpartition("_")
    return Variant("0", 0, identifier, "0", counted.upper()) if identifier and counted else None


def _chromosome(text: str) -> str:
    text = re.sub("^chr", "", text, flags=re.IGNORECASE)
    return _NUMBERED.get(text.upper(), text.upper() if len(text) <= 2 else text)


def names_of(path: Path, variants: Sequence[Variant]) -> Names:
    """One name per variant, of one kind: by position if all have one, else by id; rejects repeated ones."""
    if several := [variant.name for variant in variants if "," in variant.counted]:
        raise FileFormatError(
            f"{path}: variants must have two alleles, but {join_names(several, 4)} has more; split them with "
            "bcftools norm -m-, or leave them out with plink2 --max-alleles 2."
        )
    names = tuple(variant.name for variant in variants)
    if len(set(names)) == len(names) and all(variant.position for variant in variants):
        return names
    ids = tuple(variant.id_name for variant in variants)
    if len(set(ids)) == len(ids):
        return ids
    if len(set(names)) == len(names):
        return names
    raise _repeated(path, [name for name, times in Counter(names).items() if times > 1])


def _repeated(path: Path, names: Sequence[str]) -> FileFormatError:
    return FileFormatError(
        f"{path}: variants must be unique, but {join_names(names, 4)} appears twice; leave out the copies "
        "with plink2 --rm-dup."
    )


def left_out(ambiguous: Names) -> str:
    """What is said of variants that do not show their strand."""
    return f"{len(ambiguous):,} ambiguous (A/T, C/G) left out: {join_names(ambiguous, 2)}"


# --- lists of variants ---


def read_variants(path: Path) -> list[Variant]:
    """The variants of a .bim, .pvar or .pvar.zst file, in order; ALT, or allele 1, is the counted one."""
    variants = []
    header: Sequence[str] = _BIM
    for number, line in enumerate(_lines(path), 1):
        if line.startswith("##") or not line.strip():
            continue
        fields = line.rstrip("\n").split("\t") if "\t" in line else line.split()
        if line.startswith("#"):
            header = fields
            if missing := {"#CHROM", "POS", "ID", "REF", "ALT"} - {*fields}:
                raise FileFormatError(
                    f"{path}, line {number}: the header must have {', '.join(sorted(missing))}; write it "
                    "again."
                )
            continue
        if header is _BIM and len(fields) == 5:  # plink2 may leave out centimorgans
            fields.insert(2, "0")
        if len(fields) < len(header):
            raise FileFormatError(
                f"{path}, line {number}: expected {len(header)} fields, got {len(fields)}; write it again."
            )
        field = dict(zip(header, fields, strict=False))
        if not field["POS"].isdecimal():
            raise FileFormatError(
                f"{path}, line {number}: positions must be whole numbers; write it again, or leave the "
                "variant out."
            )
        chromosome, position = _chromosome(field["#CHROM"]), int(field["POS"])
        alleles = field["REF"].upper(), field["ALT"].upper()
        variants.append(Variant(chromosome, position, field["ID"], *alleles))
    return variants


def _lines(path: Path) -> Iterator[str]:
    try:
        if path.suffix.lower() != ".zst":
            with path.open(encoding="utf-8-sig") as file:
                yield from file
            return
        arrow = require("pyarrow", extra="cli", purpose="reading .pvar.zst")
        with arrow.input_stream(str(path), compression="zstd") as file:
            yield from file.read().decode().splitlines()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be text, as .bim and .pvar files are; copy it again.") from error


# --- a file's variants that are those of a list ---


class Relation(Enum):
    """How a variant of a file gives the one wanted; the nearest first."""

    SAME = 0
    SWAPPED = 1  # it counts the other allele: 2 - x
    STRAND = 2  # it names the alleles on the other strand
    STRAND_SWAPPED = 3

    @property
    def swaps(self) -> bool:
        return self in (Relation.SWAPPED, Relation.STRAND_SWAPPED)


@dataclass(frozen=True)
class VariantMatch:
    """Which variants of a file are those of a list, by chromosome, position and alleles, or by id and allele.

    Attributes:
        path: the file.
        names: those of the list.
        sources: for each of them the index of the file's variant and its relation; None if it is left out.
        ambiguous: names of those left out because A/T and C/G do not show the strand.
        missing: names of those that the file does not have.
    """

    path: Path
    names: Names
    sources: tuple[tuple[int, Relation] | None, ...]
    ambiguous: Names = ()
    missing: Names = ()

    def count(self, *relations: Relation) -> int:
        """How many variants have one of these relations."""
        return sum(source is not None and source[1] in relations for source in self.sources)

    @property
    def is_exact(self) -> bool:
        """Whether the file has them all, with these alleles."""
        return self.count(Relation.SAME) == len(self.names)

    def shares(self, other: "VariantMatch") -> bool:
        """Whether the file has a variant that another has too."""
        return not self._found.isdisjoint(other._found)

    @property
    def _found(self) -> set[str]:
        pairs = zip(self.names, self.sources, strict=True)
        return {name for name, source in pairs if source is not None}

    def to_json(self) -> dict[str, object]:
        """Counts, and the names left out."""
        return {
            "file": str(self.path),
            "wanted": len(self.names),
            "found": len(self.names) - len(self.ambiguous) - len(self.missing),
            "swapped": self.count(Relation.SWAPPED, Relation.STRAND_SWAPPED),
            "other_strand": self.count(Relation.STRAND, Relation.STRAND_SWAPPED),
            "ambiguous": list(self.ambiguous),
            "missing": list(self.missing),
        }

    def __str__(self) -> str:
        found = len(self.names) - len(self.ambiguous) - len(self.missing)
        text = f"{self.path}: {found:,} of {pluralize(len(self.names), 'variant')} found"
        if swapped := self.count(Relation.SWAPPED, Relation.STRAND_SWAPPED):
            text += f", {swapped:,} with swapped alleles"
        if strand := self.count(Relation.STRAND, Relation.STRAND_SWAPPED):
            text += f", {strand:,} on the other strand"
        if self.ambiguous:
            text += f"; {left_out(self.ambiguous)}"
        if self.missing:
            text += f"; {len(self.missing):,} missing: {join_names(self.missing, 2)}"
        return text


def match_variants(path: Path, variants: Iterable[Variant], names: Names) -> VariantMatch:
    """The variants of a file that are those of a list of names.

    A file that has all names as they are is taken as it is. Else swapped alleles and the other strand are
    corrected for, and A/T and C/G variants, which do not show their strand, left out.

    >>> file = [Variant("1", 100, "rs1", "A", "G"), Variant("1", 200, "rs2", "T", "C")]
    >>> print(match_variants(Path("a.bed"), file, ("1:100:G:A", "1:200:A:G", "1:300:A:T", "1:400:A:C")))
    a.bed: 2 of 4 variants found, 1 with swapped alleles, 1 on the other strand; 1 ambiguous (A/T, C/G) \
left out: 1:300:A:T; 1 missing: 1:400:A:C
    """
    wanted: dict[tuple[str, int] | str, list[tuple[int, Variant]]] = defaultdict(list)
    for i, name in enumerate(names):
        if (variant := parse_name(name)) is not None:
            wanted[variant.id or variant[:2]].append((i, variant))
    best: dict[int, tuple[Relation, int, Variant]] = {}
    twice, places = [], set()
    for index, here in enumerate(variants):
        if "," in here.counted:
            continue
        for i, variant in (*wanted.get(here[:2], ()), *wanted.get(here.id, ())):
            places.add(i)
            relation = _relation(variant, here)
            if relation is None:
                continue
            before = best.get(i)
            if before is not None and before[0] is relation:
                twice.append(names[i])
            if before is None or relation.value < before[0].value:
                best[i] = relation, index, here
    if twice:
        raise _repeated(path, list(dict.fromkeys(twice)))
    if len(best) < max(1, _LEAST_SHARE * len(names)):
        raise _too_few(path, len(places), len(best), names)
    exact = len(best) == len(names) and all(relation is Relation.SAME for relation, *_ in best.values())
    unclear: set[int] = set()
    if not exact:
        known = (parse_name(name) for name in names)
        unclear = {i for i, variant in enumerate(known) if variant is not None and variant.is_ambiguous}
        unclear |= {i for i, (_, _, here) in best.items() if here.is_ambiguous}
    return VariantMatch(
        path,
        names,
        tuple(None if i in unclear or i not in best else (best[i][1], best[i][0]) for i in range(len(names))),
        ambiguous=tuple(names[i] for i in sorted(unclear)),
        missing=tuple(name for i, name in enumerate(names) if i not in best and i not in unclear),
    )


def _relation(wanted: Variant, here: Variant) -> Relation | None:
    """How a variant of a file gives the one wanted, at the same place; None if its alleles are others."""
    turned = here._replace(
        other=_COMPLEMENT.get(here.other, here.other if here.other in _UNKNOWN else ""),
        counted=_COMPLEMENT.get(here.counted, here.counted if here.counted in _UNKNOWN else ""),
    )
    for side, relations in (
        (here, (Relation.SAME, Relation.SWAPPED)),
        (turned, (Relation.STRAND, Relation.STRAND_SWAPPED)),
    ):
        for alleles, relation in zip(
            ((side.other, side.counted), (side.counted, side.other)), relations, strict=True
        ):
            pairs = list(zip((wanted.other, wanted.counted), alleles, strict=True))
            # An allele that is not known may be any, but one must be known to be the same.
            if all(a == b or a in _UNKNOWN or b in _UNKNOWN for a, b in pairs) and any(
                a == b and a not in _UNKNOWN for a, b in pairs
            ):
                return relation
    return None


def _too_few(path: Path, places: int, found: int, names: Names) -> FileFormatError:
    of = f"of the {pluralize(len(names), 'variant')} wanted, such as {names[0]},"
    if places >= max(1, _LEAST_SHARE * len(names)):
        return FileFormatError(
            f"{path}: {of} {places:,} have their position in the file, but only {found:,} their alleles; "
            "get a file, or a list, that names the same alleles."
        )
    named = parse_name(names[0])
    if named is None:
        return FileFormatError(
            f"{path}: genotypes have columns such as 1:55516888:G:A or rs123_A, and {names[0]!r:.200} is no "
            "variant; use other rows, or a model of genotypes."
        )
    if named.id:
        return FileFormatError(f"{path}: {of} {found:,} have their id in the file; set its ids, or fit anew.")
    return FileFormatError(
        f"{path}: {of} {places:,} have their position in the file: it must have the same genome build, and "
        "all chromosomes; lift it over, or put files of chromosomes together with plink2 --pmerge-list."
    )
