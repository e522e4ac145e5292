"""Many cores: how many threads, a team that shares parts of some work, and items read in advance.

BLAS has one thread in each: more make products of this size slower as soon as the machine has other work, and
change their rounding. Parts depend on shapes alone: the result has the same bits with any number of threads.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from fedpca._typing import DeviceArray

__all__ = ["prefetch", "prefetch_to_device"]  # for programs; the rest is for fedpca

T = TypeVar("T")
Item = TypeVar("Item")

_MAX_PENDING = 3  # with one, a batch shorter than others would stall the consumer; more gain nothing

# --- one thread of BLAS ---


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Inside, BLAS uses one thread; afterwards as many as before. May be nested.

    Where all threads share one setting, it is set back when the last of those inside leaves: products of
    others would otherwise get threads in their midst, which changes their rounding, and makes all wait.
    """
    global _n_inside
    own = _numbers(shared=False)
    _set_all((library, 1) for library, _ in own)
    with _lock:
        if not _n_inside:
            _before.extend(_numbers(shared=True))
            _set_all((library, 1) for library, _ in _before)
        _n_inside += 1
    try:
        yield
    finally:
        _set_all(own)
        with _lock:
            _n_inside -= 1
            if not _n_inside:
                _set_all(_before)
                _before.clear()


_lock = threading.Lock()
_n_inside = 0
_before: list[tuple[Any, int]] = []  # the setting of each library, before the first came inside


def _numbers(*, shared: bool) -> list[tuple[Any, int]]:
    """How many threads libraries use now, that have one setting for all threads, or one for each (OpenMP)."""
    return [(library, library.num_threads) for library in _libraries()[shared]]


def _set_all(numbers: Iterable[tuple[Any, int]]) -> None:
    for library, number in numbers:
        if library.num_threads != number:
            # threadpoolctl may ignore all threads but the first that ever set a number; here they agree.
            getattr(library, "_real_set_num_threads", library.set_num_threads)(number)


def has_blas_threads() -> bool:
    """Whether BLAS would use more than one thread, now or after all `single_threaded_blas`."""
    with _lock:
        return any(number > 1 for _, number in (*_numbers(shared=False), *_numbers(shared=True), *_before))


# --- teams ---


def n_threads(n_jobs: object) -> int:
    """How many threads a setting of scikit-learn's kind means here and now.

    Args:
        n_jobs: None for as many as BLAS would use, which is one inside other threads of this library or of
            joblib, or as the team has that this thread works with; -1 for all cores that the process may
            use, -2 for all but one; or how many.

    >>> n_threads(3), n_threads(-1) == available_cores()
    (3, True)
    """
    if n_jobs is None:
        if _is_joblib_thread():
            return 1
        if _team_size() > 1:
            return _team_size()
        numbers = [number for shared in (False, True) for _, number in _numbers(shared=shared)]
        return min(max(numbers, default=1), available_cores())
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, Integral):
        raise TypeError(f"n_jobs must be a whole number or None, got n_jobs={n_jobs!r}.")
    number = int(n_jobs)
    if not number:
        raise ValueError("n_jobs must be at least 1, or -1 for all cores, got n_jobs=0.")
    return number if number > 0 else max(1, available_cores() + 1 + number)


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def thread_team(n_threads: int) -> Iterator[None]:
    """Inside, `map_parts` of this thread uses so many threads, and BLAS a single one in each."""
    before = _team_size()
    _team.size = n_threads
    try:
        with single_threaded_blas():
            yield
    finally:
        _team.size = before


def map_parts(task: Callable[[Item], T], parts: Sequence[Item]) -> list[T]:
    """What a task gives for each part of some short work, in their order, by the team of this thread.

    The thread works itself, and takes parts that no other has begun: a team that is busy costs no time.

    >>> with thread_team(2):
    ...     map_parts(lambda number: number**2, [1, 2, 3])
    [1, 4, 9]
    """
    n_helpers = min(_team_size(), len(parts)) - 1
    if n_helpers < 1:
        return [task(part) for part in parts]
    results: dict[int, T] = {}
    places = deque(range(len(parts)))

    def work() -> None:
        while places:
            try:
                place = places.popleft()
            except IndexError:  # another thread was faster
                return
            results[place] = task(parts[place])

    helpers = [_pool().submit(copy_context().run, work) for _ in range(n_helpers)]
    try:
        work()
    finally:
        places.clear()
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[place] for place in range(len(parts))]


_team = threading.local()


def _team_size() -> int:
    return getattr(_team, "size", 1)


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads for the parts of all teams, which wait for the next."""
    size = max(available_cores() - 1, 1)
    return ThreadPoolExecutor(size, thread_name_prefix="fedpca", initializer=_limit_own)


def _limit_own() -> None:
    """One thread of BLAS for this thread, where each has its own setting."""
    _set_all((library, 1) for library, _ in _numbers(shared=False))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of these threads


def _is_joblib_thread() -> bool:
    """Whether this is one of several threads that joblib runs."""
    if threading.current_thread() is threading.main_thread():
        return False
    parallel = sys.modules.get("joblib.parallel")
    return parallel is not None and bool(getattr(parallel.get_active_backend()[0], "nesting_level", 0))


@cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """Those of BLAS in which each thread has its own setting, and those in which all share one."""
    from threadpoolctl import ThreadpoolController

    all_of_them = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [library for library in all_of_them if getattr(library, "threading_layer", None) == "openmp"]
    return own, [library for library in all_of_them if library not in own]


# --- reading ahead ---


@contextmanager
def prefetch(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """The same items, in the same order, read in advance by a thread that ends with the block.

    BLAS is single-threaded inside: more threads would compete with the reader for cores, and lose time.

    >>> with prefetch(iter("abcdefg")) as letters:
    ...     print(*letters)
    a b c d e f g
    """
    with single_threaded_blas(), ThreadPoolExecutor(1) as thread:
        try:
            yield _next_items(items, thread)
        finally:
            thread.shutdown(cancel_futures=True)


def _next_items(items: Iterator[T], thread: ThreadPoolExecutor) -> Iterator[T]:
    end = object()
    pending = deque(thread.submit(next, items, end) for _ in range(_MAX_PENDING))
    while (item := pending.popleft().result()) is not end:
        pending.append(thread.submit(next, items, end))
        yield item  # type: ignore[misc]  # it is not the end


def prefetch_to_device(batches: Iterable[DeviceArray], device: Any = "cuda") -> Iterator[DeviceArray]:
    """Batches of rows as torch tensors on a device, each copied there while the one before is worked on.

    Args:
        batches: NumPy arrays or torch tensors on the host. Pinned memory is copied at the speed of the bus;
            others are copied to pinned memory first.
        device: a device of torch.

    >>> import fedpca
    >>> batches = np.random.default_rng(0).normal(size=(4, 100, 8))     # or those of fedpca.readers.open_rows
    >>> pca = fedpca.StreamingPCA(2)
    >>> for rows in prefetch_to_device(batches, "cpu"):
    ...     pca = pca.partial_fit(rows)
    >>> pca.n_samples_seen_
    400
    """
    import torch

    device = torch.device(device)
    tensors = (
        torch.from_numpy(np.ascontiguousarray(rows)) if isinstance(rows, np.ndarray) else rows
        for rows in batches
    )
    if device.type != "cuda":
        yield from (rows.to(device) for rows in tensors)
        return
    copies = torch.cuda.Stream(device)
    pending = None
    for rows in tensors:
        with torch.cuda.stream(copies):
            copied = (rows if rows.is_pinned() else rows.pin_memory()).to(device, non_blocking=True)
            arrival = copies.record_event()
        if pending is not None:
            yield _after_arrival(*pending)
        pending = copied, arrival
    if pending is not None:
        yield _after_arrival(*pending)


def _after_arrival(rows: DeviceArray, arrival: Any) -> DeviceArray:
    """Rows that are complete for all work that the current stream queues from now on."""
    import torch

    stream = torch.cuda.current_stream(rows.device)
    stream.wait_event(arrival)
    rows.record_stream(stream)  # so that their memory is not reused while that work runs
    return rows
