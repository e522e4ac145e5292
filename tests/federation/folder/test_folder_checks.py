"""fedpca check-folder: a folder where something does not work is named, and nothing is left in any."""

import json
import os

import pytest
from command_line import invoke

from fedpca._util import locks

pytestmark = pytest.mark.slow  # starts Python several times


def run(*arguments):
    return invoke(["check-folder", *map(str, arguments)])


def test_a_local_disk_does_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(".")
    assert result.exit_code == 0
    assert [line.split()[-1] for line in result.output.splitlines()].count("NO") == 0
    assert len(result.output.splitlines()) == 6
    assert os.listdir(tmp_path) == []


def no_links(*_args, **_settings):
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize(
    ("where", "name", "broken", "bad"),
    [
        (locks, "_lock", lambda *_args, **_settings: None, "locks"),
        (os, "link", no_links, "hard links"),
        (os, "symlink", no_links, "locks by a symbolic link"),
        (os, "replace", no_links, "renames"),
        (os, "fsync", no_links, "fsync"),
    ],
)
def test_what_does_not_work_is_named(tmp_path, monkeypatch, where, name, broken, bad):
    monkeypatch.setattr(where, name, broken)
    result = run(tmp_path, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout.splitlines()[0])["properties"]
    assert not found[bad]["holds"]
    assert found[bad]["text"]
    assert bad in result.stderr
    assert os.listdir(tmp_path) == []


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "nowhere"):
        result = run(path)
        assert result.exit_code == 1
        assert "must be a folder" in result.stderr
