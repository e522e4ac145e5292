"""The public surface is what is listed, and all of it is documented."""

import inspect

import pytest

import fedpca


def test_every_listed_name_exists_and_nothing_else_is_public():
    modules = {name for name, value in vars(fedpca).items() if inspect.ismodule(value)}
    public = {name for name in vars(fedpca) if not name.startswith("_")}
    assert set(fedpca.__all__) == (public - modules) | {"metrics", "progress"}


@pytest.mark.parametrize("name", fedpca.__all__)
def test_every_public_name_has_a_docstring(name):
    thing = getattr(fedpca, name)
    assert thing.__doc__
    if inspect.isclass(thing):
        members = inspect.getmembers(thing, inspect.isfunction)
        own = [m for n, m in members if not n.startswith("_") and m.__module__.startswith("fedpca")]
        rule = ("start", "next_rank", "shown")  # described once, in RankRule
        assert [m.__qualname__ for m in own if not m.__doc__ and m.__name__ not in rule] == []
