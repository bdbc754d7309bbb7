"""Time our layers and PyTorch Geometric's on the CPU, forward and backward, in one run.

    python benchmarks/layers.py                          # all graphs; about 15 minutes
    python benchmarks/layers.py --graphs aifb --calls 3  # one graph

Prints the median user and system CPU time of the process on one thread, page faults, and the peak of resident memory
above the level before the call (in a fresh process). A ratio is printed only if our output and all gradients agree with
the float64 reference on the same graph. One and two threads are compared by wall-clock time.
"""

import argparse
import json
import math
import platform
import resource
import statistics
import sys
import time

import graphs
import torch
from memory import peak_above

from rgat import ops
from rgat.nn import RGATConv, RGCNConv

WIDTHS = ((16, 16, 1), (64, 16, 4))  # input channels, channels per head, heads
TOLERANCE = 1e-4  # float32 on graphs of 100,000 edges, relative to the largest value
OTHER = {
    "RGATConv": "PyG's RGATConv shares one query and one key kernel among all relations and heads; all our lines "
    "are compared with its additive score without dropout (its multiplicative one costs about the same)",
    "RGCNConv": "PyG's RGCNConv and FastRGCNConv average over the edges of a relation, as ours, and add a root kernel",
}


def our_layer(word, graph, width):
    F, D, H = width
    R = graph.num_relations
    if word == "RGCN":
        return RGCNConv(F, D * H, R)
    scope, score, *rest = word.replace(",", "").split()
    channels = [int(option.removeprefix("A=")) for option in rest if option.startswith("A=")]
    options = {"attention_channels": (channels or [1])[0]} if score == "multiplicative" else {}
    if "dropout" in rest:
        options |= {"feature_dropout": 0.3, "edge_dropout": 0.3}
    return RGATConv(F, D, R, heads=H, scope=scope, score=score, **options)


OURS = [f"{scope} {score}" for scope in ("within", "across") for score in ("additive", "multiplicative")]
OURS += ["within additive dropout", "within additive, features given"]
OURS += ["within multiplicative A=8", "across multiplicative A=8", "across multiplicative A=16", "RGCN"]


def peer_layer(word, graph, width):
    from torch_geometric import nn as pyg

    F, D, H = width
    if word.startswith("PyG RGATConv"):
        return pyg.RGATConv(F, D, graph.num_relations, heads=H, attention_mechanism=f"{word.split()[-1]}-relation")
    return getattr(pyg, word.split()[1])(F, D * H, graph.num_relations)


PEERS = ["PyG RGATConv within", "PyG RGATConv across", "PyG RGCNConv", "PyG FastRGCNConv"]


class Job:
    """Run one layer on one graph, forward and backward."""

    def __init__(self, word, graph, width, backend="auto"):
        torch.manual_seed(0)
        self.word, self.backend = word, backend
        peer = word.startswith("PyG")
        self.layer = (peer_layer if peer else our_layer)(word, graph, width)
        self.graph = (graph.edge_index, graph.edge_type) if peer else (graph,)
        needs_grad = "features given" not in word  # a first layer needs no gradient of its inputs
        self.x = torch.randn(graph.num_nodes, width[0], requires_grad=needs_grad)
        self.cotangent = torch.randn(graph.num_nodes, width[1] * width[2])

    def __call__(self):
        self.x.grad = None
        self.layer.zero_grad()
        with ops.backend(self.backend):
            out = self.layer(self.x, *self.graph)
            out.backward(self.cotangent)
        return out

    def timed(self):
        before = resource.getrusage(resource.RUSAGE_SELF)
        started = time.perf_counter()
        self()
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"cpu": cpu, "wall": wall, "faults": after.ru_minflt - before.ru_minflt}


def gemms(graph, width):
    """Return a job with only the matrix products of the projections: forward, and both gradients."""
    rows = graph.structure.sources
    ptr, inputs, columns = rows.relation_ptr.tolist(), width[0], width[1] * width[2]
    x, weight = torch.randn(len(rows.node), inputs), torch.randn(graph.num_relations, inputs, columns)
    out, dx, dweight = torch.empty(len(x), columns), torch.empty_like(x), torch.empty_like(weight)

    class Products(Job):
        def __init__(self):
            self.word = "grouped GEMMs alone"

        def __call__(self):
            for r in range(graph.num_relations):
                a, b = ptr[r], ptr[r + 1]
                if a < b:
                    torch.mm(x[a:b], weight[r], out=out[a:b])
                    torch.mm(out[a:b], weight[r].t(), out=dx[a:b])
                    torch.mm(x[a:b].t(), out[a:b], out=dweight[r])

    return Products()


def disagreement(word, graph, width):
    """Return the largest error of output and gradients against the float64 reference, relative to the largest value."""
    results = []
    for backend, dtype in (("reference", torch.float64), ("auto", torch.float32)):
        job = Job(word, graph, width, backend)
        job.layer.to(dtype)
        job.x = job.x.detach().to(dtype).requires_grad_(job.x.requires_grad)
        job.cotangent = job.cotangent.to(dtype)
        out = job()
        leaves = [leaf for leaf in (job.x, *job.layer.parameters()) if leaf.requires_grad]
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    shares = [float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) for a, b in zip(*results, strict=True)]
    return max(share if math.isfinite(share) else math.inf for share in shares)


def _prepare(name, width, word, backend):
    torch.set_num_threads(1)
    Job(word, graphs.load("tiny"), width, backend)()  # load libraries and compiled loops first
    return Job(word, graphs.load(name), width, backend)


def peak_memory(name, width, word, backend="auto"):
    """Return the peak bytes above the level before the first call, in a fresh process."""
    return peak_above(_prepare, name, width, word, backend, timeout=600)


def measure(name, width, calls, words, with_memory):
    graph = graphs.load(name)
    jobs = {"grouped GEMMs alone": gemms(graph, width)}
    for word in words:
        backend = "torch" if word.endswith("(torch)") else "auto"
        jobs[word] = Job(word.removesuffix(" (torch)"), graph, width, backend)
    samples = {word: [] for word in jobs}
    for _ in range(calls):
        for word, job in jobs.items():
            repeats = 1 if word.startswith("PyG") else 5
            if repeats > 1 or not samples[word]:
                job()  # warm the caches, whatever ran before
            samples[word] += [job.timed() for _ in range(repeats)]
    records = []
    for word in jobs:
        record = {"graph": name, "width": width, "layer": word, "samples": samples[word]}
        if word in OURS:
            record["disagreement"] = disagreement(word, graph, width)
        if with_memory and word not in ("grouped GEMMs alone",):
            backend = "torch" if word.endswith("(torch)") else "auto"
            record["peak_bytes"] = peak_memory(name, width, word.removesuffix(" (torch)"), backend)
        records.append(record)
    return records


def median(record, key="cpu"):
    return statistics.median(sample[key] for sample in record["samples"])


def show(records):
    by_word = {record["layer"]: record for record in records}
    products = median(by_word["grouped GEMMs alone"])
    print(f"  {'':34s} {'CPU ms':>9s} {'faults':>8s} {'peak MiB':>9s} {'/GEMMs':>7s} {'faster':>8s} {'smaller':>8s}")
    for word, record in by_word.items():
        peak = record.get("peak_bytes")
        line = f"  {word:34s} {1e3 * median(record):9.2f} {median(record, 'faults'):8.0f}"
        line += f" {peak / 2**20:9.1f}" if peak is not None else f" {'':9s}"
        line += f" {median(record) / products:7.2f}"
        rivals = peers_of(word, by_word)
        if rivals and record["disagreement"] > TOLERANCE:
            line += f"   disagrees with the reference by {record['disagreement']:.1e}: no ratio"
        elif rivals:
            fastest = min(rivals, key=median)
            line += f" {median(fastest) / median(record):7.1f}x"
            if peak is not None:
                line += f" {fastest['peak_bytes'] / max(peak, 1):7.1f}x"
        print(line)


def peers_of(word, by_word):
    if word not in OURS or "features given" in word:  # every peer computes the gradient of its inputs
        return []
    names = ("PyG RGCNConv", "PyG FastRGCNConv") if word == "RGCN" else (f"PyG RGATConv {word.split()[0]}",)
    return [by_word[name] for name in names if name in by_word]


def threads(name, width, calls):
    """Compare wall-clock seconds on one and on two threads."""
    job = Job("within additive", graphs.load(name), width)
    seconds = {}
    for count in (1, 2, 1, 2):
        torch.set_num_threads(count)
        job()
        seconds.setdefault(count, []).extend(job.timed()["wall"] for _ in range(3 * calls))
    torch.set_num_threads(1)
    one, two = (statistics.median(seconds[count]) for count in (1, 2))
    print(
        f"\n{name}, F={width[0]}: one thread {1e3 * one:.1f} ms, two {1e3 * two:.1f} ms: {one / two:.2f} times faster"
    )
    return {"graph": name, "width": width, "seconds": seconds}


def scaling(calls):
    """Measure CPU time against edges, relations, channels and heads; fit the exponent of a power law."""
    curves = {
        "E": [((20_000, triples, 20), (32, 16, 2)) for triples in (50_000, 100_000, 200_000, 400_000)],
        "R": [((20_000, 100_000, R), (32, 16, 2)) for R in (5, 20, 80, 320)],
        "F": [((20_000, 100_000, 20), (F, 16, 2)) for F in (16, 32, 64, 128)],
        "H": [((20_000, 100_000, 20), (32, 16, H)) for H in (1, 2, 4, 8)],
    }
    results = []
    print("\nscaling of `within additive`")
    for axis, points in curves.items():
        sizes, seconds = [], []
        for shape, width in points:
            graph = graphs.synthetic(*shape).prepare()
            job = Job("within additive", graph, width)
            job()
            seconds.append(statistics.median(job.timed()["cpu"] for _ in range(3 * calls)))
            sizes.append({"E": graph.num_edges, "R": graph.num_relations, "F": width[0], "H": width[2]}[axis])
        logs = [torch.tensor(values, dtype=torch.float64).log() for values in (sizes, seconds)]
        exponent = float(
            ((logs[0] - logs[0].mean()) * (logs[1] - logs[1].mean())).sum() / logs[0].var(False) / len(sizes)
        )
        shown = ", ".join(f"{size:,}: {1e3 * second:.1f}" for size, second in zip(sizes, seconds, strict=True))
        print(f"  {axis}: exponent {exponent:.2f}   ({shown} ms)")
        results.append({"axis": axis, "sizes": sizes, "seconds": seconds, "exponent": exponent})
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*graphs.REAL, *graphs.SHAPES]
    parser.add_argument("--graphs", nargs="+", choices=names, default=["aifb", "mutag", "aifb-like", "mutag-like"])
    words = [*OURS, *(f"{word} (torch)" for word in ("within additive", "RGCN")), *PEERS]
    parser.add_argument("--layers", nargs="+", choices=words, default=words, metavar="LAYER", help="rows of the table")
    parser.add_argument("--calls", type=int, default=3, help="rounds; our layers run five times in each")
    parser.add_argument("--no-memory", action="store_true", help="skip peak memory")
    parser.add_argument("--no-scaling", action="store_true", help="skip the scaling curves")
    parser.add_argument("--out", help="write all samples to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        import torch_geometric

        version = torch_geometric.__version__
    except ImportError:
        version = None
        arguments.layers = [word for word in arguments.layers if word not in PEERS]
        print("PyTorch Geometric is not installed: timing our layers only (pip install torch-geometric to compare)")
    for text in OTHER.values():
        print(text)
    records = []
    chosen = graphs.available(arguments.graphs)
    for name in chosen:
        for width in WIDTHS:
            print(f"\n{name}: {graphs.load(name)}, F={width[0]} D={width[1]} H={width[2]}", flush=True)
            measured = measure(name, width, arguments.calls, arguments.layers, not arguments.no_memory)
            show(measured)
            sys.stdout.flush()
            records += measured
    about = {
        "command": " ".join(sys.argv),
        "torch": torch.__version__,
        "torch_geometric": version,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(),
        "backend": ops.active_backend(),
    }
    result = {"about": about, "layers": records}
    result["threads"] = [threads(name, WIDTHS[-1], arguments.calls) for name in chosen]
    if not arguments.no_scaling:
        result["scaling"] = scaling(arguments.calls)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=None, separators=(",", ":"))


def processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "")


if __name__ == "__main__":
    main()
