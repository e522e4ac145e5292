"""Reading ahead: a thread reads what comes next while what came is worked on."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_MOST = 3  # of one, a batch shorter than others would keep somebody waiting; more gain nothing


@contextmanager
def ahead(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """The same items, in the same order, read by a thread that ends with the block.

    Matrix products are left one thread inside: more would fight the reader for cores, and lose.

    >>> with ahead(iter("abcdefg")) as letters:
    ...     print(*letters)
    a b c d e f g
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(1) as thread:
        try:
            yield _read(items, thread)
        finally:
            thread.shutdown(cancel_futures=True)


def _read(items: Iterator[T], thread: ThreadPoolExecutor) -> Iterator[T]:
    end = object()
    waiting = deque(thread.submit(next, items, end) for _ in range(_MOST))
    while (item := waiting.popleft().result()) is not end:
        waiting.append(thread.submit(next, items, end))
        yield item  # type: ignore[misc]  # it is not the end
