"""The documentation keeps its word: its links lead somewhere, its names are all there."""

import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

import fedpca

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


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


def named_tests(text):
    return re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)


@pytest.mark.parametrize("page", ["privacy-proofs", "threat-model"])
def test_every_test_that_a_page_names_exists(page):
    found = named_tests((ROOT / "docs" / "explanation" / f"{page}.md").read_text(encoding="utf-8"))
    assert len(found) > 10
    for file, name in found:
        (path,) = (ROOT / "tests").rglob(file)
        source = path.read_text(encoding="utf-8")
        assert re.search(rf"^ *def {name}\(", source, flags=re.MULTILINE), f"{file}::{name}"


def test_every_proof_names_a_test():
    text = (ROOT / "docs" / "explanation" / "privacy-proofs.md").read_text(encoding="utf-8")
    sections = text.split("\n## ")
    assert len(sections) > 10
    for section in sections:
        assert named_tests(section), section.splitlines()[0]


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
    for place in (
        "federation",
        "readers",
        "plot",
        "report",
        "single_cell",
        "trust",
        "disclosure",
        "writers",
        "parallel",
    ):
        module = import_module(f"fedpca.{place}")
        elsewhere = [name for name in module.__all__ if getattr(fedpca, name, None) is getattr(module, name)]
        yield from (f"fedpca.{place}.{name}" for name in module.__all__ if name not in elsewhere)
    for place in (
        "metrics",
        "progress",
        "paper.adjust_rank",
        "paper.federated_pca",
        "paper.fpca_edge",
        "paper.merges",
        "paper.mod_sulq",
        "paper.noise",
        "paper.streaming_mod_sulq",
        "paper.theory",
        "privacy.calibration",
    ):
        for name, thing in vars(import_module(f"fedpca.{place}")).items():
            here = getattr(thing, "__module__", "") == f"fedpca.{place}"
            if here and callable(thing) and not name.startswith("_"):
                yield f"fedpca.{place}.{name}"


@pytest.mark.docs
def test_every_public_name_is_in_the_reference(site):
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    described = set(re.findall(r'id="(?:module-)?(fedpca\.[\w.]+)"', reference))
    assert [name for name in public_names() if name not in described] == []


@pytest.mark.docs
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
