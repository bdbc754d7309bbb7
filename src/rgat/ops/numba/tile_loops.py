"""Multiply matrices in compiled loops: small ones in registers, large ones by the BLAS that PyTorch ships.

A product with the kernel of a relation has many rows or terms, but a small right matrix, which stays in the cache. Then
BLAS spends a quarter of its time on copies of both matrices. The loops here read them where they are.
"""

from __future__ import annotations

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils

from rgat.ops.numba.blas import gemm
from rgat.ops.numba.compile import compiled

_SMALL = 1 << 16  # numbers in the smallest matrix, up to which loops are faster than BLAS
_NEAR = 24 << 10  # bytes of the right matrix that stay in the first-level cache, beside those of the left
_ROWS = 4  # of a tile
# Vectors of 16 columns in a tile, so that its sums fit the registers; the compiler splits vectors for shorter ones.
_VECTORS = 4 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 1
# Rows of a tile of few columns: a core adds to eight sums in the time that one addition takes.
_MANY_ROWS = 2 * _ROWS if _VECTORS > 1 else _ROWS


def _tile(rows, vectors, width):
    """Return a function that computes a tile of ``rows`` times ``vectors * width`` numbers of a product in registers.

    Sizes between rows and terms are in bytes. With ``add`` the product is added to ``out``.
    """

    @numba.extending.intrinsic
    def tile(typing_context, terms, left, left_row, left_step, right, right_row, out, out_row, add, like):
        def generate(context, builder, signature, arguments):
            terms, left, left_row, left_step, right, right_row, out, out_row, add, _ = arguments
            number, whole, lane = context.get_value_type(like), ir.IntType(64), ir.IntType(32)
            kind, size = ir.VectorType(number, width), context.get_abi_sizeof(number)
            zero, undefined = ir.Constant(kind, [0.0] * width), ir.Constant(kind, ir.Undefined)
            places = [(r, v) for r in range(rows) for v in range(vectors)]

            def pointer(base, steps, step, offset, to):
                place = builder.add(builder.add(base, builder.mul(steps, step)), whole(offset))
                return builder.inttoptr(place, to.as_pointer())

            to = [pointer(out, whole(r), out_row, v * width * size, kind) for r, v in places]
            sums = [cgutils.alloca_once(builder, kind) for _ in places]
            for place in sums:
                builder.store(zero, place)
            with cgutils.for_range(builder, terms) as loop:
                others = [
                    builder.load(pointer(right, loop.index, right_row, v * width * size, kind), align=size)
                    for v in range(vectors)
                ]
                row = builder.add(left, builder.mul(loop.index, left_step))
                factors = []
                for r in range(rows):
                    factor = builder.load(pointer(row, whole(r), left_row, 0, number))
                    first = builder.insert_element(undefined, factor, lane(0))
                    mask = ir.Constant(ir.VectorType(lane, width), [0] * width)
                    factors.append(builder.shuffle_vector(first, undefined, mask))
                for (r, v), place in zip(places, sums, strict=True):
                    product = builder.fmul(factors[r], others[v], flags=("contract",))
                    builder.store(builder.fadd(builder.load(place), product, flags=("contract",)), place)
            with builder.if_then(builder.trunc(add, ir.IntType(1))):
                for place, destination in zip(sums, to, strict=True):
                    before = builder.load(destination, align=size)
                    builder.store(builder.fadd(before, builder.load(place)), place)
            for place, destination in zip(sums, to, strict=True):
                builder.store(builder.load(place), destination, align=size)
            return context.get_dummy_value()

        kinds = numba.types
        size, address = kinds.int64, kinds.uint64
        matrices = (address, size, size, address, size, address, size)
        return kinds.void(size, *matrices, kinds.boolean, like), generate

    return tile


_SHAPES = ((_VECTORS, 16), (1, 16), (1, 8), (1, 4), (1, 1))  # vectors, columns of each
_wide_tile, _tile_16, _tile_8, _tile_4, _tile_1 = (_tile(_ROWS, *shape) for shape in _SHAPES)
_wide_row, _row_16, _row_8, _row_4, _row_1 = (_tile(1, *shape) for shape in _SHAPES)
_tall_32, _tall_16, _tall_8, _tall_4, _tall_1 = (_tile(_MANY_ROWS, *shape) for shape in ((2, 16), *_SHAPES[1:]))


@numba.extending.intrinsic
def _size_of(typing_context, number):
    """Return the size of a number in bytes."""

    def generate(context, builder, signature, arguments):
        return ir.IntType(64)(context.get_abi_sizeof(context.get_value_type(number)))

    return numba.types.int64(number), generate


@compiled
def _multiply_band(columns, terms, left, left_row, left_step, right, right_row, out, out_row, add, zero):
    """Compute ``_ROWS`` rows of a product."""
    item, done = np.uint64(_size_of(zero)), np.uint64(0)
    columns, wide = np.uint64(columns), np.uint64(16 * _VECTORS)
    while done + wide <= columns:
        at = done * item
        _wide_tile(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += wide
    while done + np.uint64(16) <= columns:
        at = done * item
        _tile_16(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(16)
    if done + np.uint64(8) <= columns:
        at = done * item
        _tile_8(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(8)
    if done + np.uint64(4) <= columns:
        at = done * item
        _tile_4(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(4)
    while done < columns:
        at = done * item
        _tile_1(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(1)


@compiled
def _multiply_tall_band(columns, terms, left, left_row, left_step, right, right_row, out, out_row, add, zero):
    """Compute ``_MANY_ROWS`` rows of a product with few columns."""
    item, done = np.uint64(_size_of(zero)), np.uint64(0)
    columns = np.uint64(columns)
    while done + np.uint64(32) <= columns:
        at = done * item
        _tall_32(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(32)
    if done + np.uint64(16) <= columns:
        at = done * item
        _tall_16(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(16)
    if done + np.uint64(8) <= columns:
        at = done * item
        _tall_8(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(8)
    if done + np.uint64(4) <= columns:
        at = done * item
        _tall_4(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(4)
    while done < columns:
        at = done * item
        _tall_1(terms, left, left_row, left_step, right + at, right_row, out + at, out_row, add, zero)
        done += np.uint64(1)


@compiled
def _multiply_row(columns, terms, left, left_step, right, right_row, out, add, zero):
    """Compute one row of a product."""
    item, done = np.uint64(_size_of(zero)), np.uint64(0)
    columns, wide = np.uint64(columns), np.uint64(16 * _VECTORS)
    while done + wide <= columns:
        at = done * item
        _wide_row(terms, left, 0, left_step, right + at, right_row, out + at, 0, add, zero)
        done += wide
    while done + np.uint64(16) <= columns:
        at = done * item
        _row_16(terms, left, 0, left_step, right + at, right_row, out + at, 0, add, zero)
        done += np.uint64(16)
    if done + np.uint64(8) <= columns:
        at = done * item
        _row_8(terms, left, 0, left_step, right + at, right_row, out + at, 0, add, zero)
        done += np.uint64(8)
    if done + np.uint64(4) <= columns:
        at = done * item
        _row_4(terms, left, 0, left_step, right + at, right_row, out + at, 0, add, zero)
        done += np.uint64(4)
    while done < columns:
        at = done * item
        _row_1(terms, left, 0, left_step, right + at, right_row, out + at, 0, add, zero)
        done += np.uint64(1)


@compiled
def _multiply_near(rows, columns, terms, left, row, step, right, right_row, out, out_row, add, zero):
    """Compute a product, or add it to ``out``; the right matrix stays in the first-level cache."""
    full, tall = rows // _ROWS * _ROWS, rows // _MANY_ROWS * _MANY_ROWS if _MANY_ROWS > _ROWS else 0
    wide = columns // (16 * _VECTORS) * (16 * _VECTORS)
    for a in range(0 if wide else tall, full, _ROWS):
        _multiply_band(
            wide if a < tall else columns, terms, left + np.uint64(a * row), row, step, right, right_row,
            out + np.uint64(a * out_row), out_row, add, zero,
        )  # fmt: skip
    at = np.uint64(wide * _size_of(zero))
    for a in range(0, tall if wide < columns else 0, _MANY_ROWS):
        _multiply_tall_band(
            columns - wide, terms, left + np.uint64(a * row), row, step, right + at, right_row,
            out + np.uint64(a * out_row) + at, out_row, add, zero,
        )  # fmt: skip
    for a in range(full, rows):
        _multiply_row(
            columns, terms, left + np.uint64(a * row), step, right, right_row, out + np.uint64(a * out_row), add, zero
        )


@compiled
def multiply(routine, size, left, left_row, left_flipped, right, right_row, beta, out, out_row):
    """Compute ``out = left @ right + beta * out``, with ``beta`` zero or one.

    ``size`` is the numbers of rows, columns and terms; each matrix is given by its address and row size.
    """
    rows, columns, terms = size
    if min(rows * columns, rows * terms, columns * terms) > _SMALL:
        gemm(routine, False, left_flipped, columns, rows, terms, right, right_row, left, left_row, beta, out, out_row)
        return
    item = _size_of(beta)
    row, step = (item, left_row * item) if left_flipped else (left_row * item, item)
    parts = max(-(-terms * columns * item // _NEAR), 1)
    together = max(-(-terms // parts), 1)
    for first in range(0, max(terms, 1), together):
        _multiply_near(
            rows, columns, min(together, terms - first), left + np.uint64(first * step), row, step,
            right + np.uint64(first * right_row * item), right_row * item, out, out_row * item,
            beta != 0 or first > 0, beta,
        )  # fmt: skip


@compiled
def multiply_by(routine, rows, left, left_row, right, beta, out, out_row):
    """Do the same with an array as the right matrix, which lives until the end of the call."""
    terms, columns = right.shape
    size = (rows, columns, terms)
    multiply(routine, size, left, left_row, False, np.uint64(right.ctypes.data), columns, beta, out, out_row)


@compiled
def transposed(kernel, begin, end):
    """Return the columns ``begin:end`` of a kernel as rows."""
    inputs = kernel.shape[0]
    rows = np.empty((end - begin, inputs), kernel.dtype)
    for m in range(end - begin):
        for f in range(inputs):
            rows[m, f] = kernel[f, begin + m]
    return rows
