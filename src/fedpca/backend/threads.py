"""One thread of BLAS: more make products of this size slower as soon as the machine has other work."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Inside, BLAS uses one thread; afterwards as many as before. May be nested.

    Where threads share one setting, each sets back what it found, unless that was one already: whatever the
    order in which several leave, the number of threads ends as it was.
    """
    before = [(library, number) for library in _libraries() if (number := library.num_threads) > 1]
    for library, _ in before:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, number in before:
            library.set_num_threads(number)


def has_blas_threads() -> bool:
    """Whether BLAS would use more than one thread now."""
    return any(library.num_threads > 1 for library in _libraries())


@cache
def _libraries() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
