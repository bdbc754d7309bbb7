"""Data sets: bytes to graphs.

Examples:
    >>> from rgat import data
    >>> data.load("institute").classes
    ('materials', 'vision', 'genetics', 'climate')
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rgat.checks import check_word
from rgat.data.benchmarks.registry import BENCHMARKS, fetch, load_benchmark
from rgat.data.dataset import MISSING, GraphData, GraphStore, NodeData
from rgat.data.molecules.table import from_smiles
from rgat.data.pyg_sets import from_pyg_data
from rgat.data.rdf.knowledge_graph import from_rdf, prune
from rgat.data.rdf.sparql import fetch_neighbourhood, from_sparql
from rgat.data.statistics import statistics
from rgat.data.store.conversion import convert
from rgat.data.store.stored_graph import StoredGraph, open_store
from rgat.data.store.writer import StoreWriter
from rgat.data.synthetic.institute import load_institute
from rgat.data.synthetic.molecules import load_molecules
from rgat.data.synthetic.planted import KINDS, planted
from rgat.data.targets import Target

REGISTRY: dict[str, Callable[..., NodeData | GraphData]] = {
    **{name: partial(load_benchmark, name) for name in BENCHMARKS},
    "institute": load_institute,
    "molecules": load_molecules,
    **{f"planted-{kind}": partial(planted, kind) for kind in KINDS},
}
"""The loader of each data set by name, benchmarks and built-in sets.

Examples:
    >>> from rgat.data import REGISTRY
    >>> REGISTRY["institute"]().name
    'institute'
"""
BUILT_IN = tuple(name for name in REGISTRY if name not in BENCHMARKS)
"""The names of the data sets that come with the package.

Examples:
    >>> from rgat.data import BUILT_IN
    >>> BUILT_IN[:2]
    ('institute', 'molecules')
"""


def load(name: str, **options: Any) -> NodeData | GraphData:
    """Return a data set by name; missing files of a benchmark are downloaded.

    ``options`` go to the loader of the data set: ``split`` for Tox21, ``seed`` for the built-in sets.

    Examples:
        >>> from rgat.data import load
        >>> load("planted-needle", seed=1).graph
        RelationalGraph(num_nodes=10,000, num_edges=9,000, num_relations=2)
    """
    check_word("name", name, tuple(REGISTRY))
    return REGISTRY[name](**options)


__all__ = [
    "BENCHMARKS",
    "BUILT_IN",
    "MISSING",
    "REGISTRY",
    "GraphData",
    "GraphStore",
    "NodeData",
    "StoreWriter",
    "StoredGraph",
    "Target",
    "convert",
    "fetch",
    "fetch_neighbourhood",
    "from_pyg_data",
    "from_rdf",
    "from_smiles",
    "from_sparql",
    "load",
    "open_store",
    "prune",
    "statistics",
]
