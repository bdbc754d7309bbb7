"""Add and multiply the numbers of the heads of a row, where each head has 8 or 16, as one vector per head.

A loop over so few numbers takes longer to start than to run, and the compiler does not know their count.
"""

from __future__ import annotations

from contextlib import contextmanager

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils

from rgat.ops.numba.compile import inline

_WHOLE = ir.IntType(64)


@numba.extending.intrinsic
def _row_address(typing_context, array, row):
    """Return the address of a row; ``array.ctypes`` would count a reference at each row."""

    def generate(context, builder, signature, arguments):
        value = context.make_array(array)(context, builder, arguments[0])
        first, size = builder.ptrtoint(value.data, _WHOLE), builder.extract_value(value.strides, 0)
        return builder.add(first, builder.mul(arguments[1], size))

    return numba.types.uint64(array, numba.types.uint64), generate


@contextmanager
def _for_heads(builder, heads):
    """Build a loop over heads that is not unrolled: setting up the parts takes longer than few heads."""
    before, body = builder.basic_block, builder.append_basic_block("heads")
    end = builder.append_basic_block("heads.end")
    builder.cbranch(builder.icmp_unsigned(">", heads, _WHOLE(0)), body, end)
    builder.position_at_end(body)
    head = builder.phi(_WHOLE)
    head.add_incoming(_WHOLE(0), before)
    yield head
    following = builder.add(head, _WHOLE(1))
    head.add_incoming(following, builder.basic_block)
    branch = builder.cbranch(builder.icmp_unsigned("<", following, heads), body, end)
    module = builder.module
    label = module.add_metadata([ir.MetaDataString(module, f"loop {len(module.metadata)}")])
    label.operands = (label, module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")]))
    branch.set_metadata("llvm.loop", label)
    builder.position_at_end(end)


def _pointer(builder, address, number, kind):
    """Return a pointer to the vector, or number, at ``address + number`` of these."""
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [number])


def _dots(width):
    """Return a function that fills ``out[h]`` with the dot products of ``left[h]`` and ``right[h]``, by addresses."""

    @numba.extending.intrinsic
    def dots(typing_context, heads, left, right, out, like):
        def generate(context, builder, signature, arguments):
            heads, left, right, out, _ = arguments
            number = context.get_value_type(like)
            kind, size = ir.VectorType(number, width), context.get_abi_sizeof(number)
            name = f"llvm.vector.reduce.fadd.v{width}f{8 * size}"
            add_up = cgutils.get_or_insert_function(builder.module, ir.FunctionType(number, [number, kind]), name)
            with _for_heads(builder, heads) as h:
                one, two = (builder.load(_pointer(builder, a, h, kind), align=size) for a in (left, right))
                total = builder.call(add_up, [number(0.0), builder.fmul(one, two)], fastmath=("reassoc",))
                builder.store(total, _pointer(builder, out, h, number))
            return context.get_dummy_value()

        kinds = [numba.types.uint64] * 4
        return numba.types.void(*kinds, like), generate

    return dots


def _scaled(width, is_added):
    """Return a function that writes ``weights[h] * numbers[h]`` to ``out[h]``, or adds it, by addresses."""

    @numba.extending.intrinsic
    def scaled(typing_context, heads, weights, numbers, out, like):
        def generate(context, builder, signature, arguments):
            heads, weights, numbers, out, _ = arguments
            number, lane = context.get_value_type(like), ir.IntType(32)
            kind, size = ir.VectorType(number, width), context.get_abi_sizeof(number)
            with _for_heads(builder, heads) as h:
                weight = builder.load(_pointer(builder, weights, h, number))
                first = builder.insert_element(ir.Constant(kind, ir.Undefined), weight, lane(0))
                factors = builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(lane, width), [0] * width))
                source, to = (_pointer(builder, a, h, kind) for a in (numbers, out))
                result = builder.fmul(factors, builder.load(source, align=size), flags=("contract",))
                if is_added:
                    result = builder.fadd(builder.load(to, align=size), result, flags=("contract",))
                builder.store(result, to, align=size)
            return context.get_dummy_value()

        kinds = [numba.types.uint64] * 4
        return numba.types.void(*kinds, like), generate

    return scaled


_dots_8, _dots_16 = _dots(8), _dots(16)
_write_8, _write_16 = _scaled(8, False), _scaled(16, False)
_add_8, _add_16 = _scaled(8, True), _scaled(16, True)


@inline
def row_address(array, row):
    """Return the address of a row of an array; the numbers within a row must follow one another."""
    return _row_address(array, np.uint64(row))


@inline
def fits_lanes(channels):
    """Tell whether the numbers of a head are one vector."""
    return channels == 8 or channels == 16


@inline
def dot_lanes(heads, channels, left, right, out, zero):
    """Fill the numbers at ``out`` with the dot products of the heads of two rows, all given by their addresses."""
    if channels == 8:
        _dots_8(np.uint64(heads), left, right, out, zero)
    else:
        _dots_16(np.uint64(heads), left, right, out, zero)


@inline
def write_lanes(heads, channels, weights, numbers, out, zero):
    """Write the heads of a row times their weights to another row, all given by their addresses."""
    if channels == 8:
        _write_8(np.uint64(heads), weights, numbers, out, zero)
    else:
        _write_16(np.uint64(heads), weights, numbers, out, zero)


@inline
def add_lanes(heads, channels, weights, numbers, out, zero):
    """Add the heads of a row times their weights to another row, all given by their addresses."""
    if channels == 8:
        _add_8(np.uint64(heads), weights, numbers, out, zero)
    else:
        _add_16(np.uint64(heads), weights, numbers, out, zero)
