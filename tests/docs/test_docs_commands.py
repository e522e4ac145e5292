"""The commands on the documentation's pages run, and print what the pages say."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import Forks

from fedpca.cli.app import COMMANDS, GROUPS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- not run:(?P<reason>.*?)-->\n+)?^```console\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)


class Command(NamedTuple):
    """A command of a page, and what the page says it prints."""

    line: str
    output: str

    @property
    def fails(self):
        return self.line.endswith("# fails")


def commands(text):
    """All commands of a page that are to be run, in order."""
    found = []
    for block in BLOCK.finditer(text):
        if block["reason"] is not None:
            assert block["reason"].strip(), f"a block that is not run must say why: {block['body']}"
            continue
        for line in block["body"].splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], ""))
            elif (line == ">" or line.startswith("> ")) and not found[-1].output:
                found[-1] = Command(f"{found[-1].line}\n{line[2:]}", "")
            else:
                found[-1] = Command(found[-1].line, f"{found[-1].output}{line}\n")
    return found


@pytest.fixture(scope="session")
def quick_commands(tmp_path_factory):
    """A folder with a `fedpca` that does not import everything anew every time."""
    folder = tmp_path_factory.mktemp("commands")
    modules = "fedpca.cli.app, fedpca.report, fedpca.federation.folder.secure, fedpca.trust.keys"
    with Forks(f"import {modules}, pyarrow.csv, pyarrow.parquet, sklearn.base") as forks:
        forks.command(folder / "fedpca", "from fedpca.cli import main; main()")
        yield folder


def check(page, folder, *commands_in):
    """Run the commands of a page in one shell; what differs from what the page says is an error."""
    work, outputs = folder / "work", folder / "outputs"
    work.mkdir()
    outputs.mkdir()
    found = commands(page.read_text(encoding="utf-8"))
    script = ["set -o pipefail"]
    for i, command in enumerate(found):
        expected = "-ne" if command.fails else "-eq"
        script += [f"{{ {command.line}", f"}} >{outputs}/{i} 2>&1 </dev/null; [ $? {expected} 0 ] || exit 1"]
    path = os.pathsep.join(map(str, [*commands_in, Path(sys.executable).parent, os.environ["PATH"]]))
    settings = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
    ended = subprocess.run(["bash", "-c", "\n".join(script)], cwd=work, env=settings, timeout=600)
    printed = [(outputs / str(i)).read_text() for i in range(len(list(outputs.iterdir())))]
    if ended.returncode:
        rule = "must fail" if found[len(printed) - 1].fails else "must succeed"
        raise AssertionError(f"{rule}: {found[len(printed) - 1].line}\n{printed[-1]}")
    for command, text in zip(found, printed, strict=True):
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in command.output.split("..."))
        right = not command.output or re.fullmatch(pattern, " ".join(text.split()))
        assert right, f"{command.line}\n{text}"


@pytest.mark.docs
@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands(p.read_text(encoding="utf-8"))], ids=lambda p: p.stem
)
def test_every_command_runs(page, quick_commands, tmp_path):
    """Those of the tutorial as they are installed."""
    check(page, tmp_path, *([] if page.stem == "tutorial" else [quick_commands]))


def test_every_command_of_the_command_line_is_shown():
    shown = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    assert [
        name for name in [*COMMANDS, *GROUPS] if not re.search(rf"^\$ fedpca {name}\b", shown, re.MULTILINE)
    ] == []


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        ("$ true\n$ echo two\ntwo\n", None),
        ("$ echo one > file\n$ cat \\\n>   file\none\n", None),
        ("$ echo 3.14159\n3.1...\n", None),
        ("$ false # fails\n", None),
        ("$ false\n", "false"),
        ("$ true # fails\n", "true"),
        ("$ false | true\n", "false"),
        ("$ echo two\nthree\n", "two"),
        ("$ echo 3.14159\n2.7...\n", "3.14159"),
        ("$ echo one; echo two; echo three\none\n...\nthree\n", None),
        ("$ cd .; export NAME=Ada\n$ echo $NAME\nAda\n", None),
    ],
)
def test_what_a_page_says_is_compared_with_what_happens(block, wrong, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n```console\n{block}```\n")
    if wrong is None:
        check(page, tmp_path)
    else:
        with pytest.raises(AssertionError, match=wrong):
            check(page, tmp_path)


def test_a_block_that_is_not_run_says_why():
    block = "```console\n$ rm -rf everything\n```\n"
    assert len(commands(block)) == 1
    assert commands(f"<!-- not run: it would hurt -->\n{block}") == []
    with pytest.raises(AssertionError, match="must say why"):
        commands(f"<!-- not run: -->\n{block}")
