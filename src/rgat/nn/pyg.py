"""Give layers and models to PyTorch Geometric, which is imported only when asked for."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from rgat.nn.relational import RelationalConv

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def as_pyg(module: nn.Module, task: int | None = None) -> nn.Module:
    """Return a layer or model for PyTorch Geometric's explainers; it shares all parameters with ``module``.

    A layer becomes a `MessagePassing` that is called as before. A model of relational layers, which takes ``(x,
    graph)``, becomes one that takes ``(x, edge_index, edge_type, batch=None, edge_attr=None)``.

    Args:
        module: a relational layer or a model that contains some.
        task: of a graph classifier, the task whose logits are returned; explainers take one at a time.

    Examples:
        >>> import torch
        >>> from torch_geometric.explain import Explainer, GNNExplainer
        >>> import rgat
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> model = rgat.nn.as_pyg(rgat.models.NodeClassifier(8, num_classes=3, num_relations=2))
        >>> settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
        >>> options = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}
        >>> explainer = Explainer(model, GNNExplainer(epochs=5), **options)
        >>> explainer(torch.randn(3, 8), edges, edge_type=types, index=1).edge_mask.shape
        torch.Size([3])
    """
    try:
        from rgat.nn.message_passing import MessagePassingConv, PyGModel
    except ImportError as error:
        raise ImportError(
            f"explainers need PyTorch Geometric ({error}); install it with `pip install torch-geometric`"
        ) from error
    if isinstance(module, RelationalConv):
        return MessagePassingConv(module)
    if not any(isinstance(child, RelationalConv) for child in module.modules()):
        raise ValueError(f"a model must have relational layers, got {type(module).__name__} without any")
    return PyGModel(module, task)
