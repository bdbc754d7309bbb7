"""Compare what `rgat train` chooses without options with each of the models it chooses among, on the test part.

The default chooses input and model by validation inside the training part. Beside it stand RGCN and the four attention
models, trained in the same way with the chosen input. Built-in and made-up sets are drawn anew for each seed, by seeds
that nothing was chosen with; AIFB and MUTAG have their published split, and the seed is that of the fit. The best
single model is the one with the best mean test score, which favours it; the difference to it is paired by seed, with
Student's 95 % interval.

    python benchmarks/defaults.py --out benchmarks/results/defaults.json

Sets can be run one by one (`--sets aifb --seeds 2`): the file keeps what other runs have written, and the table has
all of it.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t as student

import rgat
from rgat.data import BUILT_IN, GraphData, from_rdf
from rgat.predictor import fitting
from rgat.predictor.choice import config_of
from rgat.predictor.described import AUTO
from rgat.predictor.stages import stage_names
from rgat.predictor.trainer import Trainer
from rgat.predictor.validation import make_folds
from rgat.progress import shown
from rgat.training.configuration import VARIANTS

EX = "http://made-up.example/"
COUNT = 300  # labelled nodes of a made-up set
FIRST_SEED = 900  # no default was chosen with seeds from here on
SHARES = (0.8, 0.0)  # of the training and validation parts, as `rgat train` splits
SEEDS = {"aifb": 3, "mutag": 2}  # of the slow sets


def one_relation(rng):
    """Twelve relations lead to hubs; the hub of the eighth decides, nine times in ten."""
    for _ in range(COUNT):
        hubs = rng.integers(8, size=12)
        yield [(f"relation{r}", f"hub/{hub}") for r, hub in enumerate(hubs)], decided(rng, hubs[7] % 3, 3)


def counting(rng):
    """The number of things that a node owns decides, nine times in ten; how many it rents does not."""
    for _ in range(COUNT):
        owned, rented = rng.integers(1, 9, size=2)
        facts = [("owns", f"thing/{n}") for n in rng.choice(200, owned, replace=False)]
        facts += [("rents", f"thing/{n}") for n in rng.choice(200, rented, replace=False)]
        yield facts, decided(rng, int(owned > 4), 2)


def two_hops(rng):
    """The region of the town where a node's employer is decides, nine times in ten; where its friend lives does not."""
    towns = rng.integers(3, size=15)  # their regions
    firms = rng.integers(15, size=120)  # their towns
    for _ in range(COUNT):
        firm = int(rng.integers(120))
        facts = [("employer", f"firm/{firm}"), ("friend", f"node/{rng.integers(COUNT)}")]
        facts += [("visited", f"town/{town}") for town in rng.integers(15, size=2)]
        facts.append((f"firm/{firm}", "town", f"town/{firms[firm]}"))
        yield facts, decided(rng, towns[firms[firm]], 3)


def decided(rng, number, count):
    return f"class {number if rng.random() < 0.9 else rng.integers(count)}"


MADE_UP = {"one relation of twelve": one_relation, "a count": counting, "two hops": two_hops}
NAMES = (*BUILT_IN, *MADE_UP, "aifb", "mutag")


def make_up(draw, seed):
    """Return a made-up set as `rgat train` would read it from files."""
    lines, labels = set(), ["node\tclass"]
    for number, (facts, label) in enumerate(draw(np.random.default_rng(seed))):
        for fact in facts:
            subject, predicate, value = fact if len(fact) == 3 else (f"node/{number}", *fact)
            lines.add(f"<{EX}{subject}> <{EX}{predicate}> <{EX}{value}> .\n")
        labels.append(f"{EX}node/{number}\t{label}")
    with tempfile.TemporaryDirectory() as folder:
        graph, table = Path(folder) / "graph.nt", Path(folder) / "labels.tsv"
        graph.write_text("".join(sorted(lines)))
        table.write_text("\n".join(labels) + "\n")
        return from_rdf(graph, table, shares=SHARES, seed=seed)


def load(name, seed):
    if name in MADE_UP:
        return make_up(MADE_UP[name], seed)
    return rgat.data.load(name) if name in ("aifb", "mutag") else rgat.data.load(name, seed=seed)


def run_nodes(data, seed):
    """Return the choice of a fit with default options, and validation and test score of each model."""
    folds = make_folds(data, seed)
    with shown(False, stage_names(False, bool(folds), True, True)) as stages:
        trainer = Trainer(data, folds, torch.device("cpu"), seed, stages, None)
        trainer, config, found = fitting._choose(trainer, {}, True, AUTO)  # as `rgat.fit` does
        kind, scores = found["choice"]["input"], {}
        for model in VARIANTS:
            try:
                predictor, valid = trainer.fit(config_of(kind, model, trainer.data, {}), 1)
            except ValueError:  # it diverged
                continue
            scores[model] = {"valid": valid, "test": predictor.report["scores"]["test"]}
    return {"input": kind, "model": config["model"], "default": scores[config["model"]]["test"], "models": scores}


def run_graphs(data, seed):
    default = rgat.fit(data, seed=seed).report
    kind, chosen = default["choice"]["input"], default["selection"]["selected"]
    scores = {}
    for model in VARIANTS:
        report = rgat.fit(data, seed=seed, model=model, descriptors=kind, comparison=False).report
        scores[model] = {"valid": report["training"][0]["scores"]["valid"], "test": report["scores"]["test"]}
    return {"input": kind, "model": chosen, "default": default["scores"]["test"], "models": scores}


def measure(name, seed):
    began, data = time.process_time(), load(name, seed)
    row = run_graphs(data, seed) if isinstance(data, GraphData) else run_nodes(data, seed)
    seconds = time.process_time() - began
    print(f"{name}, seed {seed}: {row['input']}, {row['model']}, {row['default']:.3f} ({seconds:.0f} s)", flush=True)
    return row | {"seed": seed, "cpu_seconds": seconds}


def interval(differences):
    """Return the half width of the 95 % interval of the mean."""
    if len(differences) < 2:
        return math.nan
    spread = statistics.stdev(differences) / len(differences) ** 0.5
    return float(student.ppf(0.975, len(differences) - 1) * spread)


def table_row(name, runs):
    means = {
        model: statistics.mean(run["models"][model]["test"] for run in runs)
        for model in VARIANTS
        if all(model in run["models"] for run in runs)
    }
    best = max(means, key=means.__getitem__)
    differences = [100 * (run["default"] - run["models"][best]["test"]) for run in runs]
    chosen = [run["model"] for run in runs]
    choices = ", ".join(f"{model} {chosen.count(model)}" for model in VARIANTS if model in chosen)
    default, mean, half = statistics.mean(run["default"] for run in runs), statistics.mean(differences), None
    half = interval(differences)
    cells = [name, str(len(runs)), f"{100 * default:.1f}"]
    cells += [f"{100 * means[model]:.1f}" if model in means else "diverged" for model in VARIANTS]
    return "| " + " | ".join([*cells, f"{mean:+.1f} ± {half:.1f}", choices]) + " |"


def print_table(rows):
    print(f"| set | seeds | default | {' | '.join(VARIANTS)} | default - best | chosen |")
    print("| --- | ---: | ---: |" + " ---: |" * (len(VARIANTS) + 1) + " --- |")
    for name in (name for name in NAMES if rows.get(name)):
        print(table_row(name, rows[name]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--seeds", type=int, help="number of seeds (default: 10, AIFB 3, MUTAG 2)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/defaults.json"))
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.sets:
        for number in range(options.seeds or SEEDS.get(name, 10)):
            done = rows.setdefault(name, [])
            if FIRST_SEED + number not in [run["seed"] for run in done]:
                done.append(measure(name, FIRST_SEED + number))
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
