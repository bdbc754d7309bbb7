"""Time one layer, forward and backward, on the CPU, beside PyTorch Geometric's where that is installed.

    python benchmarks/layers.py [--shapes aifb mutag] [--out results.json]

CPU time of the whole process on one thread, median of several calls, on made-up graphs of the sizes of known sets:
power-law ends and relation sizes, inverse edges, self-loops, a fixed seed. Nothing is timed before our output and
gradients agree with the float64 reference on a smaller graph of the same kind.
"""

import argparse
import json
import platform
import statistics
import time

import torch

from rgat import RelationalGraph, ops
from rgat.nn import RGATConv, RGCNConv

SHAPES = {"tiny": (300, 900, 7), "aifb": (8285, 29043, 45), "mutag": (23644, 74227, 23)}  # nodes, triples, relations
WIDTHS = ((16, 16, 1), (64, 16, 4))  # input channels, channels per head, heads


def power_law(size, exponent, count, generator):
    ends = (torch.arange(1, size + 1).double() ** -exponent).cumsum(0)
    return torch.searchsorted(ends / ends[-1], torch.rand(count, generator=generator).double()).clamp(max=size - 1)


def make_graph(name):
    num_nodes, num_triples, num_relations = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    source, target = (power_law(num_nodes, 0.6, num_triples, generator) for _ in range(2))
    relation = power_law(num_relations, 1.0, num_triples, generator)
    shuffle = torch.randperm(num_nodes, generator=generator)
    graph = RelationalGraph(
        torch.stack([shuffle[source], shuffle[target]]), relation, num_nodes=num_nodes, num_relations=num_relations
    )
    return graph.with_inverses().with_self_loops().prepare()


def our_layers(graph, width):
    F, D, H = width
    for scope in ("within", "across"):
        for score in ("additive", "multiplicative"):
            yield f"RGATConv {scope} {score}", RGATConv(F, D, graph.num_relations, heads=H, scope=scope, score=score)
    yield "RGCNConv", RGCNConv(F, D * H, graph.num_relations)


def peer_layers(graph, width):
    try:
        from torch_geometric import nn as pyg
    except ImportError:
        print("PyTorch Geometric is not installed: ours alone (pip install torch-geometric to compare)")
        return
    F, D, H = width
    for scope in ("within", "across"):
        # Computes something else: one query and key kernel for all relations.
        yield (
            f"PyG RGATConv {scope}",
            pyg.RGATConv(F, D, graph.num_relations, heads=H, attention_mechanism=f"{scope}-relation"),
        )
    yield "PyG RGCNConv", pyg.RGCNConv(F, D * H, graph.num_relations)
    yield "PyG FastRGCNConv", pyg.FastRGCNConv(F, D * H, graph.num_relations)


def step(layer, x, arguments, cotangent=None):
    x.grad = None
    layer.zero_grad()
    out = layer(x, *arguments)
    out.backward(torch.randn_like(out) if cotangent is None else cotangent)
    return out


def check(width):
    """Raise unless output and gradients agree with the reference."""
    graph = make_graph("tiny")
    for name, layer in our_layers(graph, width):
        x = torch.randn(graph.num_nodes, width[0], dtype=torch.float64, requires_grad=True)
        layer.double()
        cotangent = torch.randn(graph.num_nodes, width[1] * width[2], dtype=torch.float64)
        found = {}
        for backend in ("torch", "reference"):
            with ops.backend(backend):
                out = step(layer, x, (graph,), cotangent)
            found[backend] = [out.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]
        for a, b in zip(found["torch"], found["reference"], strict=True):
            error = (a - b).abs().max() / b.abs().max()
            if not error <= 1e-10:
                raise SystemExit(f"{name} disagrees with the reference by {error:.1e}: nothing is timed")


def cpu_seconds(layer, x, arguments, calls):
    step(layer, x, arguments)
    samples = []
    for _ in range(calls):
        started = time.process_time()
        step(layer, x, arguments)
        samples.append(time.process_time() - started)
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["aifb"])
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--out", help="write all samples to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for width in WIDTHS:
        check(width)
        for shape in arguments.shapes:
            graph = make_graph(shape)
            print(f"\n{shape}: {graph}, F={width[0]} D={width[1]} H={width[2]}")
            tensors = (graph.edge_index, graph.edge_type)
            jobs = [(name, layer, (graph,)) for name, layer in our_layers(graph, width)]
            jobs += [(name, layer, tensors) for name, layer in peer_layers(graph, width)]
            for name, layer, inputs in jobs:
                x = torch.randn(graph.num_nodes, width[0], requires_grad=True)
                samples = cpu_seconds(layer, x, inputs, arguments.calls)
                print(f"  {name:34s} {1e3 * statistics.median(samples):9.1f} ms")
                records.append({"graph": shape, "width": width, "layer": name, "cpu_seconds": samples})
    if arguments.out:
        about = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.processor()}
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"versions": about, "records": records}, file, indent=1)


if __name__ == "__main__":
    main()
