"""The wheel holds what it should, works with what it declares, and says which extra is missing.

Programs run on the contents of the wheel, in processes that can import what its metadata asks for and nothing
else that the environment of the tests has. With FEDPCA_REAL_INSTALL=1, as in `make release-check`, they run
in virtual environments into which pip has installed the wheel, one per extra.
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from processes import Forks

import fedpca

pytest.importorskip("build", reason="the build group")
pytest.importorskip("hatchling", reason="the build group")
packaging = pytest.importorskip("packaging.requirements", reason="the build group")

pytestmark = pytest.mark.slow  # a wheel has to be built

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REAL = os.environ.get("FEDPCA_REAL_INSTALL") == "1"

# A program for every extra, which needs it.
ROWS = "import numpy as np; rows = np.random.default_rng(0).normal(size=(50, 4))\n"
PROGRAMS = {
    "cli": "import sys; sys.argv = ['fedpca', 'plan', '--help']; import fedpca.cli; fedpca.cli.main()",
    "report": ROWS + "import fedpca, fedpca.report\n"
    "fedpca.report.write_report('page.html', fedpca.StreamingPCA(2).fit(rows))",
    "plot": ROWS + "import fedpca; fedpca.plot.scree(fedpca.Subspace.from_rows(rows))",
    "flower": "import fedpca.federation.flower.client_app",
    "dask": ROWS + "import fedpca.federation.engines.dask as engine\n"
    "try: import dask.array as da; rows = da.from_array(rows)\n"
    "except ImportError: pass\n"
    "engine.fit(rows, 2)",
    "spark": "import fedpca.federation.engines.spark as engine\n"
    "try: engine.fit(None, 2)\nexcept TypeError: pass",
    "genetics": "import pathlib; pathlib.Path('a.pgen').write_bytes(b'no genotypes')\n"
    "pathlib.Path('a.psam').write_text('#IID\\np1\\n')\n"
    "pathlib.Path('a.pvar').write_text('#CHROM\\tPOS\\tID\\tREF\\tALT\\n1\\t9\\trs1\\tA\\tG\\n')\n"
    "from fedpca.readers import open_rows\n"
    "try: print(*open_rows('a.pgen'))\n"
    "except ValueError as error: assert 'a.pgen' in str(error)",
    "single-cell": "import fedpca.single_cell\ntry: fedpca.single_cell.pca(None)\nexcept TypeError: pass",
    "onnx": ROWS + "import fedpca, fedpca.writers\n"
    "fedpca.writers.write_onnx(fedpca.Subspace.from_rows(rows), 'model.onnx')",
    "faiss": ROWS + "import fedpca, fedpca.writers\n"
    "fedpca.writers.write_faiss(fedpca.Subspace.from_rows(rows), 'model.vt')",
    "files": "import pathlib; pathlib.Path('a.csv').write_text('1,2\\n3,5\\n')\n"
    "from fedpca.readers import open_rows; print(*open_rows('a.csv'))\n"
    "import h5py, zarr",
    "excel": "import pathlib; pathlib.Path('a.xlsx').write_text('no zip')\n"
    "from fedpca.readers import open_rows\n"
    "try: open_rows('a.xlsx')\n"
    "except ValueError as error: assert 'not a valid Excel file' in str(error)",
    "folder": ROWS + "import fedpca, fedpca.federation.folder.exchange as f\n"
    "f.publish('memory://study', 'north', 1, fedpca.Subspace.from_rows(rows))",
    "url": "from fedpca.readers import open_rows\n"
    "try: import fsspec; fsspec.filesystem('memory').pipe('/a.csv', b'1,2\\n3,5\\n'); import aiohttp\n"
    "except ImportError: pass\n"
    "print(*open_rows('memory://a.csv'))",
    "gpu": "class Tensor: __dlpack__ = None\nfrom fedpca.backend import backend_of; backend_of(Tensor())",
    "progress": "import fedpca\nwith fedpca.progress.enabled(): pass",
    "secure": "import fedpca; fedpca.SigningKey.new().save('owner.key')",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the sdist."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def contents(path):
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as file:
            return {name: file.read(name) for name in file.namelist()}
    with tarfile.open(path) as file:
        files = {member.name.split("/", 1)[1]: file.extractfile(member) for member in file if member.isfile()}
        return {name: member.read() for name, member in files.items()}


# --- what is in it ---


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    found = contents(wheel)
    package = ROOT / "src" / "fedpca"
    expected = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = f"fedpca-{fedpca.__version__}.dist-info"
    assert {name for name in found if not name.startswith(info)} == expected
    assert "fedpca/py.typed" in found
    assert f"{info}/licenses/LICENSE" in found
    assert b"fedpca = fedpca.cli:main" in found[f"{info}/entry_points.txt"]


def test_the_sdist_holds_what_it_is_built_and_tested_from(built):
    """All that git tracks but what is for the place where it is developed."""
    (path,) = built.glob("*.tar.gz")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    of_the_place = (
        ".ci/",
        ".github/",
        ".editorconfig",
        ".pre-commit",
        "CODE_OF_CONDUCT",
        "RELEASING",
        "packaging/",
    )
    expected = {name for name in listed.splitlines() if not name.startswith(of_the_place)}
    assert contents(path).keys() - expected == {"PKG-INFO"}
    assert expected <= contents(path).keys()


def test_no_path_of_this_machine_is_in_either(built):
    for path in built.iterdir():
        for name, content in contents(path).items():
            assert str(ROOT).encode() not in content, name


def test_the_version_is_said_in_one_place(wheel):
    assert "version" in PROJECT["dynamic"]
    assert wheel.name == f"fedpca-{fedpca.__version__}-py3-none-any.whl"


# --- whether it works ---


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def closure(extra):
    """Names of all distributions that an extra, or None, needs: and those that these need."""
    needs = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, [])]
    waiting, found = [packaging.Requirement(need) for need in needs], set()
    while waiting:
        need = waiting.pop()
        for part in {(need.name, it) for it in ("", *need.extras)} - found:
            found.add(part)
            more = map(packaging.Requirement, distribution(need.name).requires or ())
            waiting += [it for it in more if it.marker is None or it.marker.evaluate({"extra": part[1]})]
    return {normalized(name) for name, _ in found}


def link(site, names):
    """Make packages of this environment importable in another, one by one."""
    for name in names:
        for top in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            here = Path(distribution(name).locate_file(top))
            if here.exists() and not (site / top).exists():
                (site / top).symlink_to(here)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Python of a virtual environment with the wheel and one extra, or none."""

    @cache
    def python(extra=None):
        folder = tmp_path_factory.mktemp(extra or "core")
        venv.create(folder, symlinks=True, with_pip=REAL)
        python = folder / "bin" / "python"
        if REAL:
            wanted = f"{wheel}[{extra}]" if extra else wheel
            subprocess.run([python, "-m", "pip", "install", "--quiet", wanted], check=True)
        else:
            (site,) = folder.glob("lib/python*/site-packages")
            link(site, closure(extra))
            zipfile.ZipFile(wheel).extractall(site)
        return python

    return python


ONLY = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else self.finder.find_spec(name, path, target)

missing = set(sys.argv[2:])
for name in list(sys.modules):
    if name.partition(".")[0] in {"fedpca", *missing}:
        del sys.modules[name]
sys.meta_path[:] = map(Without, sys.meta_path)
sys.path.insert(0, sys.argv[1])
"""


@pytest.fixture(scope="module")
def run_without(wheel, tmp_path_factory):
    """Runs a program on the contents of the wheel, without some modules."""
    site = tmp_path_factory.mktemp("wheel")
    zipfile.ZipFile(wheel).extractall(site)
    with Forks("import sklearn.utils.validation, sklearn.base") as fork:
        yield lambda missing, program: fork(ONLY + program, site, *missing).wait()


@pytest.fixture
def run(environment, request, tmp_path, monkeypatch):
    """Runs a program where the wheel and one extra, or none, are all there is: status, output, errors."""
    monkeypatch.chdir(tmp_path)

    def installed(extra, program):
        ended = subprocess.run([environment(extra), "-I", "-c", program], capture_output=True, text=True)
        return ended.returncode, ended.stdout, ended.stderr

    def imitated(extra, program):
        needed = {*closure(extra), "fedpca"}
        return request.getfixturevalue("run_without")(
            [
                name
                for name, owners in packages_distributions().items()
                if not needed & {*map(normalized, owners)}
            ],
            program,
        )

    return installed if REAL else imitated


def test_the_core_alone_works(run):
    program = ROWS + (
        "import fedpca\n"
        "for name in fedpca.__all__: getattr(fedpca, name)\n"
        "pca = fedpca.StreamingPCA(2).fit(rows); pca.subspace_.save('m'); assert fedpca.load('m').rank\n"
        "fedpca.FederatedPCA(2).fit(rows, groups=[0, 1] * 25)\n"
        "np.save('a.npy', rows); from fedpca.readers import open_rows; print(*open_rows('a.npy'))\n"
        "from fedpca.federation.flower.scaffold import write_template\n"
        "write_template('study'); open('study/node.toml')\n"
        "print(fedpca.__file__)"
    )
    status, printed, errors = run(None, program)
    assert status == 0, errors
    assert not Path(printed.splitlines()[-1]).is_relative_to(ROOT)  # it is that of the wheel


def test_the_core_alone_says_what_the_command_line_needs(environment, tmp_path):
    python = environment()
    installed = (  # what pip makes the command of
        "from importlib.metadata import entry_points\n"
        "entry_points(group='console_scripts')['fedpca'].load()()"
    )
    for command in (["-m", "fedpca", "--help"], ["-c", installed, "--help"]):
        ended = subprocess.run([python, "-I", *command], cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 1
        assert ended.stderr == "fedpca: error: the command line needs cyclopts: pip install 'fedpca[cli]'.\n"


def test_every_extra_is_tried():
    assert set(PROGRAMS) == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_extra_is_all_that_its_feature_needs(run, extra):
    if not REAL:
        try:
            closure(extra)
        except PackageNotFoundError as missing:
            pytest.skip(f"{missing} is not installed here")
    status, _, errors = run(extra, PROGRAMS[extra])
    assert status == 0, errors


@pytest.mark.parametrize("extra", PROGRAMS)
def test_without_its_extra_a_feature_says_what_to_install(run, extra):
    status, _, errors = run(None, PROGRAMS[extra])
    assert status == 1
    assert f"pip install 'fedpca[{extra}]'" in errors.splitlines()[-1]


def test_programs_that_use_it_are_checked_for_types(environment, tmp_path):
    pytest.importorskip("mypy", reason="the lint group")
    (tmp_path / "good.py").write_text(
        "import fedpca\n\nrank: int = fedpca.Subspace.from_rows([[1.0]]).rank\n"
    )
    (tmp_path / "bad.py").write_text("import fedpca\n\nrank: str = fedpca.Subspace.from_rows([[1.0]]).rank\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment()]
    ended = subprocess.run([*mypy, "good.py", "bad.py"], cwd=tmp_path, capture_output=True, text=True)
    assert re.fullmatch(
        r'bad\.py:3: error: Incompatible types in assignment \(expression has type "int", .*\n'
        r"Found 1 error in 1 file.*\n",
        ended.stdout,
    ), ended.stdout + ended.stderr
