"""Time neighbour sampling on one CPU thread: ours, PyTorch Geometric's, and the training step that uses the batch.

    python benchmarks/sampling.py --out benchmarks/results/sampling.json         # like AM, batches of 1,024; 20 minutes
    python benchmarks/sampling.py --graph tiny --batch-size 64 --rounds 3        # seconds
    python benchmarks/sampling.py --scaling 100000 1000000 10000000 --out ...    # cost of a step against nodes; 10 GB

Prints medians of user and system CPU time in one process, all alternating, and the peak of resident memory above the
level before (in a fresh process, which makes the sampler and takes three batches). Ours is sampling and preparing: what
`NeighborSampler.sample` returns is ready for the layers. Theirs is what `NeighborLoader` yields: `HeteroData` with one
node type and an edge type per relation, without features. The step is forward, backward and update of a two-layer
classifier with node embeddings.

The comparison needs torch-sparse, which PyTorch Geometric samples with; without it our own times are printed alone.
With `--scaling` nodes have eight incoming edges of ten relations, and a power law is fitted to the time of a step.
"""

import argparse
import json
import math
import platform
import resource
import statistics
import time
from types import SimpleNamespace

import graphs
import torch
from memory import peak_above
from torch.nn.functional import cross_entropy

from rgat.incoming import IncomingEdges
from rgat.models import NodeClassifier
from rgat.sampling import NeighborSampler

CLASSES = 11
DEGREE, RELATIONS = 8, 10  # of the graphs of `--scaling`


class Ours:
    """Sample with this package."""

    def __init__(self, graph, options):
        self.sampler = NeighborSampler(graph, options.fanouts)

    def __call__(self, seeds):
        return self.sampler.sample(seeds)


class PyG:
    """Sample with PyTorch Geometric on torch-sparse."""

    def __init__(self, graph, options):
        from torch_geometric.loader import NeighborLoader

        from rgat.data.pyg import to_hetero

        data = to_hetero(graph)
        hops = options.fanouts[::-1]  # the first hop is the last layer's
        self.loader = NeighborLoader(
            data,
            num_neighbors=dict.fromkeys(data.edge_types, hops),
            input_nodes=("node", torch.arange(graph.num_nodes)),
            batch_size=options.batch_size,
        )

    def __call__(self, seeds):
        return self.loader(seeds)


SAMPLERS = {"rgat": Ours, "PyG": PyG}


class Step:
    """Train a classifier with node embeddings on batches: 64 channels everywhere, 4 heads."""

    def __init__(self, num_nodes, num_relations, num_layers):
        torch.manual_seed(0)
        sizes = {"embedding_channels": 64, "hidden_channels": 64, "heads": 4, "num_layers": num_layers}
        self.model = NodeClassifier(num_nodes, CLASSES, num_relations, **sizes)
        rows = self.model.embedding.weight
        others = [parameter for parameter in self.model.parameters() if parameter is not rows]
        self.optimizers = [torch.optim.Adam(others, lr=0.01, fused=True), torch.optim.SparseAdam([rows], lr=0.01)]

    def __call__(self, batch):
        logits = self.model(None, batch.graphs)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        cross_entropy(logits, batch.nodes[: batch.num_seeds] % CLASSES).backward()
        for optimizer in self.optimizers:
            optimizer.step()


def timed(function, *arguments):
    """Return the result of a call, and its CPU and wall-clock seconds."""
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = function(*arguments)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result, {"cpu": cpu, "wall": wall}


def seeds_of(options, num_nodes, number):
    generator = torch.Generator().manual_seed(number)
    if num_nodes < 10 * options.batch_size:
        return torch.randperm(num_nodes, generator=generator)[: options.batch_size]
    drawn = torch.randint(num_nodes, (2 * options.batch_size,), generator=generator)  # a permutation takes too long
    return drawn.unique()[torch.randperm(options.batch_size, generator=generator)]


def has_peer():
    try:
        import torch_geometric  # noqa: F401
        import torch_sparse  # noqa: F401
    except ImportError as error:
        print(f"PyTorch Geometric is left out: {error}")
        return False
    return True


def compare(options):
    """Return the samples of our sampler, the peer's and the step, alternating in one process."""
    graph = graphs.load(options.graph)
    samplers = {name: make(graph, options) for name, make in SAMPLERS.items() if name == "rgat" or has_peer()}
    step = Step(graph.num_nodes, graph.num_relations, len(options.fanouts))
    samples, sizes = {name: [] for name in (*samplers, "step")}, []
    for number in range(options.rounds + 1):
        seeds, batches = seeds_of(options, graph.num_nodes, number), {}
        for name, sampler in samplers.items():
            batches[name], seconds = timed(sampler, seeds)
            samples[name].append(seconds)
        ours = batches["rgat"]
        samples["step"].append(timed(step, ours)[1])
        sizes.append({"nodes": len(ours.nodes), "edges": [each.num_edges for each in ours.graphs]})
        if "PyG" in batches:  # one graph for all layers, and no second sample of a node
            sizes[-1]["PyG"] = [batches["PyG"].num_nodes, batches["PyG"].num_edges]
    results = {name: {"samples": values[1:]} for name, values in samples.items()}  # the first compiles and allocates
    for name in samplers if options.memory else ():
        results[name]["peak_bytes"] = peak_memory(name, options)
    return {"graph": options.graph, "sizes": sizes[1:], "results": results}


def _prepare(name, options):
    torch.set_num_threads(1)
    small = argparse.Namespace(**vars(options) | {"batch_size": 8})
    SAMPLERS[name](graphs.load("tiny"), small)(torch.arange(8))  # load libraries and compiled loops first
    graph = graphs.load(options.graph)

    def work():
        sampler = SAMPLERS[name](graph, options)
        for number in range(3):
            sampler(seeds_of(options, graph.num_nodes, number))

    return work


def peak_memory(name, options):
    """Return the peak bytes of making a sampler and of three batches, in a fresh process."""
    return peak_above(_prepare, name, options)


def median(result):
    return statistics.median(sample["cpu"] for sample in result["samples"])


def show(comparison):
    results, last = comparison["results"], comparison["sizes"][-1]
    print(f"{comparison['graph']}: a batch has {last['nodes']:,} nodes and {last['edges']} edges per layer")
    if "PyG" in last:
        print("  PyG's has {:,} nodes and {:,} edges, the same for all layers".format(*last["PyG"]))
    for name, result in results.items():
        peak = f"{result['peak_bytes'] / 2**20:9,.0f} MiB" if "peak_bytes" in result else ""
        print(f"  {name:6s} {1e3 * median(result):9.1f} ms {peak}")
    ours = median(results["rgat"])
    if "PyG" in results:
        print(f"  ours is {median(results['PyG']) / ours:.1f} times faster than PyG")
    print(f"  sampling takes {ours / median(results['step']):.2f} of the step")


def regular(num_nodes):
    """Return the incoming edges of a random graph whose nodes all have the same in-degree, as a store has them."""
    generator = torch.Generator().manual_seed(0)
    relation = torch.randint(RELATIONS, (num_nodes, DEGREE), generator=generator, dtype=torch.int8).sort(1)[0]
    is_first = torch.ones_like(relation, dtype=torch.bool)
    is_first[:, 1:] = relation[:, 1:] != relation[:, :-1]
    zero = torch.zeros(1, dtype=torch.int64)
    incoming = IncomingEdges(
        node_ptr=torch.cat([zero, is_first.sum(1).cumsum(0)]),
        group_ptr=torch.cat([is_first.flatten().nonzero().squeeze(1), zero + num_nodes * DEGREE]),
        group_relation=relation[is_first].int(),
        source=torch.randint(num_nodes, (num_nodes * DEGREE,), generator=generator, dtype=torch.int32),
    )
    return SimpleNamespace(num_relations=RELATIONS, incoming=incoming)


def scaling(options):
    """Measure a whole step, sampling included, against the number of nodes; fit the exponent of a power law."""
    points = []
    for num_nodes in options.scaling:
        sampler = NeighborSampler(regular(num_nodes), options.fanouts)
        step, samples = Step(num_nodes, RELATIONS, len(options.fanouts)), []
        for number in range(options.rounds + 1):
            seeds = seeds_of(options, num_nodes, number)
            batch, sampling = timed(sampler.sample, seeds)
            samples.append({"sample": sampling, "step": timed(step, batch)[1]})
        points.append({"num_nodes": num_nodes, "batch_nodes": len(batch.nodes), "samples": samples[1:]})
        parts = {part: statistics.median(each[part]["cpu"] for each in samples[1:]) for part in ("sample", "step")}
        points[-1]["seconds"] = sum(parts.values())
        shown = ", ".join(f"{part} {1e3 * seconds:.1f} ms" for part, seconds in parts.items())
        print(f"{num_nodes:12,} nodes: {shown}; a batch has {len(batch.nodes):,} nodes", flush=True)
        del sampler, step, batch
    exponent = _exponent([(point["num_nodes"], point["seconds"]) for point in points])
    print(f"time of a step grows with the number of nodes to the power of {exponent:.2f}")
    return {"points": points, "exponent": exponent}


def _exponent(points):
    x, y = ([math.log(value) for value in column] for column in zip(*points, strict=True))
    if len(points) < 2:
        return math.nan
    return statistics.covariance(x, y) / statistics.variance(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=[*graphs.REAL, *graphs.SHAPES], default="am-like")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10], help="first layer first")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="skip the processes that measure it")
    parser.add_argument("--scaling", type=int, nargs="+", metavar="N", help="only the cost of a step for so many nodes")
    parser.add_argument("--out", help="write all samples as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.scaling:
        found = {"scaling": scaling(options)}
    else:
        found = {"comparison": compare(options)}
        show(found["comparison"])
    if options.out:
        about = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        given = {name: getattr(options, name) for name in ("batch_size", "fanouts", "rounds")}
        with open(options.out, "w") as file:
            json.dump(about | given | found, file)


if __name__ == "__main__":
    main()
