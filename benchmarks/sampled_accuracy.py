"""Compare sampled training with training on the whole graph: test accuracy over the same random seeds.

Each run takes the selected setting of `configs/`, trains on the whole training part for the setting's number of epochs
and is scored with all edges. The difference is paired by seed; its 95 % interval is Student's.

    python benchmarks/sampled_accuracy.py --seeds 20 --out benchmarks/results/sampled_accuracy.json

On a machine without the data files and RDF parser, tensors that `--prepare FOLDER` wrote elsewhere are read by
`--prepared FOLDER`.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

import torch
from scipy.stats import t as student

import rgat.data
from rgat import RelationalGraph
from rgat.data import NodeData
from rgat.training import build_model, fit_many
from rgat.training.configuration import read_config, split_config

CONFIGS = Path(__file__).parent.parent / "configs"


def prepare(data, path):
    tensors = {"edge_index": data.graph.edge_index, "edge_type": data.graph.edge_type, "labels": data.labels}
    parts = {part: getattr(data, part) for part in ("train", "valid", "test")}
    sizes = torch.tensor([data.graph.num_nodes, data.graph.num_relations, len(data.classes)])
    torch.save(tensors | parts | {"sizes": sizes}, path)


def read_prepared(name, path):
    tensors = torch.load(path, weights_only=True)
    nodes, relations, classes = tensors.pop("sizes").tolist()
    edges = (tensors.pop("edge_index"), tensors.pop("edge_type"))
    graph = RelationalGraph(*edges, num_nodes=nodes, num_relations=relations)
    names = tuple(map(str, range(max(nodes, relations))))
    return NodeData(
        name=name, graph=graph, x=None, classes=names[:classes], node_names=names[:nodes],
        relation_names=names[:relations], **tensors,
    )  # fmt: skip


def accuracies(data, config, fanouts, seeds, batch_size, device):
    options, settings = split_config(config)
    settings = replace(settings, patience=None, fanouts=fanouts, batch_size=batch_size)
    models = [build_model(data, seed, **options).to(device) for seed in range(seeds)]
    results = fit_many(models, data, settings, list(range(seeds)))  # on the whole graph as stacks
    return [result.scores["test"] for result in results]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["aifb", "mutag"])
    parser.add_argument("--models", nargs="+", default=["additive-wirgat", "rgcn"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1024, help="training nodes per step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prepare", type=Path, help="write the data as tensors, and stop")
    parser.add_argument("--prepared", type=Path, help="read the data as tensors")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows = []
    for name in options.data:
        data = read_prepared(name, options.prepared / f"{name}.pt") if options.prepared else rgat.data.load(name)
        if options.prepare:
            prepare(data, options.prepare / f"{name}.pt")
            continue
        for model in options.models:
            config = read_config(CONFIGS / name / f"{model}.toml")
            rest = (options.seeds, options.batch_size, options.device)
            full = accuracies(data, config, None, *rest)
            row = {"data": name, "model": model, "seeds": options.seeds, "full": full}
            for fanouts in ((10, 10), (5, 5)):
                sampled = accuracies(data, config, fanouts, *rest)
                differences = [a - b for a, b in zip(sampled, full, strict=True)]
                mean, spread = statistics.mean(differences), statistics.stdev(differences)
                half = student.ppf(0.975, len(differences) - 1) * spread / len(differences) ** 0.5
                row[",".join(map(str, fanouts))] = {
                    "scores": sampled,
                    "difference": mean,
                    "interval": [mean - half, mean + half],
                }
                print(
                    f"{name} {model} fan-outs {fanouts}: {100 * statistics.mean(sampled):.2f} % against "
                    f"{100 * statistics.mean(full):.2f} %, difference {100 * mean:+.2f} points "
                    f"({100 * (mean - half):+.2f} to {100 * (mean + half):+.2f}); "
                    f"a test node is {100 / len(data.test):.2f} points",
                    flush=True,
                )
            rows.append(row)
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
