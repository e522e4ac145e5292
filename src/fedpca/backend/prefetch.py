"""Rows from the host to a device, each batch on its way while the one before is worked on; needs torch."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


def prefetch_to_device(batches: Iterable[Any], device: Any = "cuda") -> Iterator[Any]:
    """Batches of rows as torch tensors on a device, copied there one ahead of their use.

    Args:
        batches: numpy arrays or torch tensors on the host. Those in pinned memory travel at the speed of the
            bus; others are copied to pinned memory first.
        device: as torch calls it.

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
    waiting = None
    for rows in tensors:
        with torch.cuda.stream(copies):
            moved = (rows if rows.is_pinned() else rows.pin_memory()).to(device, non_blocking=True)
            arrived = copies.record_event()
        if waiting is not None:
            yield _arrived(*waiting)
        waiting = moved, arrived
    if waiting is not None:
        yield _arrived(*waiting)


def _arrived(rows: Any, event: Any) -> Any:
    """Rows that the work queued from now on waits for."""
    import torch

    stream = torch.cuda.current_stream(rows.device)
    stream.wait_event(event)
    rows.record_stream(stream)  # their memory is not given away while that work runs
    return rows
