"""What makes a training run the run it is, so that a checkpoint is continued by the very same run alone."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rgat.data import GraphData, GraphStore, NodeData
from rgat.data.dataset import PARTS
from rgat.graph import RelationalGraph
from rgat.training.run import Settings


def identify(model: nn.Module, data: NodeData | GraphData, settings: Settings, seed: int) -> dict[str, Any]:
    """Describe a run that is about to begin, in words where it can be, and by digests of everything it depends on.

    Runs with the same description, built afresh on any device, begin at the same numbers and take the same steps.
    """
    graph: RelationalGraph | GraphStore
    features: Tensor | None
    sizes: Any
    if isinstance(data, NodeData):
        graph, features, sizes = data.graph, data.x, data.graph.num_nodes
    else:
        graph, features, sizes = data.graphs, data.graphs.x, (data.graphs.node_ptr, data.graphs.edge_ptr)
    parts = {
        "labels": data.labels,
        "splits": [getattr(data, part) for part in PARTS],
        "features": features,
        "edges": (graph.edge_index, graph.edge_type, graph.edge_attr, graph.num_relations, sizes),
        "layer options": [(name, _options(module)) for name, module in model.named_modules()],
        "initial parameters": [(name, p.requires_grad, p) for name, p in model.named_parameters()],
        "initial buffers": list(model.named_buffers()),
    }
    return {
        "data": str(data),
        "model": str(model),
        "seed": seed,
        "settings": {name: list(v) if isinstance(v, tuple) else v for name, v in vars(settings).items()},  # as in JSON
        "digests": {name: _digest(part) for name, part in parts.items()},
    }


def difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Say how the run of a checkpoint differs from this one, as a clause; None: not at all, but for its length."""
    for name in ("data", "model", "seed", "settings"):
        own, other = mine[name], theirs.get(name)
        if isinstance(own, dict) and isinstance(other, dict):  # a run may be made longer
            own, other = ({key: value for key, value in one.items() if key != "max_epochs"} for one in (own, other))
        if own != other:
            return f"its `{name}` is {other!r}, not {own!r}"
    digests = theirs.get("digests")
    if not isinstance(digests, dict):
        return f"it does not say which {_listed(list(mine['digests']))} it had"
    others = [name for name, digest in mine["digests"].items() if digest != digests.get(name)]
    return f"it had other {_listed(others)}" if others else None


def _listed(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _options(module: nn.Module) -> tuple[str, dict[str, Any]]:
    """The class of a module, and what its constructor kept beside parameters, buffers and other modules."""
    kept = vars(module).keys() - vars(nn.Module()).keys()
    return type(module).__qualname__, {name: vars(module)[name] for name in sorted(kept)}


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    _add(digest, value, set())
    return digest.hexdigest()


def _add(digest: Any, value: Any, seen: set[int]) -> None:
    """Add a value to a digest: tensors by their bytes, plain values as written, others by their parts, each once."""
    if isinstance(value, Tensor):
        _add(digest, f"{value.layout} {value.dtype} {list(value.shape)}", seen)
        if value.layout != torch.strided:
            entries = value.detach().to_sparse(layout=torch.sparse_coo).coalesce()
            _add(digest, [entries.indices(), entries.values()], seen)
            return
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    elif isinstance(value, list | tuple):
        _add(digest, len(value), seen)
        for one in value:
            _add(digest, one, seen)
    elif isinstance(value, dict):
        _add(digest, list(value.items()), seen)
    elif isinstance(value, set | frozenset):
        _add(digest, sorted(_digest(one) for one in value), seen)
    elif value is None or isinstance(value, str | bytes | int | float | complex | torch.dtype | torch.device):
        digest.update(f"{type(value).__name__} {len(repr(value))} {value!r}".encode())
    elif isinstance(value, np.ndarray | np.generic):
        _add(digest, f"{value.dtype} {value.shape}", seen)
        digest.update(np.ascontiguousarray(value).tobytes())
    elif id(value) not in seen:  # how an object is written may hold its address
        seen.add(id(value))
        _add(digest, f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}", seen)
        _add(digest, _parts(value), seen)


def _parts(value: Any) -> list[Any]:
    """What tells a function or an object from others of its name."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.FunctionType):
        code = value.__code__
        constants = [one for one in code.co_consts if not isinstance(one, types.CodeType)]
        closed = [cell.cell_contents for cell in value.__closure__ or ()]
        return [code.co_code, code.co_names, constants, value.__defaults__, closed]
    if isinstance(value, type | nn.Module) or not hasattr(value, "__dict__"):
        return []
    return sorted(vars(value).items())
