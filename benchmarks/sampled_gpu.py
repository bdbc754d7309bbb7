"""Time the sampled training step of MLPerf's R-GAT on one GPU, on a made-up graph of the shape of IGBH-medium.

Three layers of 512 units (4 heads of 128), additive attention within relations, batches of 2,048 papers, 1,024 features
in half precision, bfloat16 autocast, Adam. Graph and features are in device memory. A step is sampling, gathering,
forward, backward and update.

    python benchmarks/sampled_gpu.py --out benchmarks/results/sampled_gpu.json
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn.functional import cross_entropy

from rgat import RelationalGraph
from rgat.models import NodeClassifier
from rgat.nn import FeatureRows
from rgat.sampling import NeighborLoader, NeighborSampler

NODES = {"paper": 10_000_000, "author": 15_500_000, "topic": 400_000, "institute": 23_000}
EDGES = [  # source, target, number
    ("paper", "paper", 120_000_000),
    ("author", "paper", 39_000_000),
    ("institute", "author", 10_000_000),
    ("topic", "paper", 63_000_000),
]
CLASSES = 19


def made_up(scale, device):
    """Return a graph whose degrees follow a power law: weights are rank to the power of -0.6, as in `graphs.py`."""
    generator = torch.Generator(device).manual_seed(0)
    start, total = {}, 0
    for kind, count in NODES.items():
        start[kind] = total
        total += int(count * scale)
    ends, types = [], []
    for number, (source, target, count) in enumerate(EDGES):
        size = int(count * scale)
        pair = []
        for kind in (source, target):
            nodes = int(NODES[kind] * scale)
            rank = torch.rand(size, generator=generator, device=device, dtype=torch.float64) ** 2.5 * nodes
            shuffle = torch.randperm(nodes, generator=generator, device=device)
            pair.append(start[kind] + shuffle[rank.long().clamp_(max=nodes - 1)])
        for relation, edges in ((2 * number, (pair[0], pair[1])), (2 * number + 1, (pair[1], pair[0]))):
            ends.append(torch.stack(edges))
            types.append(torch.full((size,), relation, device=device))
    return RelationalGraph(
        torch.cat(ends, 1), torch.cat(types), num_nodes=total, num_relations=2 * len(EDGES), validate=False
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the nodes and edges")
    parser.add_argument("--fanouts", default="15,10,5;5,10,15", help="first layer first; several with semicolons")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--channels", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take longest")
    parser.add_argument("--out", help="write the figures as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    began = time.perf_counter()
    graph = made_up(options.scale, device)
    print(graph, f"made in {time.perf_counter() - began:.1f} s", flush=True)
    papers = int(NODES["paper"] * options.scale)
    half = torch.bfloat16
    x = torch.empty(graph.num_nodes, options.channels, dtype=half, device=device)
    for block in x.split(1 << 20):
        block.normal_()
    labels = torch.randint(CLASSES, (papers,), device=device)
    results = []
    sampler = NeighborSampler(graph, [1])
    num_relations = graph.num_relations
    del graph
    print(f"prepared in {time.perf_counter() - began:.1f} s", flush=True)
    for text in options.fanouts.split(";"):
        fanouts = [int(number) for number in text.split(",")]
        results.append(run(options, sampler, fanouts, x, labels, num_relations, device))
        print(json.dumps(results[-1]), flush=True)
    if options.out:
        device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        with open(options.out, "w") as file:
            json.dump({"device": device_name, "torch": torch.__version__, "results": results}, file, indent=1)


def run(options, sampler, fanouts, x, labels, num_relations, device):
    graph = type("Graph", (), {"incoming": sampler.incoming, "num_relations": num_relations})()
    papers = torch.arange(len(labels))
    loader = NeighborLoader(graph, papers, fanouts, batch_size=options.batch_size)
    sizes = {"hidden_channels": options.hidden, "heads": 4, "num_layers": len(fanouts)}
    model = NodeClassifier(options.channels, CLASSES, num_relations, scope="within", score="additive", **sizes)
    model = model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    stages = ("sample", "forward", "backward", "update")
    times = {name: [] for name in stages}
    counts = []

    def mark():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def learn(batch):
        marks = [mark()]
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(FeatureRows(x, batch.nodes), batch.graphs)  # gathers inside the products
        loss = cross_entropy(logits.float(), labels[batch.nodes[: batch.num_seeds]])
        marks.append(mark())
        optimizer.zero_grad()
        loss.backward()
        marks.append(mark())
        optimizer.step()
        return [*marks, mark()]

    def stage_by_stage(step):
        begin = mark()
        batch = loader.sampler.sample(papers[step * options.batch_size :][: options.batch_size])
        marks = [begin, *learn(batch)]
        torch.cuda.synchronize()
        for name, before, after in zip(stages, marks, marks[1:], strict=False):
            times[name].append(before.elapsed_time(after))
        s = batch.graphs[0].structure
        rows = [len(s.sources.node), len(s.targets.node)]
        counts.append([len(batch.nodes), *rows, *(graph.num_edges for graph in batch.graphs)])

    for step in range(4 + options.steps):
        stage_by_stage(step)
    medians = {name: round(statistics.median(values[4:]), 2) for name, values in times.items()}
    if options.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            stage_by_stage(0)
        print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=60))
    torch.cuda.reset_peak_memory_stats()
    batches = iter(loader)  # samples in the background
    for _ in range(4):
        learn(next(batches))
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(options.steps):
        learn(next(batches))
    torch.cuda.synchronize()
    milliseconds = 1000 * (time.perf_counter() - began) / options.steps
    batches.close()
    mean = [round(sum(column) / len(column)) for column in zip(*counts, strict=True)]
    return {
        "fanouts": fanouts,
        "stages_ms": medians,
        "step_ms": round(milliseconds, 2),
        "seeds_per_second": round(1000 * options.batch_size / milliseconds),
        "nodes": mean[0],
        "rows_of_first_layer": mean[1:3],
        "edges_per_layer": mean[3:],
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


if __name__ == "__main__":
    main()
