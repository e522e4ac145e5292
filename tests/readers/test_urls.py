"""Rows behind URLs are those of the files, only parts of which are in memory, or one line says why not."""

import gzip
import json
import socket
import sys
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedpca import PrivatePCA, StreamingPCA, fit_files
from fedpca.errors import FileFormatError, NodeError
from fedpca.federation.aggregator.message import Message
from fedpca.federation.flower.node import Node
from fedpca.readers import open_rows

pa = pytest.importorskip("pyarrow", reason="the url extra")
fsspec = pytest.importorskip("fsspec", reason="the url extra")
import pyarrow.parquet  # noqa: E402, F401

NAMES = ("x", "y", "z")
FILES = ("rows.csv", "rows.tsv", "rows.csv.gz", "rows.jsonl", "rows.parquet")


def make_rows(n_rows=5000):
    return np.random.default_rng(0).normal(size=(n_rows, 3))


def write(folder, rows):
    """The same rows in all formats that are read from URLs."""
    lines = [list(NAMES), *([repr(value) for value in row] for row in rows.tolist())]
    for name, delimiter in (("rows.csv", ","), ("rows.tsv", "\t")):
        (folder / name).write_text("\n".join(delimiter.join(line) for line in lines))
    (folder / "rows.csv.gz").write_bytes(gzip.compress((folder / "rows.csv").read_bytes()))
    objects = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in rows.tolist()]
    (folder / "rows.jsonl").write_text("\n".join(objects))
    table = pa.table(dict(zip(NAMES, rows.T, strict=True)))
    pa.parquet.write_table(table, folder / "rows.parquet", row_group_size=1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write(folder, make_rows())
    return folder


@pytest.fixture(scope="module")
def memory(folder):
    """The URL of a folder in fsspec's memory."""
    files = fsspec.filesystem("memory")
    files.pipe({f"/behind-urls/{name}": (folder / name).read_bytes() for name in FILES})
    yield "memory://behind-urls"
    files.rm("/behind-urls", recursive=True)


class Server(ThreadingHTTPServer):
    """Serves the files of a folder, and notes requests; `ranges` is what it says about parts of files."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.ranges, self.requests = folder, "bytes", []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        name = self.path.partition("?")[0].lstrip("/")
        path = self.server.folder / name
        if not path.is_file():
            self.send_error(404)
            return
        size, wanted = path.stat().st_size, self.headers.get("Range")
        self.server.requests.append((self.command, wanted))
        first, end = 0, size
        if wanted and self.server.ranges == "bytes":
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            end = min(last + 1, size)
        self.send_response(206 if end - first < size else 200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", self.server.ranges)
        self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - first))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.end_headers()
        if self.command == "GET":
            try:
                with path.open("rb") as file:
                    file.seek(first)
                    for start in range(first, end, 2**16):
                        self.wfile.write(file.read(min(2**16, end - start)))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the reader has seen enough

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(folder):
    pytest.importorskip("aiohttp", reason="the url extra")
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def all_of(rows):
    return np.concatenate(list(rows))


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("name", FILES)
class TestEveryFormat:
    def test_in_memory(self, memory, name, private):
        if private and name == "rows.jsonl":
            pytest.skip("not read with privacy")
        opened = open_rows(f"{memory}/{name}", private=private, batch_rows=700)
        assert opened.feature_names == NAMES
        for _ in range(2):
            np.testing.assert_array_equal(all_of(opened), make_rows())
        skipped = np.concatenate([batch.rows for batch in opened.batches(skip=1234)])
        np.testing.assert_array_equal(skipped, make_rows()[1234:])

    def test_of_a_server(self, server, name, private):
        if private and name == "rows.jsonl":
            pytest.skip("not read with privacy")
        opened = open_rows(f"{server.url}/{name}?token=a/b.c", private=private)
        np.testing.assert_array_equal(all_of(opened), make_rows())
        assert repr(opened).startswith(f"RowReader('{name}'")


@pytest.mark.parametrize("name", FILES)
def test_file_urls_are_paths(folder, name):
    np.testing.assert_array_equal(all_of(open_rows(f"{folder.as_uri()}/{name}")), make_rows())


def test_file_urls_need_no_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    np.save(tmp_path / "my rows.npy", np.eye(3))
    assert all_of(open_rows((tmp_path / "my rows.npy").as_uri())).tolist() == np.eye(3).tolist()
    assert open_rows(f"file://{tmp_path}/*.npy").n_rows == 3
    with pytest.raises(FileNotFoundError, match=r"/no\.csv: no such file; check the path"):
        open_rows(f"file://{tmp_path}/no.csv")


def test_patterns_and_folders(memory):
    files = fsspec.filesystem("memory")
    contents = {"b.csv": b"x\n3\n", "a.csv": b"x\n1\n2\n", "_no.csv": b"y\n4\n", ".no/c.csv": b"y\n4\n"}
    files.pipe({f"/parts/2025/{name}": text for name, text in contents.items()})
    for url in (
        "memory://parts/2025",
        "memory://parts",
        "memory://parts/2025/?.csv",
        "memory://parts/**/[ab].csv",
    ):
        assert all_of(open_rows(url)).tolist() == [[1], [2], [3]]
    both = open_rows(["memory://parts/2025/b.csv", "memory://parts/2025/a.csv"])
    assert all_of(both).tolist() == [[3], [1], [2]]
    with pytest.raises(ValueError, match=r"files must be given once.*a\.csv"):
        open_rows(["memory://parts/2025/a.csv", "memory://parts/2025/a.csv"])
    with pytest.raises(FileFormatError, match="all files must have one format"):
        open_rows(memory)
    with pytest.raises(FileNotFoundError, match=r"no file matches memory://parts/\*\.tsv; check the URL"):
        open_rows("memory://parts/*.tsv")


def test_text_is_one_request_and_parquet_reads_what_is_wanted(server, folder):
    opened = open_rows(f"{server.url}/rows.csv")
    server.requests.clear()
    all_of(opened)
    gets = [wanted for command, wanted in server.requests if command == "GET"]
    assert set(gets) == {None}
    assert len(gets) <= 2  # one more for the byte order mark
    opened = open_rows(f"{server.url}/rows.parquet", columns=["y"])
    server.requests.clear()
    np.testing.assert_array_equal(all_of(opened), make_rows()[:, 1:2])
    ranges = [
        wanted.removeprefix("bytes=").split("-") for command, wanted in server.requests if command == "GET"
    ]
    assert len(ranges) <= 8  # the footer, and one per row group
    transferred = (
        sum(int(last) - int(first) + 1 for first, last in ranges) - 65536
    )  # what the footer may take
    assert transferred < 0.5 * (folder / "rows.parquet").stat().st_size


@pytest.mark.parametrize("ranges", ["", "none"])
def test_servers_that_send_whole_files(server, ranges):
    server.ranges = ranges
    np.testing.assert_array_equal(all_of(open_rows(f"{server.url}/rows.csv")), make_rows())
    with pytest.raises(ConnectionError, match=r"server of http.*/rows\.parquet must support range requests"):
        open_rows(f"{server.url}/rows.parquet")


@pytest.mark.slow
def test_a_large_file_is_not_in_memory_at_once(server, tmp_path):
    server.folder = tmp_path
    line = b"1.5,2.5,3.5\n"
    (tmp_path / "large.csv").write_bytes(b"x,y,z\n" + line * 10_000_000)  # 120 MB
    opened = open_rows(f"{server.url}/large.csv")
    tracemalloc.start()
    try:
        n_rows = sum(len(batch) for batch in opened)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n_rows == 10_000_000
    assert peak < 60e6  # pyarrow reads ahead


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("no.csv", FileNotFoundError, r"/no\.csv: no such file; check the URL\."),
        ("no.parquet", FileNotFoundError, r"/no\.parquet: no such file; check the URL\."),
        ("rows.npy", FileFormatError, r"/rows\.npy: URLs must be of text or Parquet files; copy it to this"),
        ("rows", FileFormatError, r"/rows must end in one of \.csv"),
    ],
)
def test_urls_without_rows(server, memory, name, kind, rule):
    for base in (server.url, memory):
        with pytest.raises(kind, match=rule):
            open_rows(f"{base}/{name}")


@pytest.mark.parametrize(
    ("status", "kind", "rule"),
    [
        (403, PermissionError, "access denied; check your credentials"),
        (500, ConnectionError, r"\(HTTP status 500\); check the URL and the network"),
    ],
)
def test_what_a_server_refuses(server, status, kind, rule, monkeypatch):
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.send_error(status))
    with pytest.raises(kind, match=rule):
        open_rows(f"{server.url}/rows.csv")


def test_a_server_that_does_not_answer_is_named_without_secrets():
    pytest.importorskip("aiohttp", reason="the url extra")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionError) as caught:
        open_rows(f"http://me:secret@127.0.0.1:{port}/rows.csv?signature=secret")
    assert str(caught.value) == (
        f"cannot read http://127.0.0.1:{port}/rows.csv (ClientConnectorError); check the URL and the network."
    )


def test_a_connection_that_breaks(server, monkeypatch):
    opened = open_rows(f"{server.url}/rows.csv")

    def break_off(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.send_header("ETag", f'"{(self.server.folder / "rows.csv").stat().st_mtime_ns}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"x,y,z\n1,2,3\n")
        self.close_connection = True

    monkeypatch.setattr(Handler, "do_GET", break_off)
    with pytest.raises((ConnectionError, FileFormatError), match=r"rows\.csv") as caught:
        all_of(opened)
    assert "changed" in str(caught.value) or "check the URL and the network" in str(caught.value)


def test_a_file_that_changes_meanwhile():
    files = fsspec.filesystem("memory")
    files.pipe("/changing/a.csv", b"x\n1\n2\n")
    opened = open_rows("memory://changing/a.csv", batch_rows=1)
    before = opened.fingerprint()
    batches = iter(opened)
    next(batches)
    files.pipe("/changing/a.csv", b"x\n1\n2\n3\n")
    with pytest.raises(FileFormatError, match="changed while it was read"):
        list(batches)
    assert open_rows("memory://changing/a.csv").fingerprint() != before
    files.rm("/changing/a.csv")
    with pytest.raises(FileNotFoundError, match="removed since it was opened"):
        list(opened)


def test_unknown_and_missing_protocols(monkeypatch):
    with pytest.raises(ValueError, match=r"must be one that fsspec knows, .* got gopher://"):
        open_rows("gopher://host/a.csv")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ImportError, match=r"reading from s3:// needs one more package: .*s3fs"):
        open_rows("s3://bucket/a.csv")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ImportError, match=r"^reading from https:// needs aiohttp: pip install '.*'\.$"):
        open_rows("https://host/a.csv")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"needs fsspec: pip install 'fedpca\[url\]'"):
        open_rows("memory://a.csv")


def test_fits_and_checkpoints(memory, folder, tmp_path):
    """Stopped and resumed, and as of the file itself."""
    opened = open_rows(f"{memory}/rows.parquet", batch_rows=1000)
    for stop in (True, False):
        pca = StreamingPCA(2)
        n_rows = fit_files(
            pca, opened, checkpoint=tmp_path / "checkpoint", should_stop=lambda stop=stop: stop
        )
    assert n_rows == 5000
    local = StreamingPCA(2)
    fit_files(local, open_rows(folder / "rows.parquet", batch_rows=1000))
    np.testing.assert_allclose(np.abs(pca.components_), np.abs(local.components_), atol=1e-12)
    private = PrivatePCA(1, epsilon=1.0, delta=1e-5, bound=5.0)
    assert fit_files(private, open_rows(f"{memory}/rows.csv", private=True)) == 5000


def test_a_flower_node(memory, tmp_path):
    config = {"client-id": "north", "source": f"{memory}/rows.csv"}
    with pytest.raises(NodeError, match="state must be a non-empty string"):
        Node.from_config(config)
    node = Node.from_config(config | {"state": str(tmp_path)})
    assert Message.decode(node.release({"rank": 2, "center": True, "scale": "none"})).summary.count == 5000


@pytest.mark.slow
def test_the_command_line(memory, tmp_path, monkeypatch):
    from command_line import invoke

    monkeypatch.chdir(tmp_path)
    fit = ["fit", f"{memory}/rows.csv", "-o", "m.safetensors"]
    for line in (
        fit,
        [*fit, "--epsilon", "1", "--delta", "1e-5", "--bound", "5", "--force"],
        ["transform", "m.safetensors", f"{memory}/rows.parquet", "-o", "s.csv"],
        ["report", "m.safetensors", "--rows", f"{memory}/rows.csv.gz", "-o", "r.html"],
    ):
        result = invoke(line)
        assert result.exit_code == 0, result.stderr
    result = invoke(["fit", f"{memory}/no.csv", "-o", "n.safetensors"])
    assert (result.exit_code, result.stderr) == (
        1,
        f"fedpca: error: {memory}/no.csv: no such file; check the URL.\n",
    )
    assert not Path("n.safetensors").exists()
