"""Prefetching: the next items are read, or copied to a device, while the current one is worked on."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from fedpca._typing import DeviceArray
from fedpca.backend.threads import single_threaded_blas

T = TypeVar("T")

_MAX_PENDING = 3  # with one, a batch shorter than others would stall the consumer; more gain nothing


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
