"""Mini-batches of nodes: neighbour sampling for training, and exact inference in blocks of bounded memory.

Examples:
    >>> import rgat
    >>> data = rgat.data.load("institute")
    >>> loader = rgat.sampling.NeighborLoader(data.graph, data.train, fanouts=[10, 5], batch_size=32)
    >>> batch = next(iter(loader))
    >>> batch.num_seeds, len(batch.graphs)
    (32, 2)
"""

from rgat.sampling.features import gather_features
from rgat.sampling.inference import exact_logits
from rgat.sampling.loader import NeighborLoader
from rgat.sampling.sampler import Batch, NeighborSampler

__all__ = ["Batch", "NeighborLoader", "NeighborSampler", "exact_logits", "gather_features"]
