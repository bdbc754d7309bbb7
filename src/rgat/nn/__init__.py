"""Layers: parameters and equations."""

from rgat.nn.gather import GraphGather
from rgat.nn.ggnn import GGNNConv
from rgat.nn.rgat import RGATConv
from rgat.nn.rgcn import RGCNConv

__all__ = ["GGNNConv", "GraphGather", "RGATConv", "RGCNConv"]
