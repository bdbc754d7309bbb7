"""Generate synthetic records with known true means."""

import numpy as np
import torch

from rgat.experiments.records import open_experiment, pack_array, unpack_array, write_record
from rgat.training.configuration import VARIANTS
from rgat.training.metric import confusion_matrix, score_classes

# Test accuracy with attention, with constant attention, and their spread over seeds.
PAPER_LIKE = {
    "RGCN": (0.946, None, 0.0275),
    "additive WIRGAT": (0.968, 0.968, 0.01),
    "additive ARGAT": (0.930, 0.905, 0.02),
    "multiplicative WIRGAT": (0.915, 0.935, 0.02),
    "multiplicative ARGAT": (0.957, 0.945, 0.015),
}
EQUAL = {model: (0.9, None if model == "RGCN" else 0.9, 0.02) for model in VARIANTS}
VERSIONS = {"versions": {"rgat": "0.1.0", "torch": "2.13.0", "python": "3.12.1"}, "device": "cpu (x86_64)"}


def describe(data="aifb", task="node", budget="paper", seeds=30, trials=40, **more):
    """Return the description of an experiment."""
    described = {
        "data": data,
        "task": task,
        "metric": "accuracy" if task == "node" else "mean ROC-AUC",
        "budget": budget,
        "trials": trials,
        "seeds": seeds,
        "folds": 5 if task == "node" else 2,
        "search_seed": 0,
        "data_hashes": {f"{data}.nt": "ab" * 32},
    }
    if task == "node":
        rng = np.random.default_rng(7)
        described |= {"classes": list("abcd"), "majority": 0.42, "test_labels": {"": rng.integers(0, 4, 36).tolist()}}
    else:
        rng = np.random.default_rng(7)
        labels = {split: rng.integers(-1, 2, (60, 3)).tolist() for split in ("122", "123", "124")}
        described |= {"tasks": ["NR-AR", "NR-AhR", "SR-p53"], "test_labels": labels}
    return described | more


def node_outputs(rng, labels, accuracy):
    """Return logits with about the given accuracy."""
    labels = np.array(labels)
    named = np.where(rng.random(len(labels)) < accuracy, labels, (labels + 1) % 4)
    return pack_array(np.eye(4)[named] * 3)


def class_scores(outputs, labels):
    """Return the scores of the classes that follow from packed logits."""
    predicted = torch.from_numpy(unpack_array(outputs)).argmax(-1)
    return {"test": score_classes(confusion_matrix(torch.tensor(labels), predicted, 4))}


def graph_outputs(rng, labels, auc):
    """Return logits with about the given ROC-AUC."""
    labels = np.array(labels)
    shift = np.where(labels == 1, 1.0, 0.0) * 4 * (auc - 0.5)
    logits = np.stack([np.zeros(labels.shape), shift + rng.normal(size=labels.shape)], -1)
    return pack_array(logits)


def run_record(model, seed, score, constant, description, split=None, setting=None, rng=None):
    """Return the record of one final run, with all fields."""
    rng = rng or np.random.default_rng(seed)
    labels = description["test_labels"]["" if split is None else str(split)]
    outputs = node_outputs if description["task"] == "node" else graph_outputs
    tasks = {task: score + 0.01 * i for i, task in enumerate(description.get("tasks", []))}
    test = outputs(rng, labels, score)
    epochs = 20 + seed % 5
    return {
        "kind": "run",
        "data": description["data"],
        "budget": description["budget"],
        "model": model,
        "setting": setting,
        "seed": seed,
        "split": split,
        "status": "done",
        "config": {"hidden_channels": 16, "heads": 1, "learning_rate": 0.01, "num_bases": None},
        "selected_on": "mean validation metric of the search",
        "best_epoch": epochs,
        "curve": {
            "train_loss": [2.0 * 0.85**e + 0.01 for e in range(epochs)],
            "valid_loss": [2.0 * 0.9**e + 0.2 for e in range(epochs)],
            "valid_metric": [score * (1 - 0.8**e) for e in range(1, epochs + 1)],
        },
        "scores": {"train": min(1.0, score + 0.03), "valid": score, "test": score},
        "constant_scores": None
        if constant is None
        else {"train": min(1.0, constant + 0.03), "valid": constant, "test": constant},
        "task_scores": {"test": tasks} if tasks else None,
        "constant_task_scores": {"test": tasks} if tasks and constant is not None else None,
        "outputs": {"test": test},
        "class_scores": class_scores(test, labels) if description["task"] == "node" else None,
        "constant_outputs": None if constant is None else {"test": outputs(rng, labels, constant)},
        "seconds": 1.5,
        **VERSIONS,
    }


def trial_record(model, number, objective, description, prior=20, status="done", folds=()):
    """Return the record of one trial."""
    rng = np.random.default_rng(number)
    return {
        "kind": "trial",
        "data": description["data"],
        "budget": description["budget"],
        "model": model,
        "setting": None,
        "trial": number,
        "round": number // 10,
        "from_prior": number < prior,
        "status": status,
        "objective": objective,
        "tie_breaker": 0.5,
        "config": {
            "learning_rate": float(10 ** (-5 + 4 * (objective if objective is not None else 0.0))),
            "heads": int(rng.choice([1, 2, 4])),
            "feature_dropout": float(rng.uniform(0, 0.8)),
            "batch_norm": bool(rng.integers(2)),
        },
        "folds": list(folds),
        "seconds": 2.0,
        **VERSIONS,
    }


def write_study(folder, truth=PAPER_LIKE, seeds=30, trials=40, seed=0, baselines=(), exact=False, **description):
    """Write a whole experiment and return its folder; accuracies are multiples of 1/36, as on AIFB, unless exact."""
    described = describe(seeds=seeds, trials=trials, **description)
    node = described["task"] == "node"
    open_experiment(folder, described)
    rng = np.random.default_rng(seed)
    units = [(None, s) for s in range(seeds)] if node else [(p, s) for p in (122, 123, 124) for s in range(seeds)]
    grid = lambda value: round(min(1.0, value) * 36) / 36 if node and not exact else min(1.0, value)
    for model, (mean, constant, spread) in truth.items():
        for split, number in units:
            score = grid(rng.normal(mean, spread))
            other = None if constant is None else grid(score + constant - mean + rng.normal(0, spread / 5))
            write_record(folder, run_record(model, number, score, other, described, split, rng=rng))
        for number in range(trials):
            failed = rng.random() < 0.05
            objective = None if failed else float(np.clip(mean - abs(rng.normal(0, 0.1)), 0, 1))
            status = "failed" if failed else "done"
            write_record(folder, trial_record(model, number, objective, described, status=status))
    for model, mean in dict(baselines).items():
        for split, number in units[:3]:
            write_record(folder, run_record(model, number, grid(mean), None, described, split, rng=rng))
    return folder
