"""Compare what a search selects on with what the retraining then does, on the validation folds alone.

A trial's objective is the mean validation accuracy at each fold's own best epoch. The retraining has no validation
part: it runs for the median of these epochs. So a second number is read off the same curves: the mean validation
accuracy of all folds at that common number of epochs. The test score is the mean over the final runs, where there are
any.

    python benchmarks/retraining_epochs.py results/mutag.records.gz --trials 50 200

With `--configs FOLDER` it also writes the trial that is best at the common number of epochs, for each model, as a file
for `rgat reproduce --config FILE`, in the setting `common-epochs`; those of the project are in `configs/`.
"""

import argparse
import json
import statistics
from pathlib import Path

from rgat.experiments.records import read_experiment
from rgat.training.search import retrain_epochs, select


def at_common_epochs(trial):
    """Return the mean validation accuracy of the folds after the number of epochs of the retraining."""
    epochs = retrain_epochs(trial)
    curves = [fold["curve"]["valid_metric"] for fold in trial["folds"]]
    return statistics.mean(curve[min(epochs, len(curve)) - 1] for curve in curves)


def final_config(trial):
    """Return the configuration of a trial's final runs."""
    return trial["config"] | {"max_epochs": retrain_epochs(trial), "patience": None}


def write_config(folder, model, trial, setting, selected_on):
    """Write the configuration of the final runs of a trial, in a setting of its own."""
    head = {"data": trial["data"], "model": model, "setting": setting, "seeds": 200, "selected_on": selected_on}
    config = final_config(trial)
    lines = [f"{key} = {json.dumps(value)}" for key, value in head.items()] + ["", "[config]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in config.items() if value is not None]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{trial['data']}-{model.lower().replace(' ', '-')}.toml"
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the packed records or the folder of an experiment")
    parser.add_argument("--trials", type=int, nargs="+", default=[50, 200], help="the first trials of each search")
    parser.add_argument("--configs", type=Path, help="a folder for the settings that are best at common epochs")
    options = parser.parse_args()
    records = read_experiment(options.records).records
    models = sorted({record["model"] for record in records if record["kind"] == "trial"})
    print("| model | trials | selected by | trial | epochs | at own epochs | at common epochs | test, 200 seeds |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for model in models:
        runs = [r for r in records if r["kind"] == "run" and r["model"] == model]
        for number in options.trials:
            trials = [r for r in records if r["kind"] == "trial" and r["model"] == model and r["trial"] < number]
            if len(trials) < number:
                continue
            done = [trial for trial in trials if trial["status"] == "done"]
            common = min(done, key=lambda trial: (-at_common_epochs(trial), trial["tie_breaker"], trial["trial"]))
            if options.configs is not None and number == max(options.trials):
                sentence = (
                    f"trial {common['trial']} of {number}, by mean validation accuracy over {len(common['folds'])} "
                    f"folds without test data, all at {retrain_epochs(common)} epochs, the folds' median "
                    f"({at_common_epochs(common):.4f})"
                )
                write_config(options.configs, model, common, "common-epochs", sentence)
            for rule, best in (("own epochs", select(trials)), ("common epochs", common)):
                epochs = retrain_epochs(best)
                config = final_config(best)
                scores = [run["scores"]["test"] for run in runs if run["config"] == config]
                test = f"{100 * statistics.mean(scores):.2f}" if scores else ""
                own, shared = 100 * best["objective"], 100 * at_common_epochs(best)
                print(
                    f"| {model} | {number} | {rule} | {best['trial']} | {epochs} | {own:.1f} | {shared:.1f} | {test} |"
                )


if __name__ == "__main__":
    main()
