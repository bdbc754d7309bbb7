"""Call the BLAS that PyTorch ships from compiled loops, by the address of its matrix product.

A product of a few hundred rows takes less time than a call from Python, and each such call takes the global interpreter
lock. A compiled loop calls the same routine without either, so each thread computes its own products.
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
            return ctypes.CDLL(str(path))  # also finds functions of libraries that it is linked with
        except OSError:
            continue
    return None


@functools.cache
def find_function(names: tuple[str, ...]) -> Any:
    """Return the first of these functions that a library of PyTorch has; None if there is none."""
    for name in names:
        function = getattr(_library(), name, None)
        if function is not None:
            return function
    return None


@functools.cache
def address(dtype: torch.dtype) -> Any:
    """Return the address of the matrix product (GEMM) for a dtype; 0 if there is none."""
    function = find_function(_NAMES[dtype])
    return np.uint64(0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0)


def use_threads(count: int) -> int:
    """Set how many threads products of this thread use, 0: the global setting; return the previous number."""
    setter: Callable[[int], int] | None = find_function(("MKL_Set_Num_Threads_Local",))
    return 0 if setter is None else setter(count)


@numba.extending.intrinsic
def gemm(typing_context, routine, trans_a, trans_b, m, n, k, a, lda, b, ldb, beta, c, ldc):
    """Call GEMM as Fortran does: column-major, every argument by its address."""

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
    flag, size, pointer = kinds.boolean, kinds.int64, kinds.uint64
    signature = kinds.void(pointer, flag, flag, size, size, size, pointer, size, pointer, size, beta, pointer, size)
    return signature, generate


@numba.njit(inline="always")
def address_of(array, offset):
    """Return the address of the element at ``offset`` in the flattened array."""
    return np.uint64(array.ctypes.data) + np.uint64(offset * array.itemsize)
