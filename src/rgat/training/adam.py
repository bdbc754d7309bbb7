"""Adam for one model, and for a stack whose members have learning rates of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rgat.nn.stacked import take_members


def make_adam(parameters: list[nn.Parameter], learning_rates: Sequence[float]) -> torch.optim.Adam:
    """Return an optimiser; with several learning rates, the parameters have a leading axis of members."""
    on_gpu = parameters[0].is_cuda
    if len(set(learning_rates)) == 1:
        return torch.optim.Adam(parameters, lr=learning_rates[0], fused=True, capturable=on_gpu)
    return _MemberAdam(parameters, torch.tensor(learning_rates, dtype=parameters[0].dtype, device=parameters[0].device))


class _MemberAdam(torch.optim.Adam):
    """Adam with a learning rate for each member, which scales the member's part of the step."""

    def __init__(self, parameters: Sequence[nn.Parameter], rates: Tensor) -> None:
        super().__init__(parameters, capturable=parameters[0].is_cuda)
        self.rates = rates  # [S]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        (beta1, beta2), eps = group["betas"], group["eps"]
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state["step"] = torch.zeros((), device=p.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            step = state["step"].add_(1).double()
            mean, square = state["exp_avg"], state["exp_avg_sq"]
            mean.lerp_(p.grad, 1 - beta1)
            square.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            size = (self.rates / (1 - beta1**step)).to(p.dtype).view(-1, *[1] * (p.dim() - 1))
            root = (square.sqrt() / (1 - beta2**step).sqrt().to(p.dtype)).add_(eps)
            p.sub_(mean * size / root)


def select_members(optimizer: torch.optim.Adam, members: list[int]) -> None:
    """Keep only some members of a stack."""
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = take_members(state[name], members)
    if isinstance(optimizer, _MemberAdam):
        optimizer.rates = optimizer.rates[members]
