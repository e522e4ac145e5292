"""The public surface is what is listed, and all of it is documented."""

import inspect
import subprocess
import sys

import pytest

import fedpca


def test_every_listed_name_exists_and_nothing_else_is_public():
    values = {name: getattr(fedpca, name) for name in fedpca.__all__}
    modules = {name for name in dir(fedpca) if inspect.ismodule(getattr(fedpca, name))}
    imported = {"Any", "find_spec", "import_module"}
    public = {name for name in dir(fedpca) if not name.startswith("_")} - imported
    assert set(values) == (public - modules) | {"metrics", "plot", "progress"}


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, fedpca; print([m for m in ('numpy', 'scipy', 'sklearn') if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"


def test_an_aggregator_does_not_import_scikit_learn():
    code = (
        "import sys, fedpca.federation.folder; from fedpca import Aggregator; print('sklearn' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_what_is_not_there_is_said_as_usual():
    with pytest.raises(AttributeError, match=r"module 'fedpca' has no attribute 'PCA'$"):
        _ = fedpca.PCA


def test_a_module_that_was_not_imported_is_named(monkeypatch):
    monkeypatch.delattr(fedpca, "paper", raising=False)
    with pytest.raises(AttributeError, match=r"'paper'; import it with `import fedpca\.paper`"):
        _ = fedpca.paper


@pytest.mark.parametrize("name", fedpca.__all__)
def test_every_public_name_has_a_docstring(name):
    thing = getattr(fedpca, name)
    assert thing.__doc__
    if inspect.isclass(thing):
        members = inspect.getmembers(thing, inspect.isfunction)
        own = [m for n, m in members if not n.startswith("_") and m.__module__.startswith("fedpca")]
        rule = ("start", "next_rank", "n_components", "n_weak")  # described once, in RankRule
        assert [m.__qualname__ for m in own if not m.__doc__ and m.__name__ not in rule] == []
