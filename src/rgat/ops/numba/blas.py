"""Matrix products inside compiled loops: the BLAS that PyTorch brings, called by its address.

A product of a few hundred rows is too short to go through Python, and on several threads Python hands its lock around
once per call. From a compiled loop the same routine costs nothing but itself, and each thread has its own products.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils

_NAMES = {torch.float32: ("sgemm_", "SGEMM", "sgemm"), torch.float64: ("dgemm_", "DGEMM", "dgemm")}


@functools.cache
def _library() -> ctypes.CDLL | None:
    for path in sorted((Path(torch.__file__).parent / "lib").glob("*torch_cpu.*")):
        try:
            return ctypes.CDLL(str(path))  # finds also what this library is linked with
        except OSError:
            continue
    return None


def find_function(names: tuple[str, ...]) -> Any:
    """A function of the libraries that PyTorch has loaded, by the first name that is there; None without any."""
    for name in names:
        function = getattr(_library(), name, None)
        if function is not None:
            return function
    return None


@functools.cache
def address(dtype: torch.dtype) -> int:
    """Of the general matrix product for numbers of this type; 0 if there is none."""
    function = find_function(_NAMES[dtype])
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def _thread_setter() -> Callable[[int], int] | None:
    setter: Callable[[int], int] | None = find_function(("MKL_Set_Num_Threads_Local",))
    return setter


def use_threads(count: int) -> int:
    """Let products of this thread use so many threads, 0: as many as elsewhere; return what was set before."""
    setter = _thread_setter()
    return 0 if setter is None else setter(count)


@numba.extending.intrinsic
def _gemm(typing_context, routine, trans_a, trans_b, m, n, k, a, lda, b, ldb, beta, c, ldc):
    """Columns first, as Fortran has it; every argument by its address."""

    def generate(context, builder, signature, arguments):
        number = context.get_value_type(beta)
        byte, whole = ir.IntType(8), ir.IntType(32)
        routine, trans_a, trans_b, m, n, k, a, lda, b, ldb, beta_value, c, ldc = arguments

        def letter(flag):  # T or N
            code = builder.select(builder.trunc(flag, ir.IntType(1)), byte(84), byte(78))
            return cgutils.alloca_once_value(builder, code)

        def integer(value):
            return cgutils.alloca_once_value(builder, builder.trunc(value, whole))

        def matrix(value):
            return builder.inttoptr(value, number.as_pointer())

        pointers = [
            letter(trans_a), letter(trans_b), integer(m), integer(n), integer(k),
            cgutils.alloca_once_value(builder, number(1)), matrix(a), integer(lda), matrix(b), integer(ldb),
            cgutils.alloca_once_value(builder, beta_value), matrix(c), integer(ldc),
        ]  # fmt: skip
        kind = ir.FunctionType(ir.VoidType(), [pointer.type for pointer in pointers])
        builder.call(builder.inttoptr(routine, kind.as_pointer()), pointers)
        return context.get_dummy_value()

    kinds = numba.types
    flag, size, place = kinds.boolean, kinds.int64, kinds.uint64
    return kinds.void(place, flag, flag, size, size, size, place, size, place, size, beta, place, size), generate


@numba.njit(inline="always")
def place(array, offset):
    """The address of an element, counted from the first."""
    return np.uint64(array.ctypes.data) + np.uint64(offset * array.itemsize)


@numba.njit(inline="always")
def multiply(routine, size, left, left_row, left_flipped, right, right_row, right_flipped, beta, out, out_row):
    """``out = left @ right + beta * out``; ``size``: rows, columns, terms; each matrix by address and row length."""
    rows, columns, terms = size
    _gemm(
        routine, right_flipped, left_flipped, columns, rows, terms,
        right, right_row, left, left_row, beta, out, out_row,
    )  # fmt: skip
