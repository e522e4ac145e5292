"""TensorCoreProducts: the scatter of rows from bfloat16 products, for torch on an NVIDIA GPU.

A fused pass reads the rows once, whatever their dtype: it subtracts the shift, multiplies by the roots of the
weights, rounds to the nearest bfloat16, and sums columns and squares. The upper tiles of X^T X follow by
tensor cores, split over rows: float32 sums of one chunk, added in float64 in a fixed order, without atomics:
runs agree bit for bit.

Rounding moves entries of the scatter by 1e-5 of the sizes of their features, at random, so that captured
variance moves by 1e-10 to 1e-8; single directions below 1e-5 of the trace drown (`Exact` watches for these).

Measured on an H200, 3,200,000 x 1,000 float32: 11.9 ms, of which the pass takes 5 at 3.8 TB/s. Triton needs
the row length as a constant: as an argument, loads are not vectorized (19 ms instead of 5.5).
"""

from functools import cache, reduce
from itertools import count
from math import ceil
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from fedpca._typing import DeviceArray
from fedpca.backend import batch_slices
from fedpca.trackers.on_device.products import Sums

# Rows in one float32 sum. Twice as many gain 5 % of the time and lose a digit; a quarter costs 4 to 12 ms of
# launches in 3,200,000 x 1,000 (H200).
_SUMMED_ROWS = 65_536
_CHUNK_ENTRIES = 2**28  # 512 MB of bfloat16
_PAD = 256  # columns: a multiple of every tile
_PASS_ROWS, _PASS_COLUMNS, _PASS_REPEATS, _PASS_WARPS = 8, 256, 8, 4
_BUSY_ENOUGH, _BUSY = 0.75, 0.9  # shares of the multiprocessors that have work, on average
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Tiles(NamedTuple):
    """How a product is cut, by measurement: shape of a tile, rows at a time, and what a program gets.

    Attributes:
        descriptors: whether tiles are loaded by the hardware's own copies, which need square ones.
        programs: per multiprocessor.
    """

    height: int
    width: int
    depth: int
    warps: int
    stages: int
    descriptors: bool
    programs: int


def tiles_for(*, descriptors: bool) -> Tiles:
    """The fastest tiles: 640 to 690 TFLOP/s on an H200 from 768 columns on, 550 at 256.

    At 1,536 columns tiles of 128 x 256 gain 5 %, at 256 to 1,024 and 4,096 they lose 5 to 20.
    """
    if descriptors:
        return Tiles(128, 128, 64, warps=8, stages=5, descriptors=True, programs=1)
    return Tiles(128, 128, 64, warps=4, stages=3, descriptors=False, programs=2)


def splits_for(n_tiles: int, at_once: int) -> int:
    """Parts of the rows that keep a chip busy, which works on so many tiles at once; the fewer, the better.

    At 1,536 columns, 78 tiles and 132 multiprocessors, one part takes 12 ms and five take 8; at 1,024, 36
    tiles, three take 6.0 and eleven 6.2, though all multiprocessors have work.
    """

    def busy(n_splits: int) -> float:
        in_turns = n_splits * n_tiles / at_once
        return in_turns / ceil(in_turns)

    fewest = max(1, at_once // n_tiles)
    if busy(fewest) >= _BUSY_ENOUGH:
        return fewest
    return next(n_splits for n_splits in count(fewest) if busy(n_splits) >= _BUSY)


class TensorCoreProducts:
    """`Products` in bfloat16."""

    def __call__(self, rows: DeviceArray, roots: DeviceArray | None, shift: DeviceArray) -> Sums:
        (n_rows, n_features), device = rows.shape, rows.device
        padded = triton.cdiv(n_features, _PAD) * _PAD
        tiles = tiles_for(descriptors=_has_descriptors(device))
        corners = _upper_corners(padded, tiles.height, tiles.width, device)
        n_splits = splits_for(len(corners), tiles.programs * _multiprocessors(device))
        n_chunk = min(n_rows, n_splits * _SUMMED_ROWS, max(_CHUNK_ENTRIES // padded, 1))
        rounded = torch.empty(n_chunk, padded, dtype=_stored_dtype(device), device=device)
        partial = torch.empty(n_splits, padded, padded, dtype=torch.float32, device=device)

        def multiply(part: slice) -> DeviceArray:
            _multiply(rounded[: part.stop - part.start], corners, tiles, partial)
            return partial.sum(0, dtype=torch.float64)  # of anything below the diagonal

        total, sums = None, []
        *others, last = batch_slices(n_rows, n_chunk)
        for part in others:
            sums.append(_round(rows[part], None if roots is None else roots[part], shift, rounded))
            product = multiply(part)
            total = product if total is None else total.add_(product)
        sums.append(_round(rows[last], None if roots is None else roots[last], shift, rounded))
        row_sum, energy = (reduce(torch.add, values) for values in zip(*sums, strict=True))

        def scatter() -> DeviceArray:
            product = multiply(last)
            upper = (product if total is None else product.add_(total))[:n_features, :n_features]
            return upper.triu() + upper.triu(1).T

        return Sums(row_sum, energy, scatter)


def rounded_rows(
    rows: DeviceArray, roots: DeviceArray | None, shift: DeviceArray
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Rows less a shift, times the roots, in bfloat16 with columns of zeros added; their `Sums`."""
    n_rows, n_features = rows.shape
    padded = triton.cdiv(n_features, _PAD) * _PAD
    rounded = torch.empty(n_rows, padded, dtype=_stored_dtype(rows.device), device=rows.device)
    return rounded, *_round(rows, roots, shift, rounded)


def _readable(rows: DeviceArray) -> DeviceArray:
    """Rows of a dtype and a layout that the kernel reads."""
    rows = rows if rows.dtype in _FLOATS else rows.float()
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _round(
    rows: DeviceArray, roots: DeviceArray | None, shift: DeviceArray, rounded: DeviceArray
) -> tuple[DeviceArray, DeviceArray]:
    """Fill `rounded` with rows less the shift, times the roots; returns their weighted sum and energy."""
    rows, (n_rows, n_features), padded = _readable(rows), rows.shape, rounded.shape[1]
    grid = triton.cdiv(n_rows, _PASS_ROWS * _PASS_REPEATS), padded // _PASS_COLUMNS
    sums = torch.empty(grid[0], padded, dtype=torch.float32, device=rows.device)
    squares = torch.empty(grid, dtype=torch.float32, device=rows.device)
    _rounding_kernel[grid](
        rows,
        rows if roots is None else roots.float(),
        shift.float(),
        rounded,
        sums,
        squares,
        n_rows,
        STRIDE=rows.stride(0),
        FEATURES=n_features,
        PADDED=padded,
        WEIGHTED=roots is not None,
        ROWS=_PASS_ROWS,
        COLUMNS=_PASS_COLUMNS,
        REPEATS=_PASS_REPEATS,
        num_warps=_PASS_WARPS,
    )
    return sums.sum(0, dtype=torch.float64)[:n_features], squares.sum(dtype=torch.float64)


def _multiply(rounded: DeviceArray, corners: DeviceArray, tiles: Tiles, partial: DeviceArray) -> None:
    """Fill the upper tiles of `partial` with products of a part of the rows each."""
    n_rows, padded = rounded.shape
    n_splits = len(partial)
    per_split = triton.cdiv(triton.cdiv(n_rows, n_splits), tiles.depth) * tiles.depth
    source = rounded
    if tiles.descriptors:
        source = TensorDescriptor(rounded, [n_rows, padded], [padded, 1], [tiles.depth, tiles.height])
    _product_kernel[(len(corners) * n_splits,)](
        source,
        partial,
        corners,
        n_rows,
        per_split,
        PADDED=padded,
        CORNERS=len(corners),
        DESCRIPTORS=tiles.descriptors,
        HEIGHT=tiles.height,
        WIDTH=tiles.width,
        DEPTH=tiles.depth,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


@triton.jit
def _rounding_kernel(
    rows, roots, shift, rounded, sums, squares, n_rows, STRIDE: tl.constexpr, FEATURES: tl.constexpr,
    PADDED: tl.constexpr, WEIGHTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    REPEATS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < FEATURES
    middle = tl.load(shift + columns, mask=inside, other=0.0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)  # a tile, reduced once
    energy = tl.zeros((ROWS, COLUMNS), tl.float32)
    for repeat in range(REPEATS):
        row = ((block * REPEATS + repeat) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        exists = row < n_rows
        mask = exists[:, None] & inside[None, :]
        values = tl.load(rows + row[:, None] * STRIDE + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        values = tl.where(mask, values - middle[None, :], 0.0)
        if WEIGHTED:
            root = tl.load(roots + row, mask=exists, other=0.0)[:, None]
            values = values * root
            total += values * root
        else:
            total += values
        kept = values.to(tl.bfloat16)
        energy += kept.to(tl.float32) * kept.to(tl.float32)
        at = rounded + row[:, None] * PADDED + columns[None, :]
        tl.store(at, kept, mask=exists[:, None])  # in any dtype, with these values
    tl.store(sums + block * PADDED + columns, tl.sum(total, 0))
    tl.store(squares + block * (PADDED // COLUMNS) + tl.program_id(1), tl.sum(energy))


@triton.jit
def _product_kernel(
    source, partial, corners, n_rows, per_split, PADDED: tl.constexpr, CORNERS: tl.constexpr,
    DESCRIPTORS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    corner, split = program % CORNERS, program // CORNERS
    top = tl.multiple_of(tl.load(corners + 2 * corner), HEIGHT)  # known multiples make loads of 16 bytes
    left = tl.multiple_of(tl.load(corners + 2 * corner + 1), WIDTH)
    down, across = top + tl.arange(0, HEIGHT), left + tl.arange(0, WIDTH)
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for step in range(0, per_split, DEPTH):
        first = split * per_split + step
        if DESCRIPTORS:
            one = source.load([first, top])  # zeros beyond the last row
            other = source.load([first, left])
        else:
            row = first + tl.arange(0, DEPTH)  # entries of a chunk fit 32 bits; 64 spill registers
            exists = (row < n_rows)[:, None]
            one = tl.load(source + row[:, None] * PADDED + down[None, :], mask=exists, other=0.0)
            other = tl.load(source + row[:, None] * PADDED + across[None, :], mask=exists, other=0.0)
        total = tl.dot(tl.trans(one), other, total)
    at = partial + split.to(tl.int64) * PADDED * PADDED + down[:, None] * PADDED + across[None, :]
    tl.store(at, total)


@cache
def _upper_corners(padded: int, height: int, width: int, device: torch.device) -> DeviceArray:
    """The first row and column of each tile that meets the upper triangle, shape (tiles, 2)."""
    corners = [
        (top, left)
        for left in range(0, padded, width)
        for top in range(0, padded, height)
        if top < left + width
    ]
    return torch.tensor(corners, dtype=torch.int32, device=device)


def _stored_dtype(device: torch.device) -> torch.dtype:
    """Of rounded rows; the interpreter of kernels on a CPU multiplies no bfloat16."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # interpreted
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _has_descriptors(device: torch.device) -> bool:
    """Whether the chip copies tiles by itself: Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
