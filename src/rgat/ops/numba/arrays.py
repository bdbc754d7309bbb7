"""Tensors as the arrays that loops read."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.ops import cache
from rgat.ops.numba import blas

Array = NDArray[Any]

NO_INDEX = np.empty(0, np.int32)
NO_MARKS = np.empty(0, np.bool_)
NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}


def as_array(tensor: Tensor) -> Array:
    """Return the tensor as an array on the same memory."""
    array: Array = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array


def as_matrix(tensor: Tensor) -> Array:
    """Return the tensor as a matrix, with all axes behind the first as one."""
    array = as_array(tensor)
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))


def indices(tensor: Tensor) -> Array:
    """Return the indices of a graph, which every call reads, as an array that is made once."""
    values = cache.derived(tensor)
    array: Array | None = values.get("array")
    if array is None:
        # The array of a tensor keeps it alive, that of its alias does not.
        array = values["array"] = tensor.detach().numpy()
    return array


@functools.cache
def nothing(dtype: torch.dtype, *shape: int) -> Array:
    """Return an array without entries, for an input that a call does not have."""
    return np.empty(shape, NUMBERS[dtype])


def optional_indices(node: Tensor | None) -> Array:
    """Return the indices as an array; without entries for None."""
    return NO_INDEX if node is None else indices(node)


def gemm_address(like: Tensor) -> Any:
    """Return the address of the matrix product of the BLAS for the dtype."""
    return np.uint64(blas.address(like.dtype))
