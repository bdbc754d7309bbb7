"""Time our layers and PyTorch Geometric's on a CUDA device, forward and backward, in one run.

    python benchmarks/gpu.py --out benchmarks/results/gpu.json
    python benchmarks/gpu.py --show benchmarks/results/gpu.json --plot docs/gpu.svg
    python benchmarks/gpu.py --graphs aifb-like mutag-like

Prints the median time by device events, the peak memory above the level before the call, and a floor: the time to move
each needed byte once at the measured bandwidth. On small graphs also the time of the step captured in a CUDA graph, and
the error against the float64 reference. Layers that exceed the device's memory are reported as out of memory. Finally
times a model of two layers, eager and compiled in turns, by wall clock.
"""

import argparse
import json
import platform
import statistics
import sys
import time

import graphs
import torch

from rgat import ops
from rgat.models import NodeClassifier
from rgat.nn import RGATConv, RGCNConv

WIDE, NARROW, PLAIN = (64, 16, 4), (16, 16, 1), (64, 64, 1)
OURS = {
    "within additive": WIDE,
    "across additive": WIDE,
    "within multiplicative A=1": WIDE,
    "across multiplicative A=1": WIDE,
    "across multiplicative A=16": WIDE,
    "within additive, dropout 0.3": WIDE,
    "within additive, features given": WIDE,
    "within additive, F=16": NARROW,
    "across additive, F=16": NARROW,
    "RGCN": PLAIN,
}
PEERS = {"RGATConv within": WIDE, "RGATConv across": WIDE, "RGCNConv": PLAIN, "FastRGCNConv": PLAIN}
SMALL = ("aifb-like", "mutag-like")


def our_layer(word, width, num_relations):
    F, D, H = width
    if word == "RGCN":
        return RGCNConv(F, D * H, num_relations)
    scope, score = word.replace(",", "").split()[:2]
    options = {"attention_channels": int(word.split("A=")[1])} if "A=" in word else {}
    if "dropout" in word:
        options |= {"feature_dropout": 0.3, "edge_dropout": 0.3}
    return RGATConv(F, D, num_relations, heads=H, scope=scope, score=score, **options)


def peer_layer(word, width, num_relations):
    from torch_geometric import nn as pyg

    F, D, H = width
    name, *scope = word.split()
    if scope:
        return pyg.RGATConv(F, D, num_relations, heads=H, attention_mechanism=f"{scope[0]}-relation")
    return getattr(pyg, name)(F, D * H, num_relations)


def step(layer, x, inputs, cotangent):
    out = layer(x, *inputs)
    wanted = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    return out.detach(), *torch.autograd.grad(out, wanted, cotangent, allow_unused=True)


def device_milliseconds(function, calls, warm_up=3):
    """Return the time of each call; calls are queued as in training, so the host may run ahead of the device."""
    for _ in range(warm_up):
        function()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for start, end in events:
        start.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def captured(function):
    """Capture the function in a CUDA graph and return its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def bandwidth():
    """Measure bytes per second of a copy of two GiB."""
    a = torch.empty(2**29, device="cuda")
    b = torch.empty_like(a)
    milliseconds = statistics.median(device_milliseconds(lambda: b.copy_(a), 10))
    return 2 * a.numel() * 4 / milliseconds * 1e3


def needed_bytes(graph, width):
    """Count bytes to write and read values, inputs, outputs and their gradients once, and the edge indices."""
    F, D, H = width
    rows, nodes, edges = graph.structure.sources.node.shape[0], graph.num_nodes, graph.num_edges
    return 4 * (4 * rows * H * D + 2 * nodes * (F + H * D) + 6 * edges)


def _needs_grad(word):
    return "features given" not in word  # a first layer needs no gradient of its inputs


def disagreement(word, width, graph):
    """Return the largest error of output and gradients against the float64 reference, relative to the largest value."""
    results = []
    for backend, dtype in (("reference", torch.float64), ("auto", torch.float32)):
        torch.manual_seed(0)
        layer = our_layer(word, width, graph.num_relations).cuda()
        x = torch.randn(graph.num_nodes, width[0], device="cuda")
        cotangent = torch.randn(graph.num_nodes, width[1] * width[2], device="cuda").to(dtype)
        layer.to(dtype)
        x = x.to(dtype).requires_grad_(_needs_grad(word))
        with ops.backend(backend):
            results.append(step(layer, x, (graph,), cotangent))
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) for a, b in zip(*results, strict=True))


def measure(name, word, width, graph, calls, peer=False, backend="auto"):
    torch.manual_seed(0)
    layer = (peer_layer if peer else our_layer)(word, width, graph.num_relations).cuda()
    inputs = (graph.edge_index, graph.edge_type) if peer else (graph,)
    x = torch.randn(graph.num_nodes, width[0], device="cuda", requires_grad=_needs_grad(word))
    cotangent = torch.randn(graph.num_nodes, width[1] * width[2], device="cuda")
    record = {"graph": name, "layer": word, "width": width, "who": "PyG" if peer else backend}

    def run():
        with ops.backend(backend):
            step(layer, x, inputs, cotangent)

    try:
        run()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        # Our layers build tables and record their launches within the first 20 steps.
        record["samples"] = device_milliseconds(run, calls, 3 if peer else 20)
        record["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        if not peer and backend == "auto" and name in SMALL:
            record["captured"] = device_milliseconds(captured(run), calls)
            record["disagreement"] = disagreement(word, width, graph)
    except torch.OutOfMemoryError:
        record["samples"] = None
    torch.cuda.empty_cache()
    return record


def measure_compiled(name, graph, rounds=15, steps=20):
    """Return milliseconds per step of a two-layer model for each round, in which eager and compiled steps alternate."""
    torch.manual_seed(0)
    model = NodeClassifier(32, 8, graph.num_relations, hidden_channels=64, heads=4).cuda()
    x = torch.randn(graph.num_nodes, 32, device="cuda")
    ways = {"eager": model, "default": torch.compile(model, fullgraph=True)}
    ways["reduce-overhead"] = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    samples = {way: [] for way in ways}
    try:
        for _ in range(rounds + 2):  # the first two warm up
            for way, function in ways.items():
                torch.cuda.synchronize()
                started = time.perf_counter()
                for _ in range(steps):
                    model.zero_grad()
                    function(x, graph).sum().backward()
                torch.cuda.synchronize()
                samples[way].append(1e3 * (time.perf_counter() - started) / steps)
    except torch.OutOfMemoryError:
        return {"graph": name, "samples": None}
    finally:
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    return {"graph": name, "samples": {way: rounds_ms[2:] for way, rounds_ms in samples.items()}}


def show_compiled(record):
    if record["samples"] is None:
        print("  two layers: out of memory", flush=True)
        return
    medians = {way: statistics.median(rounds_ms) for way, rounds_ms in record["samples"].items()}
    print("  two layers, wall-clock ms: " + ", ".join(f"{way} {ms:.2f}" for way, ms in medians.items()), flush=True)


def show(record):
    line = f"  {record['who']:6s} {record['layer']:30s}"
    if record["samples"] is None:
        print(line + " out of memory", flush=True)
        return
    line += f" {statistics.median(record['samples']):9.3f} ms {record['peak_bytes'] / 2**30:7.2f} GiB"
    line += f", floor {record['floor']:.3f} ms"
    if "captured" in record:
        line += f", captured {statistics.median(record['captured']):.3f} ms, error {record['disagreement']:.0e}"
    print(line, flush=True)


def plot(records, path):
    """Draw bars of the median milliseconds per graph on a log scale; no bar where the layer ran out of memory."""
    import matplotlib.pyplot as plt

    looks = {"auto": ("ours", "C0"), "torch": ("ours, plain PyTorch", "C1")}
    bars = {
        "attention within relations": ("within additive", "RGATConv within"),
        "attention across relations": ("across additive", "RGATConv across"),
        "RGCN": ("RGCN", "RGCNConv", "FastRGCNConv"),
    }
    plt.rcParams |= {"svg.hashsalt": "rgat", "svg.fonttype": "none"}
    figure, axes = plt.subplots(1, len(bars), figsize=(11, 3.2), sharey=True, layout="constrained")
    graph_names = list(dict.fromkeys(record["graph"] for record in records))
    for axis, (title, words) in zip(axes, bars.items(), strict=True):
        shown = [record for record in records if record["layer"] in words and record["samples"]]
        who = list(dict.fromkeys((record["who"], record["layer"]) for record in shown))
        for place, key in enumerate(who):
            here = {r["graph"]: statistics.median(r["samples"]) for r in shown if (r["who"], r["layer"]) == key}
            peer = key[1].split()[0]
            label, colour = looks.get(key[0], (f"PyG {peer}", "C3" if peer == "FastRGCNConv" else "C2"))
            at = [graph_names.index(name) + 0.8 * (place + 0.5) / len(who) - 0.4 for name in here]
            axis.bar(at, list(here.values()), 0.8 / len(who), label=label, color=colour)
        axis.set(title=title, yscale="log", xticks=range(len(graph_names)), xticklabels=graph_names)
        axis.tick_params(axis="x", labelrotation=20)
        axis.legend(fontsize=7)
    axes[0].set_ylabel("ms, forward and backward")
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--graphs",
        nargs="+",
        default=["aifb-like", "mutag-like", "bgs-like", "am-like"],
        help="default: all four sizes",
    )
    parser.add_argument("--calls", type=int, default=10, help="timed steps of each of our layers")
    parser.add_argument(
        "--ours-alone", action="store_true", help="skip the plain PyTorch backend and PyTorch Geometric"
    )
    parser.add_argument("--out", help="write all samples to this JSON file")
    parser.add_argument("--show", help="print the results in this JSON file instead of measuring")
    parser.add_argument("--plot", help="with --show, also draw the results to this file")
    arguments = parser.parse_args()
    if arguments.show:
        with open(arguments.show, encoding="utf-8") as file:
            results = json.load(file)
        for record in results["layers"]:
            print(f"{record['graph']:10s}", end="")
            show(record)
        for record in results.get("compiled", []):
            print(f"{record['graph']:10s}", end="")
            show_compiled(record)
        if arguments.plot:
            plot(results["layers"], arguments.plot)
        return
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a CUDA device, but PyTorch finds none")
    rate = bandwidth()
    device = torch.cuda.get_device_name()
    print(f"{device}, {rate / 1e12:.2f} TB/s, torch {torch.__version__}, backend {ops.active_backend('cuda')}")
    records, compiled = [], []
    for name in arguments.graphs:
        started = time.perf_counter()
        graph = graphs.synthetic(*graphs.SHAPES[name]).to("cuda").prepare()
        graph.validate = False
        print(f"\n{name}: {graph} ({time.perf_counter() - started:.0f} s)", flush=True)
        jobs = [(word, width, False, "auto") for word, width in OURS.items()]
        if not arguments.ours_alone:
            jobs += [(word, OURS[word], False, "torch") for word in ("within additive", "RGCN")]
            jobs += [(word, width, True, "auto") for word, width in PEERS.items()]
        for word, width, peer, backend in jobs:
            calls = arguments.calls if not peer else 3
            record = measure(name, word, width, graph, calls, peer, backend)
            record["floor"] = 1e3 * needed_bytes(graph, width) / rate
            show(record)
            records.append(record)
        compiled.append(measure_compiled(name, graph))
        show_compiled(compiled[-1])
    if arguments.out:
        about = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
        about |= {"bytes_per_second": rate, "command": " ".join(sys.argv)}
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"about": about, "layers": records, "compiled": compiled}, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
