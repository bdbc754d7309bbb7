"""Call a compiled loop on the threads of OpenMP without Python in between.

A thread that waits for the global interpreter lock sleeps, and to wake it takes longer than the shortest loops.
"""

from __future__ import annotations

import hashlib

import numba
from llvmlite import ir
from numba.core import cgutils

from rgat.ops.numba.compile import compiled

_WHOLE, _FLAG, _BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
_NEXT, _FAILED, _COUNT, _BOUNDS, _LOOP, _SET_THREADS, _FIRST = range(7)  # fields of a region's state; then arguments


def kind_of(types):
    """Return a number, at least zero, for the types of a loop's arguments."""
    return int.from_bytes(hashlib.sha256(str(tuple(types)).encode()).digest()[:7], "little")


@numba.extending.intrinsic
def _kind(typing_context, arguments):
    """Return the number of the types of some arguments."""

    def generate(context, builder, signature, values):
        return _WHOLE(kind_of(arguments.types))

    return numba.types.int64(arguments), generate


def _set_threads(builder, setter, number):
    """Set how many threads products of this thread use; return the previous number, or zero without a setter."""
    before = cgutils.alloca_once_value(builder, _FLAG(0))
    with builder.if_then(builder.icmp_unsigned("!=", setter, _WHOLE(0))):
        kind = ir.FunctionType(_FLAG, [_FLAG])
        builder.store(builder.call(builder.inttoptr(setter, kind.as_pointer()), [number]), before)
    return builder.load(before)


def _thread_function(context, module, layout, kinds):
    """Return what each thread does: take the next range until there is none, and call the loop."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_BYTES]), module.get_unique_name("region"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    state = builder.bitcast(function.args[0], layout.as_pointer())

    def field(number):
        return cgutils.gep_inbounds(builder, state, 0, number)

    count, bounds, loop, setter = (builder.load(field(n)) for n in (_COUNT, _BOUNDS, _LOOP, _SET_THREADS))
    arguments = [builder.load(field(_FIRST + n)) for n in range(len(kinds) - 2)]
    callee = builder.inttoptr(loop, context.call_conv.get_function_type(numba.types.none, kinds).as_pointer())
    before = _set_threads(builder, setter, _FLAG(1))
    take, call, end = (function.append_basic_block(name) for name in ("take", "call", "end"))
    builder.branch(take)
    builder.position_at_end(take)
    number = builder.atomic_rmw("add", field(_NEXT), _WHOLE(1), "monotonic")
    builder.cbranch(builder.icmp_signed("<", number, count), call, end)
    builder.position_at_end(call)
    lo, hi = (builder.load(builder.gep(bounds, [builder.add(number, _WHOLE(n))])) for n in (0, 1))
    status, _ = context.call_conv.call_function(builder, callee, numba.types.none, kinds, [lo, hi, *arguments])
    with builder.if_then(status.is_error):
        builder.store(number, field(_FAILED))
    builder.branch(take)
    builder.position_at_end(end)
    _set_threads(builder, setter, before)
    builder.ret_void()
    return function


@numba.extending.intrinsic
def _run(typing_context, parallel, threads, set_threads, loop, bounds, arguments):
    """Call a loop, by its address, for each range between neighbouring bounds; return the number of one that failed."""

    def generate(context, builder, signature, values):
        parallel, threads, set_threads, loop, bounds_value, tuple_value = values
        kinds = (numba.types.int64, numba.types.int64, *arguments.types)
        unpacked = cgutils.unpack_tuple(builder, tuple_value, len(arguments.types))
        array = context.make_array(bounds)(context, builder, bounds_value)
        count = builder.sub(builder.extract_value(array.shape, 0), _WHOLE(1))
        fields = [_WHOLE(0), _WHOLE(-1), count, array.data, loop, set_threads, *unpacked]
        layout = ir.LiteralStructType([field.type for field in fields])
        state = cgutils.alloca_once(builder, layout)
        for number, field in enumerate(fields):
            builder.store(field, cgutils.gep_inbounds(builder, state, 0, number))
        function = _thread_function(context, builder.module, layout, kinds)
        kind = ir.FunctionType(ir.VoidType(), [function.type, _BYTES, _FLAG, _FLAG])
        start = builder.inttoptr(parallel, kind.as_pointer())
        builder.call(start, [function, builder.bitcast(state, _BYTES), builder.trunc(threads, _FLAG), _FLAG(0)])
        return builder.load(cgutils.gep_inbounds(builder, state, 0, _FAILED))

    whole, address = numba.types.int64, numba.types.uint64
    return whole(address, whole, address, address, bounds, arguments), generate


@compiled
def run_region(parallel, threads, set_threads, kind, loop, bounds, *arguments):
    """Call a loop, by its address, for each range between neighbouring bounds, on some threads.

    Return -1; or -2 less the number of a range that failed; or, if ``kind`` is not that of the arguments, only theirs.
    """
    actual = _kind(arguments)
    if kind != actual:
        return actual
    failed = _run(parallel, threads, set_threads, loop, bounds, arguments)
    return failed if failed < 0 else -2 - failed
