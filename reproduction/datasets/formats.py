"""Readers: the files of a dataset, as they are published or as .npz, to rows."""

import csv
import gzip
import hashlib
import io
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
from scipy import io as scipy_io
from scipy import sparse

from fedpca._typing import JSON, AnyArray, Array
from reproduction.datasets.content import Content

# --- MNIST ---


def mnist_npz(paths: Sequence[Path]) -> Content:
    """X and y."""
    arrays = _npz(paths[0])
    return Content(arrays["X"], arrays["y"])


def mnist_idx(paths: Sequence[Path]) -> Content:
    """Images and labels as published: two compressed idx files."""
    images, labels = map(_idx, paths)
    return Content(images.reshape(len(images), -1), labels)


def _idx(path: Path) -> AnyArray:
    """Magic number, sizes as big-endian integers, bytes."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} is not an idx file of bytes.")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy()


# --- wine ---


def wine_csv(paths: Sequence[Path]) -> Content:
    """Files as published: names, then numbers, between semicolons. Of several files each is a client."""
    tables = [np.loadtxt(path, delimiter=";", skiprows=1, ndmin=2) for path in paths]
    with paths[0].open() as file:
        *names, _ = file.readline().replace('"', "").strip().split(";")
    table = np.concatenate(tables)
    colors = ["red" if "red" in path.name else "white" for path in paths]
    clients = np.repeat(colors, [len(part) for part in tables]) if len(paths) > 1 else None
    return Content(table[:, :-1], table[:, -1].astype(np.int64), clients, tuple(names))


# --- motes ---


def motes_npz(paths: Sequence[Path]) -> Content:
    """X."""
    return Content(_npz(paths[0])["X"])


def motes_dat(paths: Sequence[Path], name: str, git_blob: str | None = None) -> Content:
    """A text file of numbers between blanks or commas, by itself or in the zip it is published in.

    The git hash may be that of a copy with other line ends: git changes them on some systems.
    """
    raw = _zip_member(paths[0], name) if paths[0].suffix == ".zip" else paths[0].read_bytes()
    if git_blob is not None and git_blob not in (_git_blob(raw), _git_blob(raw.replace(b"\r\n", b"\n"))):
        raise ValueError(f"{name} must have the git hash {git_blob}, got {_git_blob(raw)}.")
    return Content(np.loadtxt(io.BytesIO(raw.replace(b",", b" ")), ndmin=2))


def _git_blob(raw: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()


# --- HapMap ---


def hapmap_npz(paths: Sequence[Path]) -> Content:
    """G with -1 where a genotype is missing, population, rsid."""
    arrays = _npz(paths[0])
    genotypes = arrays["G"].astype(np.float64)
    genotypes[genotypes < 0] = np.nan
    return Content(genotypes, clients=arrays["population"], feature_names=_unique(arrays["rsid"]))


def hapmap_csv(paths: Sequence[Path]) -> Content:
    """Population, then one column per genotype, empty where it is missing: what R writes, see the catalog."""
    with gzip.open(paths[0], "rt", newline="") as file:
        (_, *names), *rows = csv.reader(file)
    populations = np.array([row[0] for row in rows])
    return Content(_numbers(row[1:] for row in rows), clients=populations, feature_names=_unique(names))


# --- ISOLET ---


def isolet_npz(paths: Sequence[Path]) -> Content:
    """X, letter and speaker, by letter and then by speaker."""
    arrays = _npz(paths[0])
    return Content(arrays["X"], _alphabet(arrays["letter"]), arrays["speaker"].astype(np.int64))


def isolet_data(paths: Sequence[Path]) -> Content:
    """The file as published, unpacked: features and the number of a letter, between commas.

    The first 1560 lines are the first part: 30 speakers say each letter twice. Lines do not say who speaks;
    among those of one letter speakers follow each other.
    """
    with paths[0].open() as file:
        return _isolet(file)


def isolet_zip(paths: Sequence[Path]) -> Content:
    """The archive as published, with files packed by the Unix tool compress; gzip unpacks them."""
    packed = _zip_member(paths[0], "isolet1+2+3+4.data.Z")
    unpacked = subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True)
    return _isolet(io.StringIO(unpacked.stdout.decode()))


def _isolet(lines: Iterable[str]) -> Content:
    table = np.loadtxt(lines, delimiter=",", max_rows=30 * 26 * 2, ndmin=2)
    table = table[np.argsort(table[:, -1], kind="stable")]
    letters = table[:, -1].astype(np.int64)
    speakers = (np.arange(len(letters)) - np.searchsorted(letters, letters)) // 2
    return Content(table[:, :-1], _alphabet(letters), speakers)


def _alphabet(numbers: AnyArray) -> AnyArray:
    return np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))[numbers - 1]


# --- WISDM ---


def wisdm_csv(paths: Sequence[Path]) -> Content:
    """Names, then one line per row, empty where an entry is missing."""
    with gzip.open(paths[0], "rt", newline="") as file:
        names, *rows = csv.reader(file)
    return _wisdm(names, rows)


def wisdm_tar(paths: Sequence[Path]) -> Content:
    """The archive as published, with an ARFF file: attributes, then one line per row, ? where missing."""
    lines = iter(_tar_member(paths[0], "transformed.arff").decode().splitlines())
    names = []
    for line in lines:
        if attribute := re.match(r"\s*@attribute\s+[\"']?([^\s\"']+)", line, re.IGNORECASE):
            names.append(attribute[1])
        elif line.strip().lower() == "@data":
            break
    rows = ([cell.strip(" \"'") for cell in line.split(",")] for line in lines if line.strip())
    return _wisdm(names, list(rows))


def _wisdm(names: list[str], rows: list[list[str]]) -> Content:
    user, activity = names.index("user"), names.index("class")
    features = [i for i, name in enumerate(names) if name not in ("UNIQUE_ID", "user", "class")]
    return Content(
        _numbers([row[i] for i in features] for row in rows),
        np.array([row[activity] for row in rows]),
        np.array([int(row[user]) for row in rows]),
        tuple(names[i] for i in features),
    )


# --- single cells ---


def pbmc_npz(paths: Sequence[Path]) -> Content:
    """The arrays of a CSR matrix, and genes."""
    arrays = _npz(paths[0])
    counts = sparse.csr_array(
        (arrays["data"].astype(np.float64), arrays["indices"], arrays["indptr"]), shape=arrays["shape"]
    )
    return Content(counts, feature_names=_unique(arrays["genes"]))


def pbmc_tar(paths: Sequence[Path]) -> Content:
    """The archive as published: a Matrix Market file of genes by cells, and the genes' names."""
    counts = scipy_io.mmread(io.BytesIO(_tar_member(paths[0], "/matrix.mtx")))
    rows = sparse.csr_array(counts.T.astype(np.float64))
    rows.sort_indices()
    genes = _tar_member(paths[0], "/genes.tsv").decode().splitlines()
    return Content(rows, feature_names=_unique(line.split("\t")[1] for line in genes))


# --- shared ---


def _npz(path: Path) -> JSON:
    with np.load(path) as file:
        return dict(file)


def _zip_member(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if Path(member).name == name:
                return archive.read(member)
    raise ValueError(f"there is no {name} in {path.name}.")


def _tar_member(path: Path, ending: str) -> bytes:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(ending) and (file := archive.extractfile(member)):
                return file.read()
    raise ValueError(f"there is no file ...{ending} in {path.name}.")


def _numbers(rows: Iterable[Iterable[str]]) -> Array:
    return np.array([[float(cell) if cell not in ("", "?") else np.nan for cell in row] for row in rows])


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    """Names with .1, .2, ... after those that were there before, as R does it."""
    given = [str(name) for name in names]
    taken, numbers, unique = set(given), {}, []
    for name in given:
        if name not in numbers:
            numbers[name] = count(1)
            unique.append(name)
        else:
            unique.append(next(new for i in numbers[name] if (new := f"{name}.{i}") not in taken))
            taken.add(unique[-1])
    return tuple(unique)
