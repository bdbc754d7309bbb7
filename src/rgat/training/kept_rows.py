"""Keep a large table of embeddings in a file: the rows of the best epoch need no second table in memory."""

from __future__ import annotations

import errno
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rgat.training.embeddings import row_ranges

LARGE = 2**26  # bytes of a table, from which a copy of it is kept in a file


class KeptRows:
    """A copy of a table in a file without a name, which is written and read in blocks and goes with this object.

    Args:
        table: the rows to keep, on the CPU.
        folder: where to put the file; by default the system's folder for temporary files.
    """

    def __init__(self, table: Tensor, folder: Path | None) -> None:
        self.shape, self.dtype = table.shape, table.dtype
        self.folder = folder or Path(tempfile.gettempdir())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  (closed below)
        except OSError as error:
            raise self._refusal(error) from error
        weakref.finalize(self, self.file.close)
        self.copy_(table)

    def copy_(self, table: Tensor) -> None:
        """Take other rows."""
        try:
            self.file.seek(0)
            for start, end in row_ranges(*table.shape):
                self.file.write(_as_bytes(table.detach()[start:end].contiguous()))
            self.file.flush()
        except OSError as error:
            raise self._refusal(error) from error

    def blocks(self) -> Iterator[Tensor]:
        """Yield the rows in blocks."""
        try:
            self.file.seek(0)
            for start, end in row_ranges(*self.shape):
                rows = torch.empty(end - start, self.shape[1], dtype=self.dtype)
                if self.file.readinto(_as_bytes(rows)) != rows.nbytes:
                    raise OSError(errno.EIO, "the file has been cut")
                yield rows
        except OSError as error:
            raise self._refusal(error) from error

    def copy_to(self, table: Tensor) -> None:
        """Write the rows into a table."""
        done = 0
        for rows in self.blocks():
            table[done : done + len(rows)] = rows
            done += len(rows)

    def _refusal(self, error: OSError) -> ValueError:
        size = self.shape.numel() * self.dtype.itemsize / 2**30
        return ValueError(
            f"the embeddings of the best epoch must be kept in {self.folder}, {size:.1f} GiB, which failed: "
            f"{error.strerror}; make room, or choose another folder (`checkpoint`, or TMPDIR without one)"
        )


def _as_bytes(rows: Tensor) -> Any:
    return rows.view(torch.uint8).numpy()


def keep(state: Mapping[str, Tensor], folder: Path | None, in_file: bool) -> dict[str, Tensor | KeptRows]:
    """Return copies of the tensors of a model, those of large embeddings in main memory ``in_file``."""
    return {
        name: KeptRows(tensor, folder)
        if in_file and name == "embedding.weight" and tensor.nbytes >= LARGE and tensor.device.type == "cpu"
        else tensor.detach().clone()
        for name, tensor in state.items()
    }


@torch.no_grad()
def restore(model: nn.Module, kept: Mapping[str, Tensor | KeptRows]) -> None:
    """Give a model the tensors that were kept."""
    state = model.state_dict()
    for name, table in kept.items():
        if isinstance(table, KeptRows):
            table.copy_to(state[name])
    model.load_state_dict(state | {name: each for name, each in kept.items() if isinstance(each, Tensor)})
