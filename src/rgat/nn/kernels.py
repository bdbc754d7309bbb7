r"""Where a layer's kernels come from: full, decomposed into bases (equation 12), or only the rows that edges use.

Every scheme turns inputs into values :math:`g = h W` in two ways: ``project`` for dense features, ``look_up`` for
one-hot ones, where a value is a row of :math:`W`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rgat import ops
from rgat.graph import Rows


def glorot_uniform_(parameter: Tensor, fan: int) -> None:
    """Draw from Glorot's uniform distribution for the given fan-in plus fan-out."""
    bound = math.sqrt(6 / max(fan, 1))
    nn.init.uniform_(parameter, -bound, bound)


class Kernel(nn.Module):
    """Kernels ``[R, H, F, D]``, one per relation and head, and how values are made with them."""

    def __init__(self, num_relations: int, heads: int, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.num_relations = num_relations
        self.heads = heads
        self.in_channels = in_channels
        self.out_channels = out_channels

    def compose(self) -> Tensor:
        """The kernels ``[R, H, F, D]``, differentiable."""
        raise NotImplementedError

    def look_up(self, index: Tensor | None, rows: Rows) -> Tensor:
        """Values ``[U, H, D]`` of one-hot inputs: ``index[u]`` is the position of the one in row ``u``'s input."""
        raise NotImplementedError

    def project(self, x: Tensor, rows: Rows) -> Tensor:
        """Values ``[U, H, D]`` of the features ``[N, F]``."""
        weight = ops.fold_heads(self.compose()).to(x.dtype)
        return ops.project(x.unsqueeze(1), weight, rows).view(-1, self.heads, self.out_channels)


class FullKernel(Kernel):
    """A free matrix per relation and head."""

    def __init__(self, num_relations: int, heads: int, in_channels: int, out_channels: int) -> None:
        super().__init__(num_relations, heads, in_channels, out_channels)
        self.weight = nn.Parameter(torch.empty(num_relations, heads, in_channels, out_channels))

    def reset(self, fan: int) -> None:
        glorot_uniform_(self.weight, fan)

    def compose(self) -> Tensor:
        return self.weight

    def look_up(self, index: Tensor | None, rows: Rows) -> Tensor:
        table = self.weight.transpose(1, 2).flatten(0, 1)  # [R * F, H, D]
        return table.index_select(0, rows.relation.long() * self.in_channels + (rows.node if index is None else index))


class BasisKernel(Kernel):
    """``W[r, k] = sum_b c[r, k, b] V[b]``, with bases ``V`` shared by relations and heads."""

    def __init__(self, num_relations: int, heads: int, in_channels: int, out_channels: int, num_bases: int) -> None:
        super().__init__(num_relations, heads, in_channels, out_channels)
        self.bases = nn.Parameter(torch.empty(num_bases, in_channels, out_channels))
        self.coefficients = nn.Parameter(torch.empty(num_relations, heads, num_bases))

    def reset(self, fan: int) -> None:
        glorot_uniform_(self.bases, fan)
        # Variance 1 / B, so that the composed kernels have Glorot's variance.
        bound = math.sqrt(3 / self.bases.shape[0])
        nn.init.uniform_(self.coefficients, -bound, bound)

    def compose(self) -> Tensor:
        return torch.einsum("rkb,bfd->rkfd", self.coefficients, self.bases)

    def look_up(self, index: Tensor | None, rows: Rows) -> Tensor:
        table = self.bases.transpose(0, 1).unsqueeze(1)  # [F, 1, B, D]; composed kernels would be one per relation too
        return ops.spread(table, self.coefficients, rows, index)


class RowKernel(Kernel):
    """Only some rows of the kernels of a featureless layer: those an edge uses. All others are zero and stay so."""

    def __init__(self, num_relations: int, heads: int, in_channels: int, out_channels: int, num_rows: int) -> None:
        super().__init__(num_relations, heads, in_channels, out_channels)
        self.weight = nn.Parameter(torch.empty(num_rows, heads, out_channels))

    def reset(self, fan: int) -> None:
        glorot_uniform_(self.weight, fan)

    def compose_rows(self, keys: Tensor) -> Tensor:
        """The kernels ``[R, H, F, D]`` with the held rows, ``keys = r * F + node``, in their places."""
        dense = self.weight.new_zeros(self.num_relations * self.in_channels, self.heads, self.out_channels)
        dense = dense.index_copy(0, keys, self.weight)
        return dense.view(self.num_relations, self.in_channels, self.heads, self.out_channels).transpose(1, 2)
