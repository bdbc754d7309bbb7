"""Register functions as PyTorch operators that cost little in eager mode.

An operator of ``torch.library`` can be compiled, exported and run on fake tensors, but each call passes through a tenth
of a millisecond of Python. In eager mode on ordinary tensors the same function and the same backward run directly.

A function may take the graph and its settings as named tuples (`Structure`, `Rows`, `Call`, ...); the operator's schema
has their fields instead, the tensors of a graph as one list.

Compiled code is kept on disk and calls operators by the schema that they had when it was made. So an operator whose
schema changes gets another name.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from rgat.ops.backend import Backend
from rgat.ops.triton import recording
from rgat.structure import Rows, Structure

_WIDE = (torch.float32, torch.float64)
_LIBRARY = torch.library.Library("rgat", "FRAGMENT")  # type: ignore[no-untyped-call]


class _Signature:
    """The arguments of a function, and the flat ones of its operator."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = typing.get_type_hints(function)
        for kind in hints.values():
            _note_fields(kind)
        self._types = [hints[name] for name in inspect.signature(function).parameters]
        self.flat = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
                for parameter, kind in zip(inspect.signature(function).parameters, self._types, strict=True)
                for name, kind in _flat_types(parameter, kind)
            ],
            return_annotation=hints["return"],
        )

    def flatten(self, arguments: Sequence[Any]) -> list[Any]:
        flat: list[Any] = []
        for kind, argument in zip(self._types, arguments, strict=True):
            _flatten_into(flat, kind, argument)
        return flat

    def unflatten(self, flat: Sequence[Any]) -> list[Any]:
        rest = iter(flat)
        return [_take(kind, rest) for kind in self._types]


def _is_container(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _flat_types(name: str, kind: Any) -> list[tuple[str, Any]]:
    if kind in (Structure, Rows):
        return [(name, list[Tensor])]
    if not _is_container(kind):
        return [(name, kind)]
    return [pair for field, inner in _field_types[kind].items() for pair in _flat_types(field, inner)]


def _flatten_into(flat: list[Any], kind: Any, argument: Any) -> None:
    if kind is Structure:
        flat.append(argument.leaves())
    elif kind is Rows:
        flat.append(list(argument))
    elif _is_container(kind):
        for inner, field in zip(_field_types[kind].values(), argument, strict=True):
            _flatten_into(flat, inner, field)
    else:
        flat.append(argument)


def _take(kind: Any, rest: Any) -> Any:
    if kind is Structure:
        return Structure.from_leaves(next(rest))
    if kind is Rows:
        return Rows(*next(rest))
    if _is_container(kind):
        return kind(*[_take(inner, rest) for inner in _field_types[kind].values()])
    return next(rest)


_field_types: dict[Any, dict[str, Any]] = {}  # of named tuples, looked up while compilers trace a call


def _note_fields(kind: Any) -> None:
    if _is_container(kind) and kind not in _field_types:
        _field_types[kind] = typing.get_type_hints(kind)
        for inner in _field_types[kind].values():
            _note_fields(inner)


class Operator:
    """A function of tensors, and the operator made of it."""

    def __init__(self, name: str, function: Callable[..., Any], record: bool = False) -> None:
        # `torch.library.custom_op` does the same with three times as much Python around each call.
        signature = self._signature = _Signature(function)

        def run(*flat: Any) -> Any:
            with _without_autocast(flat[0]):
                return function(*signature.unflatten(flat))

        run.__signature__ = signature.flat  # type: ignore[attr-defined]
        self.name, self.function = name, _recorded(run) if record else run
        _, _, short = name.partition("::")
        schema = torch.library.infer_schema(run, mutates_args=())
        _LIBRARY.define(short + schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        _LIBRARY.impl(short, self.function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        _LIBRARY.impl(short, self._dispatched, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
        self.traced = getattr(torch.ops.rgat, short).default
        self._differentiable: Any = None

    def register_fake(self, function: Callable[..., Any]) -> None:
        """Say which shapes and dtypes the operator returns."""
        torch.library.register_fake(self.name, lambda *flat: function(*self._signature.unflatten(flat)))

    def register_backward(
        self, gradient: Operator, differentiable: int, grads: int = 1, saves_outputs: bool = False
    ) -> None:
        """Let another operator compute the gradients of the first ``differentiable`` inputs.

        Its arguments are the gradients of the first ``grads`` outputs (that of the second may be None), with
        ``saves_outputs`` all outputs but the first, all inputs, and for each differentiable input whether its gradient
        is needed. It returns one tensor for each of these, empty where no gradient is needed.
        """
        num_inputs = len(self._signature.flat.parameters)
        rest = num_inputs - differentiable + 1  # the last argument of `apply` is the function

        # Not a `setup_context` of its own: PyTorch would inspect the signature in each call.
        def forward(ctx: Any, *arguments: Any) -> Any:
            inputs, function = arguments[:-1], arguments[-1]
            outputs = function(*inputs)
            ctx.set_materialize_grads(False)
            ctx.shape, ctx.others = (outputs[0] if isinstance(outputs, tuple) else outputs).shape, []
            kept: list[Tensor | None] = []
            for value in (*(outputs[1:] if saves_outputs else ()), *inputs):
                if value is None or isinstance(value, Tensor):
                    ctx.others.append(None)
                    kept.append(value)
                elif isinstance(value, list) and value and isinstance(value[0], Tensor):
                    ctx.others.append(len(value))
                    kept += value
                else:
                    ctx.others.append((value,))
            ctx.save_for_backward(*kept)
            return outputs

        def backward(ctx: Any, *output_grads: Any) -> tuple[Any, ...]:
            tensors, saved = iter(ctx.saved_tensors), []  # read once: a checkpoint gives them out once
            for other in ctx.others:
                if other is None:
                    saved.append(next(tensors))
                elif isinstance(other, int):
                    saved.append([next(tensors) for _ in range(other)])
                else:
                    saved.append(other[0])
            grad = output_grads[0]
            if grad is None:
                like = next(t for t in saved[len(saved) - num_inputs :] if isinstance(t, Tensor))
                grad = like.new_zeros(ctx.shape)
            needs = list(ctx.needs_input_grad[:differentiable])
            returned = gradient.call_flat(grad.contiguous(), *output_grads[1:grads], *saved, needs)
            input_grads = returned if isinstance(returned, tuple) else (returned,)
            return *(g if need else None for g, need in zip(input_grads, needs, strict=True)), *[None] * rest

        def fake(*flat: Any) -> Any:
            inputs, needs = flat[-num_inputs - 1 : -1][:differentiable], flat[-1]
            grads = tuple(
                flat[0].new_empty(0) if t is None or not need else t.new_empty(t.shape)  # as `like_inputs` returns
                for t, need in zip(inputs, needs, strict=True)
            )
            return grads if differentiable > 1 else grads[0]

        self._set_autograd(forward, backward)
        torch.library.register_fake(gradient.name, fake)
        gradient.refuse_backward()

    def refuse_backward(self) -> None:
        """Raise one sentence where a gradient of the operator is asked for: it computes gradients itself."""

        def forward(ctx: Any, *arguments: Any) -> Any:
            return arguments[-1](*arguments[:-1])

        self._set_autograd(forward, _no_double_backward)

    def _set_autograd(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self._differentiable = type(self.name.replace("::", "_"), (torch.autograd.Function,), members)

    def __call__(self, *arguments: Any) -> Any:
        return self.call_flat(*self._signature.flatten(arguments))

    def call_flat(self, *flat: Any) -> Any:
        """Call the operator with the arguments of its schema."""
        tensors = [argument for argument in flat if isinstance(argument, Tensor)]
        return self.traced(*flat) if is_traced(tensors) else self._call(self.function, flat, tensors)

    def _dispatched(self, keys: torch._C.DispatchKeySet, *flat: Any) -> Any:
        """Run a call of the operator itself, such as one of compiled code; directly if nothing traces it."""
        tensors = [argument for argument in flat if isinstance(argument, Tensor)]

        def below(*flat: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return self.traced.redispatch(keys & torch._C._after_autograd_keyset, *flat)

        return self._call(below if is_traced(tensors) else self.function, flat, tensors)

    def _call(self, function: Callable[..., Any], flat: tuple[Any, ...], tensors: list[Tensor]) -> Any:
        with_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if with_grad or forward_ad._current_level >= 0:  # there, PyTorch refuses tangents that would be lost
            return self._differentiable.apply(*flat, function)
        return function(*flat)


def operator(name: str, record: bool = False) -> Callable[[Callable[..., Any]], Operator]:
    """Make an operator of an annotated function; ``record``: replay its kernel launches on a GPU where possible."""
    return lambda function: Operator(name, function, record)


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return recording.replay_or_run(function, arguments) if arguments[0].is_cuda else function(*arguments)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def _no_double_backward(ctx: Any, *grads: Any) -> NoReturn:
    raise RuntimeError(
        "relational layers have first derivatives only; for double backward use the differentiable reference, "
        'with `rgat.ops.backend("reference"):`'
    )


def is_traced(tensors: list[Tensor]) -> bool:
    """Whether a compiler, exporter, transform or dispatch mode is active, or a tensor has no values."""
    return not has_values(tensors) or torch._C._len_torch_dispatch_stack() > 0


def has_values(tensors: list[Tensor]) -> bool:
    """Whether these are ordinary tensors with values, outside compilers and function transforms."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and not tensor.is_meta for tensor in tensors)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: sums of half-precision numbers are made in single precision."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def widen(tensors: tuple[Tensor | None, ...], backend: Backend | None = None) -> list[Any]:
    """Make tensors contiguous, and cast them to the dtype to compute in unless the backend takes half precision."""
    if backend is not None and backend.TAKES_HALF:
        return [None if t is None else t.contiguous() for t in tensors]
    return [
        t if t is None or (t.dtype in _WIDE and t.is_contiguous()) else t.to(wide(t.dtype)).contiguous()
        for t in tensors
    ]


def _without_autocast(tensor: Tensor) -> AbstractContextManager[None]:
    """Switch autocast off: inside an operator the dtypes are settled."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def like_inputs(
    grads: Sequence[Tensor | None], inputs: Sequence[Tensor | None], needs: Sequence[bool], like: Tensor
) -> tuple[Any, ...]:
    """Return gradients in the dtypes of their inputs; new and empty where no gradient is needed."""
    return tuple(
        like.new_empty(0) if g is None or t is None or not need else g.to(t.dtype).contiguous()
        for g, t, need in zip(grads, inputs, needs, strict=True)
    )
