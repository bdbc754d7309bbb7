"""Functions as PyTorch operators that cost little when nothing is traced.

An operator of ``torch.library`` can be compiled, exported and run on fake tensors, but each call passes through a tenth
of a millisecond of Python. In eager mode on ordinary tensors the same function and the same backward run directly.

Compiled code is kept on disk and calls operators as they were when it was made. So an operator gets new arguments at
the end alone, with defaults, or else another name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from rgat.ops.triton import recording

_WIDE = (torch.float32, torch.float64)
_LIBRARY = torch.library.Library("rgat", "FRAGMENT")  # type: ignore[no-untyped-call]


class Operator:
    """A function of tensors, and the operator made of it."""

    def __init__(self, name: str, function: Callable[..., Any], repeated: bool = False) -> None:
        # `torch.library.custom_op` does the same with three times as much Python around each call.
        self.name, self.function = name, _repeated(function) if repeated else function
        _, _, short = name.partition("::")
        schema = torch.library.infer_schema(function, mutates_args=())
        _LIBRARY.define(short + schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        _LIBRARY.impl(short, self.function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        _LIBRARY.impl(short, self._dispatched, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
        self.traced = getattr(torch.ops.rgat, short).default
        self.register_fake: Callable[[Callable[..., Any]], Callable[..., Any]] = torch.library.register_fake(name)
        self._differentiable: Any = None

    def register_autograd(self, backward: Callable[..., Any], setup_context: Callable[..., Any]) -> None:
        """Say how gradients are computed, as for ``torch.library.register_autograd``."""

        # Not a `setup_context` of its own: PyTorch would inspect the signature in each call.
        def forward(ctx: Any, *arguments: Any) -> Any:
            inputs, function = arguments[:-1], arguments[-1]
            made = function(*inputs)
            setup_context(ctx, inputs, made)
            return made

        def flat_backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return *(None if isinstance(grad, list) else grad for grad in backward(ctx, *grads)), None

        members = {
            "forward": staticmethod(forward),
            "backward": staticmethod(flat_backward),
        }
        self._differentiable = type("Differentiable", (torch.autograd.Function,), members)

    def __call__(self, *arguments: Any) -> Any:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        return self.traced(*arguments) if is_traced(tensors) else self._call(self.function, arguments, tensors)

    def _dispatched(self, keys: torch._C.DispatchKeySet, *arguments: Any) -> Any:
        """What a call of the operator itself does, such as one of compiled code: as little, if nothing looks on."""
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]

        def below(*arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return self.traced.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

        return self._call(below if is_traced(tensors) else self.function, arguments, tensors)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], tensors: list[Tensor]) -> Any:
        with_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if with_grad or forward_ad._current_level >= 0:  # there, PyTorch refuses tangents that would be lost
            return self._differentiable.apply(*arguments, function)
        return function(*arguments)


def operator(name: str, repeated: bool = False) -> Callable[[Callable[..., Any]], Operator]:
    """Make an operator of a function whose arguments are annotated; ``repeated``: replay its launches on a GPU."""
    return lambda function: Operator(name, function, repeated)


def _repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return recording.replay_or_run(function, arguments) if arguments[0].is_cuda else function(*arguments)

    return call


def forbid_double_backward(*operators: Operator) -> None:
    """Operators that compute gradients have none themselves."""
    for one in operators:
        one.register_autograd(_no_double_backward, _no_context)


def _no_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _no_double_backward(ctx: Any, *grads: Any) -> NoReturn:
    raise RuntimeError(
        "relational layers have first derivatives only; for double backward use the differentiable reference, "
        'with `rgat.ops.backend("reference"):`'
    )


def is_traced(tensors: list[Tensor]) -> bool:
    """Whether a compiler, an exporter, a transform or a dispatch mode looks on, or there are no values."""
    return not has_values(tensors) or torch._C._len_torch_dispatch_stack() > 0


def has_values(tensors: list[Tensor]) -> bool:
    """Whether these are ordinary tensors with values, outside compilers and function transforms."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and not tensor.is_meta for tensor in tensors)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that is computed in: sums of half-precision numbers are made in single precision."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def widen(tensors: tuple[Tensor | None, ...], module: ModuleType | None = None) -> list[Any]:
    """The tensors contiguous, and in the dtype that is computed in unless the backend takes half precision itself."""
    if getattr(module, "TAKES_HALF", False):
        return [None if t is None else t.contiguous() for t in tensors]
    return [t if t is None or (t.dtype in _WIDE and t.is_contiguous()) else _widen(t) for t in tensors]


def _widen(tensor: Tensor) -> Tensor:
    return tensor.to(wide(tensor.dtype)).contiguous()


def as_given(tensor: Tensor) -> AbstractContextManager[None]:
    """Inside an operator the dtypes are settled; autocast must not change them again."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
