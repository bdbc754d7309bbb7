"""Test explanations of a model's distance to the paper one by one, on validation folds alone.

Each variation changes one thing about the setting `common-epochs` of `configs/` and trains the same folds from the same
seeds: five folds of the training part for each seed, drawn anew. A score is the validation accuracy of a seed's five
folds at the number of epochs of the retraining ("common"), or at the best epoch of each fold, as a search measures it
("own"). Differences are paired by seed; their 95 % intervals are Student's, over seeds and draws of folds of the same
nodes.

    python benchmarks/explanations.py --data mutag --prepare build/explanations
    python benchmarks/explanations.py --data mutag --prepared build/explanations --seeds 20 --device cuda --workers 4 \
        --out benchmarks/results/explanations

The first command needs the data files. What it writes has no label of a test node; the second needs torch, numpy,
scipy, numba (CPU) and what the first one wrote. It leaves out what the files in `--out` already have, so it can be
interrupted, and prints the tables of finished files at once.
"""

import argparse
import dataclasses
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import as_completed
from pathlib import Path

import torch
from scipy.stats import t as student

import rgat.data
from rgat import RelationalGraph
from rgat.data import MISSING, NodeData
from rgat.data.dataset import INVERSE
from rgat.data.files import write_atomically
from rgat.experiments.folds import FoldedData
from rgat.experiments.records import read_experiment
from rgat.nn.families import make_layer
from rgat.training import build_model, fit_many
from rgat.training.configuration import read_config, split_config
from rgat.training.search import retrain_epochs, select
from rgat.workers import WorkerPool

ROOT = Path(__file__).parent.parent
MODELS = ("rgcn", "additive-wirgat", "additive-argat", "multiplicative-wirgat", "multiplicative-argat")
FOLDS = 5
FIRST_DRAW = 10  # of folds; the searches used the draws 0 to 2
FIRST_SEED = 50_000  # of models; the searches used those below
RDF_TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
FACTORS = {"half the epochs": 0.5, "twice the epochs": 2, "four times the epochs": 4}  # rows of the setting itself
OWN_HORIZON = 2  # a fold's own best epoch is looked for in so many times the common number of epochs


@dataclasses.dataclass(frozen=True)
class Variation:
    """One thing that differs from the selected setting."""

    name: str
    config: dict
    edges: str = "all"  # those left out, see `edge_masks`
    change: Callable | None = None  # of a new model
    longest: int = OWN_HORIZON  # times the number of epochs of the configuration


def edge_masks(data):
    """Return the edges that the variations of the graph keep."""
    inverse = torch.tensor([name.startswith(INVERSE) for name in data.relation_names])
    types = torch.tensor([name.removeprefix(INVERSE) == RDF_TYPE for name in data.relation_names])
    loops = torch.tensor([name == "self" for name in data.relation_names])
    literal = torch.tensor([name.startswith('"') for name in data.node_names])
    kinds, (sources, targets) = data.graph.edge_type, data.graph.edge_index
    return {
        "without inverse relations": ~inverse[kinds],
        "without self-loops": ~loops[kinds],
        "without literals": ~(literal[sources] | literal[targets]),
        "without rdf:type": ~types[kinds],
    }


def prepare(name, folder):
    """Write the graph, the training labels, masks of edges and all settings."""
    data = rgat.data.load(name)
    pool = torch.cat([data.train, data.valid]).sort().values
    labels = torch.full_like(data.labels, MISSING)
    labels[pool] = data.labels[pool]
    tensors = {"edge_index": data.graph.edge_index, "edge_type": data.graph.edge_type, "labels": labels, "pool": pool}
    tensors["sizes"] = torch.tensor([data.graph.num_nodes, data.graph.num_relations, len(data.classes)])
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors | edge_masks(data), folder / f"{name}.pt")
    settings = {model: find_settings(name, model) for model in MODELS}
    (folder / f"{name}.json").write_text(json.dumps(settings, indent=1))


def find_settings(name, model):
    """Return the setting that is best at common epochs, and those that the objective chooses from 50 and 200 trials."""
    base = read_config(ROOT / "configs" / name / f"{model}+common-epochs.toml")
    settings = {"as selected": base}
    records = read_experiment(ROOT / "results" / f"{name}.records.gz").records
    trials = [r for r in records if r["kind"] == "trial" and r["model"] == base["model"]]
    for number in (50, 200):
        trial = select([r for r in trials if r["trial"] < number])
        if trial["config"]["learning_rate"] != base["learning_rate"]:  # else it is the same
            settings[f"by the objective, {number} trials"] = trial["config"] | {"max_epochs": retrain_epochs(trial)}
    return settings


@functools.lru_cache(maxsize=1)
def read_prepared(name, folder):
    """Return the data with their folds, the masks of edges and the settings of each model."""
    tensors = torch.load(folder / f"{name}.pt", weights_only=True)
    nodes, relations, classes = tensors.pop("sizes").tolist()
    edges, labels, pool = (
        (tensors.pop("edge_index"), tensors.pop("edge_type")),
        tensors.pop("labels"),
        tensors.pop("pool"),
    )
    names = tuple(map(str, range(max(nodes, relations))))
    data = NodeData(
        name=name, graph=RelationalGraph(*edges, num_nodes=nodes, num_relations=relations), x=None, labels=labels,
        classes=names[:classes], node_names=names[:nodes], relation_names=names[:relations],
        train=pool, valid=pool[:0], test=pool[:0],
    )  # fmt: skip
    folded = FoldedData(data, [], {None: (pool, pool[:0], pool[:0])})
    return folded, tensors, json.loads((folder / f"{name}.json").read_text())


def output_heads(heads, merge):
    """Return a change of a model: other heads in its last layer."""

    def change(model, data, config):
        options, _ = split_config(config)
        layer = {k: v for k, v in options.items() if k not in ("layer", "hidden_channels", "heads", "batch_norm")}
        units = len(data.classes) // (heads if merge == "concat" else 1)
        sizes = (options["hidden_channels"], units, data.graph.num_relations)
        model.conv2 = make_layer(options.get("layer", "rgat"), *sizes, heads, merge, layer)

    return change


def scale_first_kernel(factor):
    """Return a change of a model: other initial weights of the first layer."""

    def change(model, data, config):
        kernel = model.conv1.kernel
        weights = getattr(kernel, "bases", None)
        with torch.no_grad():
            (kernel.weight if weights is None else weights).mul_(factor)

    return change


def keep_inputs(model, data, config):
    """Change a model: no dropout of its one-hot inputs."""
    model.conv1.feature_dropout = 0.0


def find_variations(settings, num_train, num_classes):
    """Return the variations of a model; the first is the selected setting itself."""
    base = settings["as selected"]
    found = [Variation("as selected", base, longest=4)]
    found += [Variation(name, config) for name, config in settings.items() if name != "as selected"]
    heads, rate = base.get("heads", 1), {k: v for k, v in base.items() if "_l2_" in k}
    if heads > 1:
        found.append(Variation("one head in the last layer", base, change=output_heads(1, "mean")))
        if num_classes % heads == 0:
            found.append(Variation("last heads concatenated", base, change=output_heads(heads, "concat")))
    if base["model"] != "RGCN" and heads < 4:
        more = base | {"heads": 4}
        found.append(Variation("four heads", more))
        found.append(Variation("four heads, one in the last layer", more, change=output_heads(1, "mean")))
    found += [
        Variation("no L2 on the one-hot rows", base | {"kernel_l2_1": 0.0}),
        Variation("half the L2", base | {name: value / 2 for name, value in rate.items()}),
        Variation("ten times the L2 on the one-hot rows", base | {"kernel_l2_1": 10 * base["kernel_l2_1"]}),
        Variation("L2 beside a summed loss", base | {name: value / num_train for name, value in rate.items()}),
        Variation("no dropout of one-hot inputs", base, change=keep_inputs),
        Variation("five times larger initial rows", base, change=scale_first_kernel(5.0)),
    ]
    graphs = ("without inverse relations", "without self-loops", "without literals", "without rdf:type")
    return found + [Variation(name, base, edges=name) for name in graphs]


def train(variation, folded, masks, seeds, device):
    """Return the validation loss and accuracy of each epoch of each fold, and how it was trained: ``[seeds * 5]``."""
    data = folded.data
    if variation.edges != "all":
        kept, graph = masks[variation.edges], data.graph
        smaller = RelationalGraph(
            graph.edge_index[:, kept],
            graph.edge_type[kept],
            num_nodes=graph.num_nodes,
            num_relations=graph.num_relations,
        )
        folded = dataclasses.replace(folded, data=dataclasses.replace(data, graph=smaller))
    options, settings = split_config(variation.config)
    epochs = variation.longest * settings.max_epochs
    settings = dataclasses.replace(settings, max_epochs=epochs, patience=epochs)
    numbers = range(FOLDS * FIRST_DRAW, FOLDS * (FIRST_DRAW + seeds))
    folds, own_seeds = [folded.fold(number) for number in numbers], [FIRST_SEED + number for number in numbers]
    models = []
    for fold, seed in zip(folds, own_seeds, strict=True):
        model = build_model(fold, seed, **options)
        if variation.change is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                variation.change(model, fold, variation.config)
        models.append(model.to(device))
    results = fit_many(models, folds, settings, own_seeds)
    return [[(e.valid_loss, e.valid_metric) for e in result.curve] for result in results], results[0].how


def at_epoch(curves, epoch):
    return [curve[min(epoch, len(curve)) - 1][1] for curve in curves]


def at_own_epochs(curves, horizon):
    return [min(curve[:horizon], key=lambda point: (point[0], -point[1]))[1] for curve in curves]


def by_seed(accuracies):
    """Return the mean over the folds of each seed."""
    return [statistics.mean(accuracies[k : k + FOLDS]) for k in range(0, len(accuracies), FOLDS)]


def score(variation, curves):
    """Return the rows of a variation: name, and accuracy by seed at common and own epochs."""
    epochs = variation.config["max_epochs"]
    own = by_seed(at_own_epochs(curves, OWN_HORIZON * epochs))
    rows = {variation.name: {"epochs": epochs, "common": by_seed(at_epoch(curves, epochs)), "own": own}}
    if variation.longest > OWN_HORIZON:
        for words, factor in FACTORS.items():
            number = math.ceil(factor * epochs)
            rows[words] = {"epochs": number, "common": by_seed(at_epoch(curves, number)), "own": None}
    return rows


def differ(scores, base):
    """Return mean difference and half width of its interval, in points."""
    differences = [100 * (a - b) for a, b in zip(scores, base, strict=True)]
    if len(differences) < 2:
        return differences[0], math.nan
    half = student.ppf(0.975, len(differences) - 1) * statistics.stdev(differences) / len(differences) ** 0.5
    return statistics.mean(differences), float(half)


def print_table(model, rows):
    print(f"\n| {model} | epochs | common epochs, % | difference | own epochs, % | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    base = rows["as selected"]
    for name, row in rows.items():
        cells = [name, str(row["epochs"])]
        for word in ("common", "own"):
            if row[word] is None:
                cells += ["", ""]
                continue
            mean, half = differ(row[word], base[word])
            cells += [f"{100 * statistics.mean(row[word]):.1f}", "" if row is base else f"{mean:+.1f} ± {half:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def variations_of(data, folder, model):
    """Return the variations of a model by their names."""
    folded, _, settings = read_prepared(data, folder)
    num_train = len(folded.data.train) * (FOLDS - 1) // FOLDS
    return {each.name: each for each in find_variations(settings[model], num_train, len(folded.data.classes))}


def run(model, name, options):
    """Train a variation; return its rows and what to say about it."""
    folded, masks, _ = read_prepared(options.data, options.prepared)
    began = time.perf_counter()
    variation = variations_of(options.data, options.prepared, model)[name]
    curves, how = train(variation, folded, masks, options.seeds, options.device)
    if options.device != "cpu":
        torch.cuda.empty_cache()  # other processes need the memory
    return score(variation, curves), f"{time.perf_counter() - began:.0f} s, {how}"


def run_all(jobs, options):
    """Yield each pair of a model and a variation with what `run` returns, as they finish; skip those that fail."""
    if options.workers == 1:
        yield from ((job, run(*job, options)) for job in jobs)
        return
    with WorkerPool(options.workers, torch.set_num_threads, 1) as pool:
        futures = {pool.submit(run, *job, options): job for job in jobs}
        for future in as_completed(futures):
            error = future.exception()
            if error is None:
                yield futures[future], future.result()
            else:  # too little memory, for example
                print(f"{': '.join(futures[future])}: {type(error).__name__}: {error}", flush=True)


class Rows:
    """The rows of a model in their fixed order, kept in a file if there is one."""

    def __init__(self, model, options):
        self.about = {"data": options.data, "model": model, "seeds": options.seeds, "folds": FOLDS}
        self.path = None if options.out is None else options.out / f"{options.data}-{model}.json"
        self.names = list(variations_of(options.data, options.prepared, model))
        is_new = self.path is None or not self.path.exists()
        written = dict(self.about) if is_new else json.loads(self.path.read_text())
        self.found = written.pop("rows", {})
        if written != self.about:
            raise SystemExit(
                f"{self.path} must be of {options.seeds} seeds, got {written['seeds']}; choose another folder"
            )

    def missing(self, only):
        """Return the variations without figures, of all or of the setting itself and ``only`` some."""
        wanted = [name for name in self.names if not only or name == self.names[0] or name in only]
        return [name for name in wanted if name not in self.found]

    def add(self, rows):
        """Add the rows of a variation, and write the file."""
        found = self.found | rows
        order = [self.names[0], *FACTORS, *self.names[1:]]
        self.found = {name: found[name] for name in order if name in found}
        if self.path is not None:
            write_atomically(self.path, (json.dumps(self.about | {"rows": self.found}, indent=1) + "\n").encode())


def vary(options):
    """Train the variations that have no figures yet; return the figures of all, by model."""
    tables = {model: Rows(model, options) for model in options.models}
    jobs = [(model, name) for model, table in tables.items() for name in table.missing(options.only)]
    for (model, name), (rows, words) in run_all(jobs, options):
        tables[model].add(rows)
        print(f"{model}: {name}: {words}", flush=True)
    return {model: table.found for model, table in tables.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mutag", choices=["aifb", "mutag"])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--only", nargs="+", help="the names of some variations; the selected setting always runs")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with one thread if there are several")
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="write data and settings, and stop")
    parser.add_argument("--prepared", type=Path, metavar="FOLDER", help="read data and settings")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write a file per model, and leave out what it has")
    options = parser.parse_args()
    if options.prepare is not None:
        prepare(options.data, options.prepare)
        return
    if options.prepared is None:
        parser.error("--prepared FOLDER must be given; write it with --prepare FOLDER")
    for model, rows in vary(options).items():
        if "as selected" in rows:
            print_table(model, rows)


if __name__ == "__main__":
    main()
