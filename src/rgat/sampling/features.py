"""Gather the features of a batch's nodes from wherever they are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from rgat.checks import check_ids


def gather_features(x: Tensor, nodes: Tensor, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """Return rows of ``x`` on a device, in the dtype of the layers.

    Args:
        x: ``[N, F]`` floating point, or integers that stand for one-hot rows, ``[N]``: on the device, in host memory
            (pinned or not), or memory-mapped from a file.
        nodes: ids ``[n]``, on any device; they are checked unless ``x`` is on a GPU.
        device: of the result.
        dtype: of the result, unless integers; half-precision features become wide only after they were gathered and
            moved.

    Examples:
        >>> import torch
        >>> from rgat.sampling import gather_features
        >>> x = torch.randn(100, 8, dtype=torch.float16)
        >>> gather_features(x, torch.tensor([5, 7]), "cpu", torch.float32).dtype
        torch.float32
    """
    dtype = dtype if x.is_floating_point() else x.dtype
    device, nodes = torch.device(device), nodes.to(x.device)
    if x.device.type == "cpu":  # to look at ids on a GPU would wait for it
        check_ids("nodes", nodes, x.shape[0], "len(x)")
    if x.device.type != "cpu" or device.type != "cuda" or x.layout != torch.strided:
        return x.index_select(0, nodes).to(device, dtype)
    rows = torch.empty(len(nodes), *x.shape[1:], dtype=x.dtype, pin_memory=True)
    torch.index_select(x, 0, nodes, out=rows)
    return rows.to(device, non_blocking=True).to(dtype)
