"""Genotypes: variants, their files, one list for several biobanks, models that count the same alleles.

>>> from pathlib import Path
>>> north = [Variant("1", 100, "rs1", "A", "G"), Variant("1", 200, "rs2", "C", "T")]
>>> print(match_variants(Path("north.pgen"), north, ("1:100:G:A", "1:200:C:T")))
north.pgen: 2 of 2 variants found, 1 with swapped alleles
"""

from fedpca.genetics.alleles import count_alike
from fedpca.genetics.lists import VariantList, read_list
from fedpca.genetics.plink2 import read_plink2, write_plink2
from fedpca.genetics.variants import Variant, VariantMatch, match_variants, read_variants

__all__ = [
    "Variant",
    "VariantList",
    "VariantMatch",
    "count_alike",
    "match_variants",
    "read_list",
    "read_plink2",
    "read_variants",
    "write_plink2",
]
