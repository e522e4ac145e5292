"""Lists of variants on the command line, and what is printed about variants that were matched."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedpca._typing import JSON
    from fedpca.genetics import VariantList
    from fedpca.readers import RowReader

Variants = Annotated[
    Path | None,
    typer.Option(
        metavar="LIST",
        help="Match the variants of genotypes to this list: a model, a file of fedpca scale, a .pvar or .bim "
        "file, or text with one name per line, as 1:55516888:G:A. Swapped alleles and strands are corrected, "
        "A/T and C/G left out.",
    ),
]


def variant_list(path: Path | None, columns: str | None, files: Sequence[str]) -> "VariantList | None":
    """The list that --variants names, for files of genotypes."""
    if path is None:
        return None
    if columns is not None:
        raise typer.BadParameter("--variants cannot be combined with --columns: both name what to read.")
    from fedpca.genetics import read_list
    from fedpca.readers.paths import find

    if find(files)[0] not in ("bed", "pgen"):
        raise ValueError(f"--variants is for genotypes, .bed or .pgen, and {files[0]} is none; leave it out.")
    return read_list(path)


def variants_json(rows: "RowReader", listed: "VariantList | None") -> "JSON":
    """How variants were matched, and to which list."""
    return {
        "variants": [match.to_json() for match in rows.matches],
        "variant_list": None if listed is None else listed.to_json(),
    }


def matched_variants(rows: "RowReader", listed: "VariantList | None" = None) -> list[str]:
    """A line per file of genotypes whose variants are not simply those wanted, or are those of a list."""
    from fedpca.genetics.variants import left_out

    lines = [str(match) for match in rows.matches if listed is not None or not match.is_exact]
    if listed is not None and listed.ambiguous:
        lines[0] += f"; of {listed.path} {left_out(listed.ambiguous)}"
    return lines
