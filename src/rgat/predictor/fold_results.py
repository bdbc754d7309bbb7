"""Results of cross-validation, kept in the folder of a fit until it is complete, and what the fit was asked for."""

from __future__ import annotations

import copy
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.data.files import read_whole, write_atomically
from rgat.training import has_checkpoint, load_checkpoint, save_checkpoint
from rgat.training.checkpoint import digest, digest_data, remove_checkpoint
from rgat.training.distributed import processes, under_torchrun
from rgat.training.loop import Data
from rgat.training.run import Epoch, curve_from_json, curve_to_json

FOLDS, FIT = "folds", "fit.json"  # files of a fit in its folder
COMPARED = "compared"  # entry of `FIT`: inputs and models are compared
DISTANCES, CURVE = ".distances", ".curve"  # behind the key of a fold's tensor
_LARGEST = 1 << 20  # bytes of `FIT`


class FoldResults:
    """The best epoch of each fold's model, its learning curve and its held-out logits, by configuration and fold.

    They are stored under a digest of everything that they depend on, so those of another data set, seed or
    configuration are never returned. Without a folder they live in memory alone.
    """

    def __init__(self, folder: Path | None, data: Data, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.data = {} if folder is None else digest_data(data)
        self.points: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}  # logits, distances and validated points of the curves
        if folder is not None and has_checkpoint(folder, FOLDS):
            self.tensors, record = load_checkpoint(folder, FOLDS)
            self.points = record["points"]

    def of(self, data: Data, kind: str) -> FoldResults:
        """Return the results of another input of the same graph; all are written together."""
        other = copy.copy(self)
        other.data = {"input": kind} | ({} if self.folder is None else digest_data(data))
        return other

    def check_same_fit(self, options: Mapping[str, Any]) -> None:
        """Note the data and options of the fit in the folder; raise if the folder has those of another one.

        Only ``max_epochs`` may differ.
        """
        if self.folder is None:
            return
        path = self.folder / FIT
        ours: dict[str, Any] = json.loads(json.dumps({**options, "data": digest(self.data)}))
        if path.exists():
            try:
                theirs: dict[str, Any] = json.loads(read_whole(path, _LARGEST))
                other = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
            except (OSError, ValueError, AttributeError, TypeError) as error:
                raise ValueError(f"{path} must describe a fit, but is damaged; choose another folder") from error
            for name in (name for name in other if name != "max_epochs"):
                if name == COMPARED:
                    raise ValueError(
                        f"the fit in {self.folder} compares inputs and models, which one process does; "
                        "continue it without `torchrun`, or choose another folder"
                    )
                difference = f"its `{name}` is {theirs.get(name)!r}, not {ours.get(name)!r}"
                raise ValueError(
                    f"the fit in {self.folder} must be resumed with the same data and options, but "
                    f"{'it has other data' if name == 'data' else difference}; "
                    "use those of the first call, or choose another folder"
                )
        if processes().rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(ours, indent=1).encode())

    def forget_fit(self) -> None:
        """Remove what a fit that failed has left, so that it can be started again with other options."""
        if self.folder is not None and processes().rank == 0:
            (self.folder / FIT).unlink(missing_ok=True)
            remove_checkpoint(self.folder)
        self.remove()

    def _key(self, config: Mapping[str, Any], fold: int) -> str:
        return digest([self.data, self.seed, sorted(config.items()), fold])

    def get(self, config: Mapping[str, Any], fold: int) -> tuple[Epoch, Tensor | None] | None:
        """Return the best epoch of a fold's model and its held-out logits; None if the fold is not finished."""
        key = self._key(config, fold)
        return (curve_from_json([self.points[key]])[0], self.tensors.get(key)) if key in self.points else None

    def points_at(self, epoch: int, config: Mapping[str, Any], folds: Sequence[int]) -> list[Epoch]:
        """Return a point of each fold's learning curve: the last validated one up to an epoch.

        It is the best one where no curve was kept, as in a fit that an earlier version began.
        """
        points = []
        for fold in folds:
            key = self._key(config, fold)
            curve = self.tensors.get(f"{key}{CURVE}", torch.zeros(0, 3))
            known = curve[curve[:, 0] <= epoch]
            if len(known):
                number, loss, metric = known[-1].tolist()
                points.append(Epoch(int(number), math.nan, loss, metric))
            else:
                points.append(curve_from_json([self.points[key]])[0])
        return points

    def distances(self, config: Mapping[str, Any], num_folds: int) -> Tensor:
        """Return the distances of held-out nodes to the training nodes of their folds; earlier versions kept none."""
        keys = (f"{self._key(config, fold)}{DISTANCES}" for fold in range(num_folds))
        return torch.cat([torch.empty(0), *(self.tensors[key] for key in keys if key in self.tensors)])

    def add(
        self,
        config: Mapping[str, Any],
        fold: int,
        best: Epoch,
        curve: Sequence[Epoch],
        logits: Tensor | None,
        distances: Tensor | None = None,
    ) -> None:
        """Add a finished fold; `write` puts it into the folder."""
        key = self._key(config, fold)
        (self.points[key],) = curve_to_json([best])
        validated = [(point.epoch, point.valid_loss, point.valid_metric) for point in curve]
        validated = [point for point in validated if not math.isnan(point[1])]
        self.tensors[f"{key}{CURVE}"] = torch.tensor(validated, dtype=torch.float64).reshape(-1, 3)
        if logits is not None:
            self.tensors[key] = logits
        if distances is not None:
            self.tensors[f"{key}{DISTANCES}"] = distances

    def write(self) -> None:
        """Write all finished folds to the folder, if there is one."""
        if self.folder is not None and processes().rank == 0:
            save_checkpoint(self.folder, self.tensors, {"points": self.points}, FOLDS)

    def remove(self) -> None:
        """Remove the file of a fit that is complete."""
        if self.folder is not None and processes().rank == 0:
            remove_checkpoint(self.folder, FOLDS)


def mean_of(points: Sequence[Epoch], name: str) -> float:
    """Return the mean of a score over the folds."""
    return mean_known([getattr(point, name) for point in points])


def mean_known(scores: Sequence[float]) -> float:
    """Return the mean of the scores that are defined; a fold may have one label only."""
    known = [score for score in scores if not math.isnan(score)]
    return float(statistics.mean(known)) if known else math.nan


def may_compare(folder: Path | None) -> bool:
    """Return whether a fit may choose among inputs and models: not in several processes, nor one that began so."""
    if under_torchrun() or processes().number > 1:
        return False
    try:
        return folder is None or COMPARED in json.loads(read_whole(folder / FIT, _LARGEST))
    except (OSError, ValueError, TypeError):
        return True  # there is none, or the fit itself says what is wrong with it


def resumed_sampling(folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return how an interrupted fit sampled, which may have followed from the memory that was free then."""
    try:
        asked = json.loads(read_whole(folder / FIT, _LARGEST))
        return {name: asked[name] for name in ("fanouts", "embedding_channels") if name in asked.keys() - options}
    except (OSError, ValueError, TypeError):
        return {}  # there is none, or the fit itself says what is wrong with it
