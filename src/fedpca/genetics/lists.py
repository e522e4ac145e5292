"""Lists of variants that several files are matched to."""

import os
from dataclasses import dataclass
from pathlib import Path

from fedpca._util.text import pluralize
from fedpca.errors import FileFormatError
from fedpca.genetics.variants import VARIANT_LISTS, Names, left_out, names_of, parse_name, read_variants
from fedpca.readers.paths import with_prefix
from fedpca.summaries.loading import load


@dataclass(frozen=True)
class VariantList:
    """Names of variants, without those that do not show their strand.

    Attributes:
        path: where they come from.
        names: of variants to use, for `columns` of `fedpca.readers.open_rows`.
        ambiguous: names of A/T and C/G variants, left out so that all owners leave out the same.
    """

    path: Path
    names: Names
    ambiguous: Names

    def __str__(self) -> str:
        text = f"{self.path}: {pluralize(len(self.names), 'variant')}"
        if self.ambiguous:
            text += f"; {left_out(self.ambiguous)}"
        return text

    def to_json(self) -> dict[str, object]:
        """The number of variants to use, and the names left out."""
        return {"file": str(self.path), "wanted": len(self.names), "ambiguous": list(self.ambiguous)}


def read_list(path: str | os.PathLike[str]) -> VariantList:
    """The variants of a model or `Scaling`, of genotypes, of a .bim or .pvar file, or one name per line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "panel.txt"
    >>> _ = path.write_text("1:100:A:G\\n1:200:A:T\\n")
    >>> read_list(path).names, read_list(path).ambiguous
    (('1:100:A:G',), ('1:200:A:T',))
    """
    path = Path(path)
    names = _names(path)
    unclear = {name for name in names if (known := parse_name(name)) and known.is_ambiguous}
    kept = tuple(name for name in names if name not in unclear)
    if not kept:
        raise FileFormatError(f"{path} contains no variants to match; pass a model, a .pvar or a .bim file.")
    return VariantList(path, kept, tuple(name for name in names if name in unclear))


def _names(path: Path) -> Names:
    if path.suffix.lower() == ".safetensors":
        names = load(path).feature_names
        if names is None or any(parse_name(name) is None for name in names):
            raise FileFormatError(f"{path} must be a model of variants, such as 1:55516888:G:A.")
        return names
    path = variant_file(path)
    if path.name.lower().endswith(VARIANT_LISTS):
        variants = [variant for variant in read_variants(path) if "," not in variant.counted]
        return names_of(path, variants)
    return _lines(path)


def variant_file(path: Path) -> Path:
    """The file that lists variants: itself, or that of genotypes, named by their file or prefix."""
    if not path.exists():
        path = with_prefix(path) or path
    if path.suffix.lower() in (".bed", ".pgen"):
        path = _beside(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; check the path.")
    return path


def _beside(path: Path) -> Path:
    """The list of a file of genotypes."""
    endings = (".bim",) if path.suffix.lower() == ".bed" else (".pvar", ".pvar.zst")
    files = [path.with_suffix(ending) for ending in endings]
    return next((file for file in files if file.exists()), files[0])


def _lines(path: Path) -> Names:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be text with one variant per line, and is not text.") from error
    names = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            name = line.split()[0]
            if parse_name(name) is None:
                raise FileFormatError(
                    f"{path}, line {number}: variants must be named as in 1:55516888:G:A or rs123_A; correct "
                    "the line."
                )
            names.append(name)
    return tuple(dict.fromkeys(names))
