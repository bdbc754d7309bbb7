"""Pure functions on tensors: the operators of a relational layer, and the reference they are checked against.

Examples:
    >>> from rgat import ops
    >>> with ops.backend("torch"):
    ...     ops.active_backend()
    'torch'
"""

from rgat.ops.attention import attend, convolve
from rgat.ops.backend import Attention, Call, Inputs, LayerCall, Places, Scores, TablePlaces
from rgat.ops.bases import spread
from rgat.ops.dispatch import active_backend, backend, requested_backend, why_not
from rgat.ops.dropout import count_call, member_rates
from rgat.ops.layer import compute_layer, logits_and_values, row_values
from rgat.ops.planner import Plan, Sizes, can_aggregate, make_plan
from rgat.ops.projection import look_up, project
from rgat.ops.reference import relational_attention

__all__ = [
    "Attention",
    "Call",
    "Inputs",
    "LayerCall",
    "Places",
    "Plan",
    "Scores",
    "Sizes",
    "TablePlaces",
    "active_backend",
    "attend",
    "backend",
    "can_aggregate",
    "compute_layer",
    "convolve",
    "count_call",
    "logits_and_values",
    "look_up",
    "make_plan",
    "member_rates",
    "project",
    "relational_attention",
    "requested_backend",
    "row_values",
    "spread",
    "why_not",
]
