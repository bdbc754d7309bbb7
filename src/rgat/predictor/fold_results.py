"""What a folder keeps of a fit, so that it resumes: which fit it is, and the folds that are finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rgat.data import GraphData, NodeData
from rgat.data.files import read_whole, write_atomically
from rgat.training.checkpoint import NAME as CHECKPOINT
from rgat.training.checkpoint import has_checkpoint, load_checkpoint, remove_checkpoint, save_checkpoint
from rgat.training.distributed import processes
from rgat.training.identity import digest, digest_data
from rgat.training.run import Epoch, curve_from_json, curve_to_json

NAME = "folds"
FIT = "fit.json"
_LARGEST = 1 << 20  # bytes of it


class FoldResults:
    """The best epoch of each fold's model and its held-out logits, by configuration and fold.

    They are stored under a digest of everything that they depend on, so those of another data set, seed or
    configuration are never returned. Without a folder they live in memory alone.
    """

    def __init__(self, folder: Path | None, data: NodeData | GraphData, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.data = {} if folder is None else digest_data(data)
        self.points: dict[str, Any] = {}
        self.logits: dict[str, Tensor] = {}
        if folder is not None and has_checkpoint(folder, NAME):
            self.logits, record = load_checkpoint(folder, NAME)
            self.points = record["points"]

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
            for name in other:
                if name == "max_epochs":
                    continue
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
            remove_checkpoint(self.folder, CHECKPOINT)
        self.remove()

    def _key(self, config: Mapping[str, Any], fold: int) -> str:
        return digest([self.data, self.seed, sorted(config.items()), fold])

    def has(self, config: Mapping[str, Any], fold: int) -> bool:
        """Return whether a fold is finished."""
        return self._key(config, fold) in self.points

    def get(self, config: Mapping[str, Any], fold: int) -> tuple[Epoch, Tensor | None]:
        """Return the best epoch of a fold's model and its held-out logits."""
        key = self._key(config, fold)
        return curve_from_json([self.points[key]])[0], self.logits.get(key)

    def add(self, config: Mapping[str, Any], fold: int, best: Epoch, logits: Tensor | None) -> None:
        """Add a finished fold, and write it to the folder."""
        key = self._key(config, fold)
        (self.points[key],) = curve_to_json([best])
        if logits is not None:
            self.logits[key] = logits
        if self.folder is not None and processes().rank == 0:
            save_checkpoint(self.folder, self.logits, {"points": self.points}, NAME)

    def remove(self) -> None:
        """Remove the file of a fit that is complete."""
        if self.folder is not None and processes().rank == 0:
            remove_checkpoint(self.folder, NAME)
