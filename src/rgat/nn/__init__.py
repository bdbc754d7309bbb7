"""Layers: parameters and equations."""

from rgat.nn.gather import GraphGather
from rgat.nn.ggnn import GGNNConv
from rgat.nn.relational import FeatureRows
from rgat.nn.rgat import RGATConv
from rgat.nn.rgcn import RGCNConv

__all__ = ["FeatureRows", "GGNNConv", "GraphGather", "RGATConv", "RGCNConv"]
