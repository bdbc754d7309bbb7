"""Compare what simple models and our model learn from a knowledge graph with literals, on folds of the training part.

    python benchmarks/folds_of_literals.py simple     # this and the next need scikit-learn
    python benchmarks/folds_of_literals.py kernel
    python benchmarks/folds_of_literals.py ours

All scores are accuracies on held-out folds: draws of five folds that no search uses. The test part is not read.
"""

import argparse
import dataclasses
import statistics
from collections import Counter

import numpy as np
import torch

from rgat.baselines import min_max
from rgat.data import load
from rgat.experiments.folds import NUM_FOLDS, fold_data
from rgat.experiments.inputs import feature_groups, select_inputs, without_inputs
from rgat.experiments.neighbours import neighbour_columns
from rgat.experiments.variants import build_variant
from rgat.training import fit_many
from rgat.training.configuration import split_config

FEWEST = 5  # nodes that have a label
FIRST_DRAW = 100  # of folds; a search has those from 0 on
BASE = {
    "layer": "rgcn", "hidden_channels": 8, "features": "types,literals", "learning_rate": 0.01,
    "kernel_l2_1": 0.01, "kernel_l2_2": 0.01, "max_epochs": 100, "patience": None,
}  # fmt: skip
WIDE = {"wide": True, "wide_l1": 0.02}
OURS = {
    "neither": {},
    "with neighbours": {"neighbours": True},
    "wide": WIDE,
    "with neighbours, wide": {"neighbours": True, **WIDE},
    "with neighbours, wide, without literals": {"neighbours": True, **WIDE, "features": "types"},
}


def numbers_of(draws):
    size = NUM_FOLDS["node"]
    return range(size * FIRST_DRAW, size * (FIRST_DRAW + draws))


def show(name, columns, accuracies, draws):
    means = [100 * float(np.mean(part)) for part in np.array_split(accuracies, draws)]
    error = statistics.stdev(means) / draws**0.5 if draws > 1 else float("nan")
    print(f"| {name} | {columns} | {statistics.mean(means):.1f} ± {error:.1f} |", flush=True)


def neighbour_sums(data, x):
    """Return log1p of the sums of the neighbours' features by each relation, of the training nodes."""
    source, target = data.graph.edge_index
    sums = []
    for relation in range(data.graph.num_relations):
        chosen = (data.graph.edge_type == relation) & (source != target)
        each = torch.zeros_like(x).index_add_(0, target[chosen], x[source[chosen]])[data.train]
        sums.append(each[:, each.std(0) > 0])
    joined = torch.cat(sums, dim=1)
    return np.unique((joined.sign() * joined.abs().log1p()).numpy(), axis=1)


def relabelled(data, labels):
    """Return labels of the nodes that tell their own label and those of their neighbours by relation, one-hot.

    It is one round of Weisfeiler and Lehman's; labels that few nodes have are left out.
    """
    around = [[] for _ in range(data.graph.num_nodes)]
    (sources, targets), relations = data.graph.edge_index.tolist(), data.graph.edge_type.tolist()
    for source, target, relation in zip(sources, targets, relations, strict=True):
        around[target].append((relation, labels[source]))
    found = [(label, tuple(sorted(others))) for label, others in zip(labels, around, strict=True)]
    number = {label: column for column, (label, count) in enumerate(Counter(found).most_common()) if count >= FEWEST}
    columns = torch.tensor([number.get(label, len(number)) for label in found])
    return torch.nn.functional.one_hot(columns, len(number) + 1)[:, :-1].float()


def simple(folded, draws):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data, groups = folded.data, feature_groups(folded.data)
    x = {name: data.x[:, place] for name, place in groups.items()}
    both = torch.cat([x["types"], x["literals"]], dim=1)
    own, degrees = (x[name][data.train].numpy() for name in ("literals", "degrees"))
    cut = neighbour_columns(dataclasses.replace(data, x=both))[data.train].numpy()
    types = neighbour_sums(data, x["types"])
    pairs = neighbour_sums(data, relabelled(data, x["types"].argmax(1).tolist()))
    inputs = {
        "own literals": own,
        "degrees": degrees,
        "types of neighbours": types,
        "the same, and types of their neighbours": np.concatenate([types, pairs], axis=1),
        "types and literals of neighbours": neighbour_sums(data, both),
        "the same, cut at thresholds": cut,
        "the same, and own literals": np.concatenate([cut, own], axis=1),
    }
    models = {
        "logistic regression, L2": LogisticRegression(C=0.01, max_iter=1000),
        "logistic regression, L1": LogisticRegression(C=0.1, l1_ratio=1.0, solver="liblinear"),
        "random forest": RandomForestClassifier(200, random_state=0),
    }
    row_of = {node: row for row, node in enumerate(data.train.tolist())}
    for words, columns in inputs.items():
        for name, model in models.items():
            model, scores = make_pipeline(StandardScaler(), model), []
            for number in numbers_of(draws):
                train, valid = ([row_of[node] for node in ids.tolist()] for ids in folded.fold_ids(number))
                labels = data.labels[data.train].numpy()
                model.fit(columns[train], labels[train])
                scores.append(model.score(columns[valid], labels[valid]))
            show(f"{words}: {name}", columns.shape[1], scores, draws)


def kernel(folded, draws):
    def score(name, data, iterations):
        folds = [dataclasses.replace(folded, data=data).fold(number) for number in numbers_of(draws)]
        scores = [min_max.run(fold, iterations=iterations).scores(fold)["valid"] for fold in folds]
        show(f"min-max kernel, {name}", "", scores, draws)

    for count in min_max.ITERATIONS:
        score(f"iterations: {count}", folded.data, (count,))
    score("iterations by cross-validation", folded.data, min_max.ITERATIONS)
    if "literals" in feature_groups(folded.data):
        without = select_inputs(folded.data, {"features": "types,degrees"})
        score("iterations by cross-validation, without literals", without, min_max.ITERATIONS)
        for whose, data in without_literals_of(folded.data).items():
            score(f"iterations by cross-validation, without literals of {whose}", data, min_max.ITERATIONS)


def without_literals_of(data):
    """Return the data without the literals of the labelled nodes, and without those of the others."""
    literals, labelled = feature_groups(data)["literals"], torch.zeros(len(data.x), dtype=torch.bool)
    labelled[torch.cat([data.train, data.valid, data.test])] = True
    results = {}
    for whose, nodes in (("labelled nodes", labelled), ("other nodes", ~labelled)):
        x = data.x.clone()
        x[nodes, literals] = 0
        results[whose] = dataclasses.replace(data, x=x)
    return results


def ours(folded, draws):
    for name, change in OURS.items():
        config = BASE | change
        chosen = dataclasses.replace(folded, data=select_inputs(folded.data, config))
        options, settings = split_config(without_inputs(config))
        folds = [chosen.fold(number) for number in numbers_of(draws)]
        models = [build_variant(fold, seed, **options) for seed, fold in enumerate(folds)]
        results = fit_many(models, folds, settings, list(range(len(folds))))
        show(name, chosen.data.x.shape[1], [result.scores["valid"] for result in results], draws)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", choices=("simple", "kernel", "ours"))
    names = ("mutag-literals", "aifb-literals", "mutag", "aifb")
    parser.add_argument("--data", default="mutag-literals", choices=names, help="the last two only with the kernel")
    parser.add_argument("--draws", type=int, default=4)
    options = parser.parse_args()
    if options.models != "kernel" and not options.data.endswith("literals"):
        parser.error(
            f"--data must have literals for {options.models}, got {options.data}; give {options.data}-literals"
        )
    torch.set_num_threads(1)
    print("| input | columns | accuracy on folds, % |\n| --- | ---: | ---: |")
    {"simple": simple, "kernel": kernel, "ours": ours}[options.models](fold_data(load(options.data)), options.draws)


if __name__ == "__main__":
    main()
