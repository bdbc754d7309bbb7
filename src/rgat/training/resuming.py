"""Write the checkpoints of a training, and resume from one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rgat.training.checkpoint import has_checkpoint, load_checkpoint, run_difference, save_checkpoint
from rgat.training.distributed import processes
from rgat.training.embeddings import SHARDED_TENSORS
from rgat.training.run import curve_from_json, curve_to_json


class Checkpoints:
    """Writes the checkpoints of a `rgat.training.loop.Training`, after resuming from the one in the folder."""

    def __init__(self, folder: Path, seconds: float, training: Any, identity: dict[str, Any]) -> None:
        self.folder, self.seconds, self.training, self.identity = folder, seconds, training, identity
        self.written = time.monotonic()
        if has_checkpoint(folder):
            self._resume()
        if not processes().agree_on(len(training.runs[0].curve), training.device):
            raise ValueError(
                f"all processes must find the same checkpoint in {folder}, and they do not; put the folder on a drive "
                "that all hosts share"
            )

    def _resume(self) -> None:
        training, folder = self.training, self.folder
        tensors, record = load_checkpoint(folder, divided=() if training.sharded is None else SHARDED_TENSORS)
        reason = run_difference(self.identity, record)
        if reason is not None:
            raise ValueError(
                f"the checkpoint in {folder} must be of this run, but {reason}; choose another folder, "
                "or use the data, options and seed of the first call"
            )
        run = training.runs[0]
        training.load(tensors)
        run.best_epoch = record["best_epoch"]
        run.curve = curve_from_json(record["curve"])
        if run.best_epoch:
            run.best_value = tuple(record["best_value"])

    def write(self, is_last: bool) -> None:
        """Write a checkpoint if it is due, or the last one."""
        began, is_first, is_sharded = time.monotonic(), processes().rank == 0, self.training.sharded is not None
        is_due = is_last or began - self.written >= self.seconds
        if is_sharded:  # all processes give their rows
            is_due = processes().as_first(is_due, self.training.device)
        if not is_due or not (is_first or is_sharded):
            return
        run = self.training.runs[0]
        record = {
            **self.identity,
            "epoch": len(run.curve),
            "best_epoch": run.best_epoch,
            "best_value": list(run.best_value) if run.best_epoch else None,
            "curve": curve_to_json(run.curve),
        }
        save_checkpoint(self.folder, self.training.tensors(), record)
        self.written = time.monotonic()
        self.seconds = self.seconds and max(self.seconds, 20 * (self.written - began))  # 5 % of the time at most
