"""Learning from relational graphs: relational graph attention networks and relational graph convolutions."""

from rgat import nn, ops
from rgat.graph import RelationalGraph
from rgat.version import __version__

__all__ = ["RelationalGraph", "__version__", "nn", "ops"]
