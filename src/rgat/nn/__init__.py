"""Layers: parameters and equations."""

from rgat.nn.gather import GraphGather
from rgat.nn.rgat import RGATConv
from rgat.nn.rgcn import RGCNConv

__all__ = ["GraphGather", "RGATConv", "RGCNConv"]
