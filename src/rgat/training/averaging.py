"""The mean of a model's parameters over its epochs, later ones with more weight, to validate and keep.

After epoch ``t`` the mean is ``(1 - r) * mean + r * parameters`` with ``r = 4 / (t + 3)``. Epoch ``s`` then has a
weight proportional to ``s (s + 1) (s + 2)``, whenever training stops: about half of all weight is on the last sixth of
the epochs. The running statistics of batch normalisation are averaged in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """The mean of the parameters and floating-point buffers of a model, or of each member of a stack.

    One that is not ``on`` is empty and does nothing.
    """

    def __init__(self, layers: nn.Module, on: bool) -> None:
        self.layers, self.on = layers, on
        self.mean = {name: tensor.clone() for name, tensor in self._current().items()}

    def _current(self) -> dict[str, Tensor]:
        state = self.layers.state_dict()
        return {name: tensor for name, tensor in state.items() if self.on and tensor.is_floating_point()}

    @torch.no_grad()
    def update(self, epoch: int) -> None:
        """Add the parameters at the end of an epoch, counted from 1."""
        for name, tensor in self._current().items():
            self.mean[name].lerp_(tensor, 4 / (epoch + 3))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the mean for a while, at the same addresses."""
        current = self._current()
        kept = {name: tensor.clone() for name, tensor in current.items()}
        with torch.no_grad():
            for name, tensor in current.items():
                tensor.copy_(self.mean[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in current.items():
                    tensor.copy_(kept[name])

    def select(self, members: Sequence[int]) -> None:
        """Keep some members of a stack only."""
        self.mean = {name: tensor[list(members)] for name, tensor in self.mean.items()}
