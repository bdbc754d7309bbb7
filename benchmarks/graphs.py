"""Load the benchmark graphs: real data sets where available, and synthetic graphs of the sizes of known data sets."""

import torch

from rgat import RelationalGraph

# Nodes, triples, relations; inverse edges and a self-loop relation are added. `load` checks the number of distinct
# (relation, source) rows, so that results from different machines are for the same graphs.
SHAPES = {
    "tiny": (300, 900, 7),
    "aifb-like": (8285, 29043, 45),
    "mutag-like": (23644, 74227, 23),
    "bgs-like": (333845, 916199, 103),
    "am-like": (1666764, 5988321, 133),
}
ROWS = {"aifb-like": 53975, "mutag-like": 134483, "bgs-like": 1881703, "am-like": 11610376}
REAL = ("aifb", "mutag")


def _power_law(size, exponent, count, generator):
    weight = torch.arange(1, size + 1).double() ** -exponent
    ends = (weight / weight.sum()).cumsum(0)
    return torch.searchsorted(ends, torch.rand(count, generator=generator).double()).clamp(max=size - 1)


def synthetic(num_nodes, num_triples, num_relations, seed=0):
    """Return a graph with power-law degrees and relation sizes, inverse edges and self-loops."""
    generator = torch.Generator().manual_seed(seed)
    source, target = (_power_law(num_nodes, 0.6, num_triples, generator) for _ in range(2))
    relation = _power_law(num_relations, 1.0, num_triples, generator)
    shuffle = torch.randperm(num_nodes, generator=generator)
    edges = torch.stack([shuffle[source], shuffle[target]])
    graph = RelationalGraph(edges, relation, num_nodes=num_nodes, num_relations=num_relations, validate=False)
    return graph.with_inverses().with_self_loops()


def load(name):
    """Return a prepared graph by name."""
    if name in REAL:
        import rgat.data

        return rgat.data.load(name).graph.prepare()
    graph = synthetic(*SHAPES[name]).prepare()
    rows = graph.structure.sources.node.shape[0]
    if rows != ROWS.get(name, rows):
        raise SystemExit(f"{name}: {rows} distinct (relation, source) rows, expected {ROWS[name]}")
    return graph


def available(names):
    """Return the names of the graphs that can be loaded here, and print which cannot."""
    loadable = []
    for name in names:
        try:
            load(name)
        except Exception as error:  # no data files and no network
            print(f"{name}: skipped ({error})")
        else:
            loadable.append(name)
    return loadable
