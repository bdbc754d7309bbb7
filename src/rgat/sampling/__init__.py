"""Mini-batches of nodes: neighbour sampling for training, and exact inference in blocks of bounded memory."""

from rgat.sampling.features import gather_features
from rgat.sampling.inference import exact_logits
from rgat.sampling.loader import NeighborLoader
from rgat.sampling.sampler import Batch, NeighborSampler

__all__ = ["Batch", "NeighborLoader", "NeighborSampler", "exact_logits", "gather_features"]
