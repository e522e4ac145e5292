"""The documentation keeps its word: its commands run, its links lead somewhere, its names are all there."""

import inspect
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

import fedpca
from fedpca.cli.app import app

ROOT = Path(__file__).parents[1]
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


def check(page, folder):
    """Run the commands of a page in one shell; what differs from what the page says is an error."""
    there, told = folder / "there", folder / "told"
    there.mkdir()
    told.mkdir()
    found = commands(page.read_text(encoding="utf-8"))
    script = ["set -o pipefail"]
    for place, command in enumerate(found):
        expected = "-ne" if command.fails else "-eq"
        script += [f"{{ {command.line}", f"}} >{told}/{place} 2>&1 </dev/null; [ $? {expected} 0 ] || exit 1"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=there, env=settings, timeout=600)
    outputs = [(told / str(place)).read_text() for place in range(len(list(told.iterdir())))]
    if done.returncode:
        rule = "must fail" if found[len(outputs) - 1].fails else "must succeed"
        raise AssertionError(f"{rule}: {found[len(outputs) - 1].line}\n{outputs[-1]}")
    for command, said in zip(found, outputs, strict=True):
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in command.output.split("..."))
        right = not command.output or re.fullmatch(pattern, " ".join(said.split()))
        assert right, f"{command.line}\n{said}"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands(p.read_text(encoding="utf-8"))], ids=lambda p: p.stem
)
def test_every_command_runs(page, tmp_path):
    check(page, tmp_path)


def test_every_command_of_the_command_line_is_shown():
    shown = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    known = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert [name for name in known if not re.search(rf"^\$ fedpca {name}\b", shown, re.MULTILINE)] == []


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


def anchors(text):
    """What a page's headings can be linked to as, on GitHub and on the site."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_relative_link_leads_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / unquote(path) if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name}: {link}"


def test_every_setting_of_a_flower_run_is_described():
    template = ROOT / "src" / "fedpca" / "federation" / "flower" / "template" / "pyproject.toml"
    settings = tomllib.loads(template.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    page = (ROOT / "docs" / "reference" / "flower.md").read_text(encoding="utf-8")
    assert [name for name in settings if f"`{name}`" not in page] == []


# --- the site ---


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(ROOT / "docs"), str(folder)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def public_names():
    """All that is imported from fedpca, and from the modules that the reference names."""
    for name in fedpca.__all__:
        yield f"fedpca.{name}"
        if inspect.isclass(thing := getattr(fedpca, name)):
            for member, method in inspect.getmembers(thing, inspect.isroutine):
                ours = (getattr(method, "__module__", None) or "").startswith("fedpca")
                if ours and method.__doc__ and not member.startswith("_"):
                    yield f"fedpca.{name}.{member}"
    for place in ("federation", "readers", "datasets", "report"):
        module = import_module(f"fedpca.{place}")
        elsewhere = [name for name in module.__all__ if getattr(fedpca, name, None) is getattr(module, name)]
        yield from (f"fedpca.{place}.{name}" for name in module.__all__ if name not in elsewhere)
    for place in ("devices", "metrics", "progress", "theory", "privacy.calibration"):
        for name, thing in vars(import_module(f"fedpca.{place}")).items():
            here = getattr(thing, "__module__", "") == f"fedpca.{place}"
            if here and callable(thing) and not name.startswith("_"):
                yield f"fedpca.{place}.{name}"


def test_every_public_name_is_in_the_reference(site):
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    described = set(re.findall(r'id="(?:module-)?(fedpca\.[\w.]+)"', reference))
    assert [name for name in public_names() if name not in described] == []


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]*)\"", page.read_text(encoding="utf-8")
        )
        linked = re.findall(r"<link\b[^>]*\bhref=\"([^\"]*)\"", page.read_text(encoding="utf-8"))
        assert [address for address in loaded + linked if re.match(r"([a-z]+:)?//", address)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), (
            sheet
        )
