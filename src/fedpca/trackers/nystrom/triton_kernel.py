"""Scores and energies of rows in one reading of them, for torch on an NVIDIA GPU.

cuBLAS and a norm read the rows twice: 6.6 ms instead of 3.3 for 3,200,000 rows of 1,000 on an H200, where
reading them takes 3.0.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from fedpca.trackers.nystrom.products import Probes

_FEWEST_ROWS = 2**14  # below, cuBLAS is as fast
_MOST_PROBES = 64  # above, cuBLAS and a norm are faster
_ROWS, _COLUMNS = 64, 64  # of a tile


def suits(panel: Any, directions: Any) -> bool:
    """Whether the kernel takes these, and is worth it."""
    n_rows, n_features = panel.shape
    return (
        panel.dtype == torch.float32
        and panel.is_contiguous()
        and n_features % 4 == 0  # rows begin at multiples of 16 bytes
        and panel.data_ptr() % 16 == 0
        and n_rows >= _FEWEST_ROWS
        and len(directions) <= _MOST_PROBES
        and _capability(panel.device) >= (9, 0)
    )


def compared(panel: Any, probes: Probes) -> tuple[Any, Any]:
    """See `panels.compared`."""
    directions, offsets, n_carried, mean_square, strange, rounds = probes
    (n_rows, n_features), width = panel.shape, len(directions)
    padded = max(16, triton.next_power_of_2(width))
    scores = torch.empty(n_rows, width, device=panel.device)
    facts = torch.empty(3, n_rows, device=panel.device)
    rows = TensorDescriptor(panel, [n_rows, n_features], [n_features, 1], [_ROWS, _COLUMNS])
    stages = 5 if padded <= 32 else 4
    against = TensorDescriptor(directions, [width, n_features], [n_features, 1], [padded, _COLUMNS])
    with torch.cuda.device(panel.device):
        _kernel[(triton.cdiv(n_rows, _ROWS),)](
            rows, against, offsets, scores, facts, n_rows, n_features, n_carried, mean_square, strange,
            probes.slack, width, padded, rounds, _ROWS, _COLUMNS, num_warps=4, num_stages=stages,
        )  # fmt: skip
    return scores.T, facts


_capability = cache(torch.cuda.get_device_capability)


@triton.jit
def _kernel(
    rows, probes, offsets, scores, facts, n_rows, n_features, n_carried, mean_square, strange, slack,
    width, PADDED: tl.constexpr, ROUNDS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    products = tl.zeros((ROWS, PADDED), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for column in range(0, n_features, COLUMNS):
        tile = rows.load([first, column])  # zeros beyond the edges
        squares += tl.sum(tile * tile, 1)
        against = probes.load([0, column]).T
        if ROUNDS:
            tile = ((tile.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
            products = tl.dot(tile, against, products, input_precision="tf32")
        else:
            products = tl.dot(tile, against, products, input_precision="tf32x3")
    row, probe = first + tl.arange(0, ROWS), tl.arange(0, PADDED)
    inside, last = row < n_rows, width - 1
    along_mean = tl.sum(tl.where((probe == last)[None, :], products, 0.0), 1)
    centered = products - tl.load(offsets + probe, mask=probe < last, other=0.0)[None, :]
    carried = tl.where((probe < n_carried)[None, :], centered, 0.0)
    left = squares - 2 * along_mean + mean_square - tl.sum(carried * carried, 1)
    centered = tl.where((probe == last)[None, :], 1.0, centered)
    left_out = left > strange + slack * squares
    centered = tl.where(left_out[:, None], 0.0, centered)
    places = row.to(tl.int64)[:, None] * width + probe[None, :]
    tl.store(scores + places, centered, mask=inside[:, None] & (probe < width)[None, :])
    tl.store(facts + row, tl.where(left_out, 0.0, squares), mask=inside)
    tl.store(facts + n_rows + row, tl.where(left_out, 0.0, left), mask=inside)
    tl.store(facts + 2 * n_rows + row, tl.where(left_out, 1.0, 0.0), mask=inside)
