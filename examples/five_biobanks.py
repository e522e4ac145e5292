"""Ancestry of five biobanks on the command line: HapMap, against the PCA of the pooled genotypes and plink2.

Run `PYTHONPATH=. python examples/five_biobanks.py [FOLDER]` in a checkout with the data set "hapmap" (see
docs/data-sets.md); it needs `pip install bed-reader`. With Pgenlib one biobank has a .pgen file; with plink2
its scores are compared, too.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from bed_reader import to_bed
from sklearn.metrics import silhouette_score

import fedpca
from fedpca.metrics import captured_variance, principal_angles
from reproduction import datasets

POPULATION = {"utah": "CEU", "ibadan-a": "YRI", "ibadan-b": "YRI", "beijing": "HCB", "tokyo": "JPT"}
COMPONENTS, SHOWN = 4, 2
COMPLEMENT = dict(zip("ACGT", "TGCA", strict=True))


# --- the files ---


def load() -> dict[str, np.ndarray]:
    """Genotypes of the people of each biobank, missing as NaN: HapMap by population, Ibadan in two."""
    people = datasets.load("hapmap")
    population = people.clients.astype(str)
    rows = {name: people.rows[population == POPULATION[name]].astype(float) for name in POPULATION}
    for half, name in enumerate(("ibadan-a", "ibadan-b")):
        rows[name] = rows[name][half::2]
    return rows


def write_biobanks(rows: dict[str, np.ndarray], folder: Path) -> None:
    """PLINK files. The data set has no alleles nor positions: they are made up.

    Beijing counts the minor allele of its own people, and names every third variant on the other strand.
    """
    pairs = [("G", "A"), ("C", "A"), ("T", "G"), ("C", "T")]
    for name, genotypes in rows.items():
        alleles = [pairs[i % 4] for i in range(genotypes.shape[1])]  # the other, and the counted
        if name == "beijing":
            common = np.nanmean(genotypes, axis=0) > 1
            genotypes = np.where(common, 2 - genotypes, genotypes)
            for i in range(len(alleles)):
                pair = alleles[i][::-1] if common[i] else alleles[i]
                alleles[i] = (COMPLEMENT[pair[0]], COMPLEMENT[pair[1]]) if i % 3 == 0 else pair
        write = write_pgen if name == "tokyo" and find_spec("pgenlib") else write_bed
        write(folder / name, genotypes, alleles)


def write_bed(path: Path, genotypes: np.ndarray, alleles: Sequence[tuple[str, str]]) -> None:
    properties = {
        "iid": [f"{path.name}{person}" for person in range(len(genotypes))],
        "chromosome": ["1"] * len(alleles),
        "bp_position": [1000 * i for i in range(1, len(alleles) + 1)],
        "sid": [f"snp{i}" for i in range(len(alleles))],
        "allele_1": [counted for _, counted in alleles],
        "allele_2": [other for other, _ in alleles],
    }
    to_bed(path.with_suffix(".bed"), np.ascontiguousarray(genotypes), properties=properties)


def write_pgen(path: Path, genotypes: np.ndarray, alleles: Sequence[tuple[str, str]]) -> None:
    from pgenlib import PgenWriter

    n_people, n_variants = genotypes.shape
    writer = PgenWriter(bytes(path.with_suffix(".pgen")), n_people, variant_ct=n_variants, nonref_flags=False)
    writer.append_biallelic_batch(np.ascontiguousarray(np.nan_to_num(genotypes.T, nan=-9), dtype=np.int8))
    writer.close()
    variants = [f"1\t{1000 * i}\tsnp{i - 1}\t{ref}\t{alt}\n" for i, (ref, alt) in enumerate(alleles, 1)]
    path.with_suffix(".pvar").write_text("#CHROM\tPOS\tID\tREF\tALT\n" + "".join(variants))
    people = [f"{path.name}{person}\n" for person in range(n_people)]
    path.with_suffix(".psam").write_text("#IID\n" + "".join(people))


# --- the commands of docs/how-to/ancestry.md ---


def run(folder: Path, *command: object) -> str:
    """What a command prints."""
    words = [str(word) for word in command]
    if words[0] == "fedpca":
        words[:1] = [sys.executable, "-m", "fedpca"]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {ended.stderr}")
    return ended.stdout


def two_rounds(folder: Path) -> None:
    """scale.safetensors and all.safetensors, from what the biobanks send."""
    for name in POPULATION:
        run(folder, "fedpca", "scale", name, "--variants", "utah.bim", "-o", f"{name}-scale.safetensors")
    scales = [f"{name}-scale.safetensors" for name in POPULATION]
    run(folder, "fedpca", "merge", *scales, "-o", "scale.safetensors")
    for name in POPULATION:
        run(
            folder, "fedpca", "fit", name, "--variants", "scale.safetensors",
            "--scale", "binomial:scale.safetensors", "-n", COMPONENTS, "--oversample", 40,
            "-o", f"{name}.safetensors",
        )  # fmt: skip
    run(folder, "fedpca", "merge", *(f"{name}.safetensors" for name in POPULATION), "-o", "all.safetensors")


def transformed(folder: Path, model: str, name: str) -> np.ndarray:
    """Scores of the people of a biobank, shape (people, components)."""
    out = folder / f"{name}-scores.csv"
    run(folder, "fedpca", "transform", model, name, "--keep", "iid", "-o", out.name, "--force")
    return columns_of(out, ",", "pc{}")


def columns_of(path: Path, delimiter: str, name: str) -> np.ndarray:
    """Columns of a table, one per component."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file, delimiter=delimiter))
    return np.array([[float(line[name.format(i + 1)]) for i in range(COMPONENTS)] for line in lines])


# --- what they are compared with ---


def standardized(rows: np.ndarray) -> np.ndarray:
    """Genotypes in units of sqrt(2 p (1 - p)); missing and constant ones become average."""
    share = np.nanmean(rows, axis=0) / 2
    spread = np.sqrt(2 * share * (1 - share))
    return np.nan_to_num((rows - 2 * share) / np.where(spread > 0, spread, np.inf))


def left_out(rows: np.ndarray, parts: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of people in the fit of all, and projected on the components of others: plain and corrected."""
    whole = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:SHOWN]
    inside = (rows - rows.mean(axis=0)) @ whole.T
    plain, corrected = np.zeros_like(inside), np.zeros_like(inside)
    part = np.random.default_rng(0).permutation(len(rows)) % parts
    for i in range(parts):
        pca = fedpca.StreamingPCA(SHOWN).merge(fedpca.Subspace.from_rows(rows[part != i]))
        signs = np.sign(np.sum(pca.components_ * whole, axis=1))
        plain[part == i] = signs * pca.transform(rows[part == i])
        corrected[part == i] = signs * pca.transform(rows[part == i], shrinkage="asymptotic")
    return inside, plain, corrected


def slopes(projected: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Of projected on true scores, per component."""
    return np.sum(projected * inside, axis=0) / np.sum(inside**2, axis=0)


def compare_with_pooled(
    model: fedpca.Subspace, scores: np.ndarray, rows: np.ndarray, continent: np.ndarray
) -> None:
    centered = rows - rows.mean(axis=0)
    directions = np.linalg.svd(centered, full_matrices=False)[2][:COMPONENTS]
    for some in (SHOWN, COMPONENTS):
        angle = np.degrees(principal_angles(model.components[:some], directions[:some]).max())
        print(f"largest angle between the first {some} components and those of all genotypes: {angle:.1f}°")
    print(f"variance captured, of the best {COMPONENTS} directions: {captured_variance(model, rows):.4f}")
    apart, pooled = (
        silhouette_score(found[:, :SHOWN], continent) for found in (scores, centered @ directions.T)
    )
    print(f"silhouette of the continents: {apart:.3f}, pooled {pooled:.3f}")


def compare_with_plink2(
    folder: Path, name: str, model: fedpca.Subspace, genotypes: np.ndarray, scores: np.ndarray
) -> None:
    """The command of docs/how-to/ancestry.md; missing genotypes are average there, and estimated here."""
    run(
        folder, "plink2", "--bfile", name, "--read-freq", "all.afreq", "--score", "all.tsv", "header-read",
        "no-mean-imputation", "variance-standardize", "cols=scoresums",
        "--score-col-nums", f"3-{2 + COMPONENTS}", "--out", name,
    )  # fmt: skip
    theirs = columns_of(folder / f"{name}.sscore", "\t", "PC{}_SUM")
    complete = np.where(np.isnan(genotypes), model.mean * model.scale, genotypes)
    print(f"plink2 in {name}: scores differ by {difference(theirs, scores)}, ", end="")
    units = np.abs(theirs - model.project(complete)) / 10.0 ** (np.floor(np.log10(np.abs(theirs))) - 5)
    print(f"with averages for missing genotypes by {units.max():.2f} units of the sixth digit")


def difference(found: np.ndarray, scores: np.ndarray) -> str:
    """By how much the shown scores differ, relative to the largest."""
    return f"at most {np.abs(found - scores)[:, :SHOWN].max() / np.abs(scores).max():.1e}"


def main(folder: Path) -> None:
    genotypes = load()
    write_biobanks(genotypes, folder)
    two_rounds(folder)
    model = fedpca.load(folder / "all.safetensors").without_parts().subspace(COMPONENTS)
    print(f"merged: {model}")
    scores = {name: transformed(folder, "all.safetensors", name) for name in POPULATION}

    rows = standardized(np.concatenate([*genotypes.values()]))
    people = [population for name, population in POPULATION.items() for _ in genotypes[name]]
    continent = np.where(np.isin(people, ["HCB", "JPT"]), "Asia", people)
    compare_with_pooled(model, np.concatenate([*scores.values()]), rows, continent)

    inside, plain, corrected = left_out(rows)
    for how, projected in (("plain", plain), ("asymptotic", corrected)):
        print(f"slope of people left out, {how}: {' '.join(f'{x:.3f}' for x in slopes(projected, inside))}")

    name = "beijing"
    run(folder, "fedpca", "export", "all.safetensors", "--plink2", "all", "--variants", f"{name}.bim")
    run(folder, "fedpca", "import", "--plink2", "all", "-o", "reference.safetensors")
    back = transformed(folder, "reference.safetensors", name)
    print(f"exported and imported, {name}: scores differ by {difference(back, scores[name])}")
    if shutil.which("plink2"):
        compare_with_plink2(folder, name, model, genotypes[name], scores[name])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
