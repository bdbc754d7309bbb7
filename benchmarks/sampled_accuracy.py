"""Compare sampled training with training on the whole graph: test accuracy over the same random seeds.

Each run takes the selected setting of `configs/`, trains on the whole training part for the setting's number of epochs
and is scored with all edges. The difference is paired by seed; its 95 % interval is Student's.

    python benchmarks/sampled_accuracy.py --seeds 20 --out benchmarks/results/sampled_accuracy.json
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from scipy.stats import t as student

import rgat.data
from rgat.training import build_model, fit
from rgat.training.configuration import read_config, split_config

CONFIGS = Path(__file__).parent.parent / "configs"


def accuracies(data, config, fanouts, seeds, batch_size):
    options, settings = split_config(config)
    settings = replace(settings, patience=None, fanouts=fanouts, batch_size=batch_size)
    scores = []
    for seed in range(seeds):
        model = build_model(data, seed, **options)
        scores.append(fit(model, data, settings, seed).scores["test"])
    return scores


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["aifb", "mutag"])
    parser.add_argument("--models", nargs="+", default=["additive-wirgat", "rgcn"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1024, help="training nodes per step")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows = []
    for name in options.data:
        data = rgat.data.load(name)
        for model in options.models:
            config = read_config(CONFIGS / name / f"{model}.toml")
            full = accuracies(data, config, None, options.seeds, options.batch_size)
            row = {"data": name, "model": model, "seeds": options.seeds, "full": full}
            for fanouts in ((10, 10), (5, 5)):
                sampled = accuracies(data, config, fanouts, options.seeds, options.batch_size)
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
