"""Relational layers as PyTorch Geometric's `MessagePassing`, which its explainers look for."""

import copy
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from rgat.graph import RelationalGraph
from rgat.nn.plain import scoped_softmax
from rgat.nn.relational import RelationalConv


class MessagePassingConv(MessagePassing):  # type: ignore[misc]
    """A relational layer whose messages PyTorch Geometric can mask and read.

    While nobody asks for messages, the layer itself runs. Under an explainer or a hook, its attention and values are
    handed to `propagate`, without dropout; a mask multiplies the message of an edge, which is attention times value.
    """

    def __init__(self, conv: RelationalConv) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.conv = conv
        self.training = conv.training  # an explainer restores this mode, in the layer too
        self.in_channels, self.out_channels, self.num_relations = (
            conv.in_channels,
            conv.out_channels,
            conv.num_relations,
        )

    def forward(self, x: Any, edge_index: Any, edge_type: Any = None, edge_attr: Any = None, **options: Any) -> Any:
        """Return what the layer returns."""
        if not (self.explain or self._is_hooked()):
            given = {} if edge_attr is None else {"edge_attr": edge_attr}
            return self.conv(x, edge_index, edge_type, **given, **options)
        if isinstance(edge_index, RelationalGraph) and edge_attr is not None:
            raise TypeError("`edge_attr` must not be given with a RelationalGraph here; put it into the graph")
        graph = self.conv._check_graph(x, edge_index, edge_type, edge_attr)
        alpha, value = self._messages(x, graph, options.pop("constant_attention", False))
        out = self.propagate(graph.edge_index, size=(graph.num_nodes, graph.num_targets), alpha=alpha, value=value)
        merged = self.conv.finish(out)
        return (merged, (graph.edge_index, alpha)) if options.get("return_attention_weights") else merged

    def message(self, alpha: Tensor, value: Tensor) -> Tensor:
        """Weight the values by the attention, ``[E, H, D]``."""
        return alpha.unsqueeze(-1) * value

    def _messages(self, x: Any, graph: RelationalGraph, constant_attention: bool) -> tuple[Tensor, Tensor]:
        """Return the attention ``[E, H]`` and the values ``[E, H, D]`` in the caller's order of edges."""
        s = graph.structure
        logits, values = self.conv.logits_and_values(x, graph, constant_attention)
        groups = {"within": (s.group.long(), len(s.group_ptr) - 1), "across": (s.target.long(), s.num_targets)}
        back = s.order.long().argsort()
        attention = scoped_softmax(logits, self.conv.scope, groups).index_select(0, back)
        return attention, values.index_select(0, s.source_row.index_select(0, back))

    def _is_hooked(self) -> bool:
        steps = ("propagate", "message", "aggregate")
        return any(getattr(self, f"_{step}_forward{kind}_hooks") for step in steps for kind in ("", "_pre"))


class PyGModel(nn.Module):
    """A model on bare edges, as PyTorch Geometric calls it; features without columns stand for featureless input."""

    def __init__(self, model: nn.Module, task: int | None) -> None:
        super().__init__()
        self.model, self.task = _replaced(model), task
        self.training = model.training

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
        graph_attr: Tensor | None = None,
    ) -> Tensor:
        """Return the model's logits; of a graph classifier those of one task."""
        layers = [module for module in self.modules() if isinstance(module, MessagePassingConv)]
        graph = RelationalGraph(
            edge_index,
            edge_type,
            num_nodes=x.shape[0],
            num_relations=layers[0].num_relations,
            edge_attr=edge_attr,
            batch=batch,
        )
        graph.graph_attr = graph_attr
        logits: Tensor = self.model(x if x.shape[1] else None, graph)
        return logits if self.task is None else logits[:, self.task]


def _replaced(module: nn.Module) -> nn.Module:
    """Return a copy that shares all parameters and whose relational layers are `MessagePassing`."""
    if isinstance(module, RelationalConv):
        return MessagePassingConv(module)
    new = copy.copy(module)
    new._modules = {name: None if child is None else _replaced(child) for name, child in module._modules.items()}
    return new
