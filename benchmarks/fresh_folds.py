"""Score the best trials of a finished search again, on folds that the search did not use, and select by these.

The best of 200 trials on five folds is partly the luckiest one. Here the ten best of each model, at the common number
of epochs (`retraining_epochs.py`), are trained again from new seeds on ten further folds of the training part, as final
runs are: no early stopping, as many epochs as the retraining has. The mean accuracy on these ten folds selects.

    python benchmarks/fresh_folds.py results/mutag.records.gz --out benchmarks/results/fresh_folds/mutag.json \
        --configs build/fresh

It needs the data files, can be interrupted (what `--out` has is left out), and prints a table. `--configs` writes the
selected trial of each model as a file for `rgat reproduce --config FILE`, in the setting `fresh-folds`.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from retraining_epochs import at_common_epochs, final_config, write_config

import rgat.data
from rgat.data.files import write_atomically
from rgat.experiments.folds import NUM_FOLDS, fold_data
from rgat.experiments.records import read_experiment
from rgat.training import build_model, fit_many
from rgat.training.configuration import split_config
from rgat.training.search import retrain_epochs

TOP = 10  # trials of a model
# The paper's searches used the draw 0 of five folds, the extended ones 0 to 2, `explanations.py` those from 10 on.
FOLDS = range(3 * NUM_FOLDS["node"], 5 * NUM_FOLDS["node"])
FIRST_SEED = 40_000_000  # of models; the searches used those below 10**6


def best_trials(trials):
    """Return the best trials at the common number of epochs."""
    done = [trial for trial in trials if trial["status"] == "done"]
    return sorted(done, key=lambda trial: (-at_common_epochs(trial), trial["tie_breaker"], trial["trial"]))[:TOP]


def rehearse(trial, folded):
    """Train as the final runs would on each fold; return the accuracies, 0 where the loss was lost."""
    options, settings = split_config(final_config(trial))
    seeds = [FIRST_SEED + 1000 * trial["trial"] + number for number in FOLDS]
    folds = [folded.fold(number) for number in FOLDS]
    models = [build_model(fold, seed, **options) for fold, seed in zip(folds, seeds, strict=True)]
    results = fit_many(models, folds, settings, seeds)
    return [r.scores["valid"] if r.best_epoch == settings.max_epochs else 0.0 for r in results]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the packed records or the folder of an experiment on nodes")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file of all accuracies")
    parser.add_argument("--configs", type=Path, help="a folder for the selected settings")
    given = parser.parse_args()
    torch.set_num_threads(1)
    experiment = read_experiment(given.records)
    folded = fold_data(rgat.data.load(experiment.description["data"]))
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    models = sorted({record["model"] for record in experiment.records if record["kind"] == "trial"})
    print("| model | trial, best at common epochs | there | on fresh folds | trial, best on fresh folds | there |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for model in models:
        all_trials = [r for r in experiment.records if r["kind"] == "trial" and r["model"] == model]
        trials = best_trials(all_trials)
        scores = found.setdefault(model, {})
        for trial in trials:
            if str(trial["trial"]) not in scores:
                scores[str(trial["trial"])] = rehearse(trial, folded)
                write_atomically(given.out, (json.dumps(found, indent=1) + "\n").encode())
        fresh = {trial["trial"]: statistics.mean(scores[str(trial["trial"])]) for trial in trials}
        first, best = trials[0], min(trials, key=lambda trial: (-fresh[trial["trial"]], trials.index(trial)))
        cells = [model, first["trial"], f"{100 * at_common_epochs(first):.1f}", f"{100 * fresh[first['trial']]:.1f}"]
        cells += [best["trial"], f"{100 * fresh[best['trial']]:.1f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        if given.configs is not None:
            sentence = (
                f"trial {best['trial']} of {len(all_trials)}, by mean validation accuracy over {len(FOLDS)} folds that "
                f"the search did not use, among the {TOP} best of the search, without test data, after "
                f"{retrain_epochs(best)} epochs ({fresh[best['trial']]:.4f})"
            )
            write_config(given.configs, model, best, "fresh-folds", sentence)


if __name__ == "__main__":
    main()
