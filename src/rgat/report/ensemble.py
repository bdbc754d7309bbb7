"""The five models together: the mean of their probabilities on each split, from the outputs in the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rgat.experiments.records import Record, unpack_array
from rgat.training.metric import roc_auc_per_task

ENSEMBLE = "ensemble of the five models"
NOTE = (
    "On each split the mean of the probabilities that all runs of the five models gave to the test part; n counts "
    "splits, and so does its interval. Nothing was trained for it, and nothing selected on validation data: it was put "
    "together after the single models were scored."
)


def ensemble_runs(runs: Sequence[Record], models: Sequence[str], description: dict[str, Any]) -> list[Record]:
    """What all runs of ``models`` on graphs say together: one run for each split on which all of them have outputs."""
    found = []
    tasks = description.get("tasks") or []
    for split, labels in (description.get("test_labels") or {}).items():
        mine = [run for run in runs if run["model"] in models and not run.get("setting") and run["status"] == "done"]
        mine = [run for run in mine if str(run.get("split")) == split]
        outputs = [unpack_array(packed) for run in mine if (packed := (run.get("outputs") or {}).get("test"))]
        shapes = {one.shape for one in outputs}
        if {r["model"] for r in mine} != set(models) or len(outputs) < len(mine) or shapes != {(*np.shape(labels), 2)}:
            continue
        together = torch.stack([torch.from_numpy(one).double().softmax(-1) for one in outputs]).mean(0)
        values = [None if math.isnan(v) else v for v in roc_auc_per_task(together, torch.tensor(labels))]
        if known := [value for value in values if value is not None]:
            scores = {
                "scores": {"test": float(np.mean(known))},
                "task_scores": {"test": dict(zip(tasks, values, strict=False))},
            }
            found.append({"kind": "run", "model": ENSEMBLE, "split": split, "seed": 0, "status": "done"} | scores)
    return found
