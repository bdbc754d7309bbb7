"""Layers: parameters and equations.

Examples:
    >>> import torch
    >>> from rgat import nn
    >>> conv = nn.RGATConv(8, 16, num_relations=2)
    >>> conv(torch.randn(3, 8), edge_index=torch.tensor([[0, 1], [1, 2]]), edge_type=torch.tensor([0, 1])).shape
    torch.Size([3, 16])
"""

from rgat.nn.gather import GraphGather
from rgat.nn.ggnn import GGNNConv
from rgat.nn.inputs import FeatureRows
from rgat.nn.pyg import as_pyg
from rgat.nn.rgat import RGATConv
from rgat.nn.rgcn import RGCNConv

__all__ = ["FeatureRows", "GGNNConv", "GraphGather", "RGATConv", "RGCNConv", "as_pyg"]
