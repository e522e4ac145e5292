"""Models as the files that `plink2 --score ... variance-standardize --read-freq` takes, and back.

PREFIX.tsv has one line per variant: its id, the counted allele and a loading per component; PREFIX.afreq the
allele frequencies, as `plink2 --freq` writes them; PREFIX.eigenval one variance per line.

plink2 adds up (x - 2 p) / sqrt(2 p (1 - p)) times the loading over the variants. That is the score of a
model whose mean is 2 p and whose scale is sqrt(2 p (1 - p)). Where missing genotypes moved the mean of a
model from that of its scale, the loadings written make up for it.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from fedpca._typing import Array
from fedpca._util.files import atomic_write
from fedpca._util.text import join_names, pluralize
from fedpca.errors import FileFormatError
from fedpca.genetics.lists import variant_file
from fedpca.genetics.variants import Variant, match_variants, parse_name, read_variants
from fedpca.summaries.about import About
from fedpca.summaries.algebra import degrees_of_freedom
from fedpca.summaries.scaling import in_words
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

_ENDINGS = (".tsv", ".afreq", ".eigenval")
_ALIKE = 0.05  # relative difference of most scales from sqrt(2 p (1 - p)), if that is what they are
_HAPLOID = ("X", "Y", "MT")
_LEAST_CHANGE = 0.5  # of the scale, to make loadings orthonormal: they are nearly so


def plink2_paths(prefix: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Loadings, frequencies and variances.

    >>> [path.name for path in plink2_paths("all.v2")]
    ['all.v2.tsv', 'all.v2.afreq', 'all.v2.eigenval']
    """
    loadings, frequencies, variances = (Path(f"{os.fspath(prefix)}{ending}") for ending in _ENDINGS)
    return loadings, frequencies, variances


def write_plink2(
    model: Summary,
    prefix: str | os.PathLike[str],
    *,
    n_components: int | None = None,
    variants: str | os.PathLike[str] | None = None,
) -> int:
    """Write PREFIX.tsv, PREFIX.afreq and PREFIX.eigenval; all or none. Returns the number of variants.

    Variants that nobody has, or that do not vary, have no part in a score and are left out.

    Args:
        model: of variants, fitted with scale="binomial" or the numbers of that rule.
        prefix: of the three files.
        n_components: to write; all by default.
        variants: genotypes, or a .bim or .pvar file, whose ids and alleles the files are to have. By
            default ids are names such as 1:55516888:G:A, which `plink2 --set-all-var-ids @:#:$r:$a` gives a
            file.
    """
    subspace = (model if isinstance(model, Subspace) else model.subspace(n_components)).without_parts()
    subspace = subspace.subspace(n_components)
    names = _checked_names(model)
    scale = np.ones(len(names)) if subspace.scale is None else subspace.scale
    mean = subspace.mean * scale
    if not model.centered or ((mean < -1e-9) | (mean > 2 + 1e-9)).any():
        raise ValueError("an export to plink2 needs counts of an allele, centered, with means from 0 to 2.")
    share = np.clip(mean / 2, 0.0, 1.0)
    deviation = np.sqrt(2 * share * (1 - share))
    used = subspace.known & (deviation > 0)
    if not used.any() or np.median(np.abs(scale[used] / deviation[used] - 1)) > _ALIKE:
        raise ValueError(
            f"an export to plink2 needs scale sqrt(2 p (1 - p)), and that of the model is "
            f"{in_words(subspace.scale)}; fit with scale='binomial', or --scale binomial."
        )
    loadings = subspace.components * (deviation / scale)
    listed = [found if use else None for found, use in zip(_identified(names, variants), used, strict=True)]
    if haploid := [known[0].id for known in listed if known is not None and known[0].chromosome in _HAPLOID]:
        warnings.warn(
            f"plink2 --score variance-standardize refuses X, Y and MT, and {haploid[0]} is one of "
            f"{pluralize(len(haploid), 'variant')} there; fit autosomes only (plink2 --autosome).",
            stacklevel=2,
        )
    observed = np.full(len(names), model.count) if model.observed is None else model.observed
    with ExitStack() as stack:
        files = [stack.enter_context(atomic_write(path)) for path in plink2_paths(prefix)]
        with files[0].open("w") as tsv, files[1].open("w") as afreq:
            tsv.write("\t".join(["ID", "A1", *(f"PC{i}" for i in range(1, subspace.rank + 1))]) + "\n")
            afreq.write("#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT\n")
            n_variants = 0
            for i, found in enumerate(listed):
                if found is None:
                    continue
                variant, counts_ref = found
                counted = variant.other if counts_ref else variant.counted
                frequency = 1 - share[i] if counts_ref else share[i]
                numbers = "\t".join(f"{value:.12g}" for value in loadings[:, i])
                tsv.write(f"{variant.id}\t{counted}\t{numbers}\n")
                afreq.write(
                    f"{variant.chromosome}\t{variant.id}\t{variant.other}\t{variant.counted}\t"
                    f"{frequency:.12g}\t{round(2 * observed[i])}\n"
                )
                n_variants += 1
        spectrum = subspace.singular_values**2 / degrees_of_freedom(subspace.count)
        files[2].write_text("".join(f"{value:.12g}\n" for value in spectrum))
    return n_variants


def _checked_names(model: Summary) -> tuple[str, ...]:
    names = model.feature_names
    if names is None or (bad := [name for name in names if parse_name(name) is None]):
        what = "unnamed features" if names is None else join_names([repr(name)[:80] for name in bad], 2)
        raise ValueError(
            f"an export to plink2 needs features that are variants, such as 1:55516888:G:A, got {what}."
        )
    return names


def _identified(
    names: Sequence[str], variants: str | os.PathLike[str] | None
) -> list[tuple[Variant, bool] | None]:
    """For each name a variant with an id, and whether its other allele is counted; None if there is none."""
    if variants is not None:
        path = variant_file(Path(variants))
        file = read_variants(path)
        match = match_variants(path, file, tuple(names))
        found = [None if source is None else (file[source[0]], source[1].swaps) for source in match.sources]
        _check_unique(path, (known[0].id for known in found if known is not None))
        if match.missing or match.ambiguous:
            warnings.warn(f"scores by plink2 will lack the variants that are left out. {match}", stacklevel=3)
        return found
    known = [parse_name(name) for name in names]
    if any(variant is None or not variant.position for variant in known):
        raise ValueError(
            "an export to plink2 needs both alleles of every variant, and names such as rs123_A have one; "
            "name a .bim or .pvar file that has them: variants=, or --variants FILE."
        )
    pairs = zip(names, known, strict=True)
    return [(variant._replace(id=name), False) for name, variant in pairs if variant is not None]


def _check_unique(path: Path, ids: Iterable[str]) -> None:
    if repeated := [name for name, times in Counter(ids).items() if times > 1]:
        raise FileFormatError(
            f"{path}: ids must be unique, but {join_names([repr(name)[:80] for name in repeated], 2)} stands "
            "for several variants; set them with plink2 --set-all-var-ids."
        )


def read_plink2(prefix: str | os.PathLike[str]) -> Subspace:
    """The model behind PREFIX.tsv and PREFIX.afreq, as a consortium publishes them to project cohorts on.

    Its scores of complete genotypes are the sums that plink2 gives. Loadings that lost digits or variants are
    not quite orthonormal: the scale of the model makes up for that. Without PREFIX.eigenval all components
    are taken to vary alike and to explain all variance.
    """
    tsv, afreq, eigenval = plink2_paths(prefix)
    frequencies = _read_frequencies(afreq)
    names, shares, loadings = [], [], []
    count = 0.0
    header, lines = _table(tsv)
    columns = {name.lstrip("#").upper(): i for i, name in enumerate(header)}
    key = next((columns[name] for name in ("ID", "SNP") if name in columns), None)
    if key is None or "A1" not in columns or not header[columns["A1"] + 1 :]:
        raise FileFormatError(
            f"{tsv}: the header must have ID, A1 and a column per component, got {join_names(header)}."
        )
    allele = columns["A1"]
    for number, fields in lines:
        identifier, counted = fields[key], fields[allele].upper()
        if identifier not in frequencies:
            raise FileFormatError(
                f"{tsv}, line {number}: {identifier[:80]} has no frequency in {afreq}; write that with "
                "plink2 --freq of the same variants."
            )
        variant, share, observed = frequencies[identifier]
        if counted not in (variant.other, variant.counted):
            raise FileFormatError(
                f"{tsv}, line {number}: A1 must be one of the alleles in {afreq}, {variant.other} and "
                f"{variant.counted}, got {counted[:80]}."
            )
        if counted == variant.other:
            variant, share = variant._replace(other=variant.counted, counted=counted), 1 - share
        names.append(variant.name if variant.position else variant.id_name)
        shares.append(share)
        loadings.append([_number(text, tsv, number) for text in fields[allele + 1 :]])
        count = max(count, observed / 2)
    if not names:
        raise FileFormatError(f"{tsv} contains no variants.")
    _check_unique(tsv, names)
    if not count > 1:
        raise FileFormatError(f"{afreq}: OBS_CT must be that of two people or more, got {2 * count:g}.")
    spread = np.sqrt(2 * np.array(shares) * (1 - np.array(shares)))
    if still := [name for name, value in zip(names, spread, strict=True) if not value > 0]:
        raise FileFormatError(
            f"{afreq}: frequencies must lie between 0 and 1, but not that of {join_names(still, 2)}."
        )
    components, change = _orthonormal(np.array(loadings).T, tsv)
    scale = spread * change
    variances = _read_variances(eigenval, len(components), len(names))
    energies = variances * degrees_of_freedom(count)
    total = len(names) * degrees_of_freedom(count)
    if not eigenval.exists():
        total = float(energies.sum())  # to the last digit: nothing is known about the rest
    mean = 2 * np.array(shares) / scale
    return Subspace(
        components,
        np.sqrt(energies),
        mean,
        count,
        max(total, float(energies.sum())),
        about=About(tuple(names), scale),
    )


def _read_frequencies(path: Path) -> dict[str, tuple[Variant, float, float]]:
    """By id: the variant, the frequency of its ALT allele, and the number of alleles observed."""
    if not path.exists():
        raise FileFormatError(f"{path} is missing beside the loadings; write it with plink2 --freq.")
    header, lines = _table(path)
    columns = {name.lstrip("#").upper(): i for i, name in enumerate(header)}
    if missing := [name for name in ("ID", "REF", "ALT", "ALT_FREQS", "OBS_CT") if name not in columns]:
        raise FileFormatError(
            f"{path}: the header must have {', '.join(missing)}; write it with plink2 --freq."
        )
    frequencies, ids = {}, []
    for number, fields in lines:
        field = {name: fields[i] for name, i in columns.items()}
        if "," in field["ALT"]:
            continue
        known = parse_name(field["ID"])
        chromosome, position = known[:2] if known is not None and known.position else ("0", 0)
        variant = Variant(chromosome, position, field["ID"], field["REF"].upper(), field["ALT"].upper())
        share = _number(field["ALT_FREQS"], path, number)
        frequencies[field["ID"]] = variant, share, _number(field["OBS_CT"], path, number)
        ids.append(field["ID"])
    _check_unique(path, ids)
    return frequencies


def _table(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header of a text file, and its lines with their numbers."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; check the prefix.")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be text, and is not; decompress it, or copy it again.") from error
    if not lines:
        raise FileFormatError(f"{path} is empty; copy it again.")
    header = lines[0].split()

    def rows() -> Iterator[tuple[int, list[str]]]:
        for number, line in enumerate(lines[1:], 2):
            fields = line.split()
            if len(fields) != len(header):
                raise FileFormatError(
                    f"{path}, line {number}: expected {len(header)} fields, got {len(fields)}; copy it again."
                )
            yield number, fields

    return header, rows()


def _number(text: str, path: Path, line: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise FileFormatError(f"{path}, line {line}: expected a number, got {text[:40]!r}.")
    return number


def _read_variances(path: Path, n_components: int, total: float) -> Array:
    if not path.exists():
        # Not quite alike, so that the components keep their order and are not mixed with each other.
        return total / n_components * (1 - 1e-6 * np.arange(n_components))
    values = [_number(text, path, number) for number, text in enumerate(path.read_text().split(), 1)]
    if len(values) < n_components or np.any(np.diff(values) > 0) or values[-1] < 0:
        raise FileFormatError(
            f"{path} must have one variance per component, {n_components}, descending, got {len(values)}."
        )
    return np.array(values[:n_components])


def _orthonormal(loadings: Array, path: Path) -> tuple[Array, Array]:
    """Orthonormal components, shape (k, d), and the factors by which their columns differ from loadings.

    The factors are the nearest to equal ones: u = factors**2 solves sum_j u_j w_aj w_bj = (a == b).
    """
    n_components = len(loadings)
    rows, columns = np.triu_indices(n_components)
    length = float(np.sqrt(np.mean(np.sum(loadings**2, axis=1))))
    if not length:
        raise FileFormatError(f"{path}: loadings must not all be 0.")
    unit = loadings / length
    products = unit[rows] * unit[columns]
    lacking = (rows == columns) - products.sum(axis=1)
    squares = 1 + np.linalg.lstsq(products @ products.T, lacking, rcond=None)[0] @ products
    if squares.min() < _LEAST_CHANGE or squares.max() > 1 / _LEAST_CHANGE:
        raise FileFormatError(
            f"{path}: loadings must be orthogonal and of one length, and are off by "
            f"{np.abs(lacking).max():.2g}; get those of standardized genotypes, of all variants."
        )
    factors = np.sqrt(squares)
    return unit * factors, factors / length
