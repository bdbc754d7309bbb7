r"""Train the selected model of `tox21-distinct`, and the forest, on the validation part too, without early stopping.

MoleculeNet's splits keep a tenth of the molecules for early stopping. Here the models learn from these as well, as the
paper's protocol does with nodes: as many epochs as gave the highest mean ROC-AUC on the folds of the search.

    python benchmarks/whole_training.py results/tox21-distinct-extended.records.gz \
        --out benchmarks/results/whole_training.json

It needs the data file, trains one model at a time and can be interrupted (what `--out` has is left out).
"""

import argparse
import dataclasses
import json
import statistics
from pathlib import Path

import torch

from rgat.baselines import GRAPH_BASELINES
from rgat.data import load
from rgat.data.files import write_atomically
from rgat.experiments.folds import fold_data
from rgat.experiments.inputs import select_inputs, with_descriptors, without_inputs
from rgat.experiments.records import read_experiment
from rgat.experiments.request import FOREST, SELECTED
from rgat.experiments.variants import build_variant
from rgat.training import fit_many, graph_logits, mean_roc_auc
from rgat.training.configuration import split_config
from rgat.training.halving import merge
from rgat.training.search import common_epoch

SEEDS = (0, 1)


def network(data, seed, config):
    data = select_inputs(data, config)
    options, settings = split_config(without_inputs(config))
    model = build_variant(data, seed, **options)
    fit_many([model], [data], settings, [seed])
    return graph_logits(model, data.graphs, data.test, False)


def forest(data, seed, config):
    return GRAPH_BASELINES[FOREST](data, seed, **config).logits["test"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the packed records of the extended search")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file of all scores")
    given = parser.parse_args()
    torch.set_num_threads(1)
    experiment = read_experiment(given.records)
    (declaration,) = (record for record in experiment.records if record["kind"] == "declaration")
    trials = merge([r for r in experiment.records if r["kind"] == "trial" and r["model"] == SELECTED])
    (best,) = (trial for trial in trials if trial["trial"] == declaration["declared"]["selected"]["trial"])
    curves = [fold["curve"]["valid_metric"] for fold in best["folds"]]
    epochs = common_epoch([[-value for value in curve] for curve in curves])  # it looks for the lowest mean
    on_folds = statistics.mean(curve[:epochs][-1] for curve in curves)
    print(f"trial {best['trial']}: {epochs} epochs, {on_folds:.4f} on {len(curves)} folds there", flush=True)
    systems = {
        SELECTED: (network, best["config"] | {"max_epochs": epochs, "patience": None}),
        FOREST: (forest, declaration["declared"]["forest"]["config"]),
    }
    folded = with_descriptors(fold_data(load(experiment.description["data"])))
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name, (run, config) in systems.items():
        scores = found.setdefault(name, {"config": config, "test": {}})["test"]
        for split in folded.splits:
            data = folded.split(split)
            data = dataclasses.replace(data, train=torch.cat([data.train, data.valid]), valid=data.valid[:0])
            for seed in SEEDS:
                key = f"{split}/{seed}"
                if key not in scores:
                    scores[key] = mean_roc_auc(run(data, seed, config), data.labels[data.test])
                    write_atomically(given.out, (json.dumps(found, indent=1) + "\n").encode())
                    print(f"{name}, split {split}, seed {seed}: {scores[key]:.4f}", flush=True)
        values = list(scores.values())
        print(f"{name}: {statistics.mean(values):.4f} +- {statistics.stdev(values):.4f}", flush=True)


if __name__ == "__main__":
    main()
