"""Pure functions on tensors: the operations of a relational layer, and the reference they are checked against."""

from rgat.ops.attention import Attention
from rgat.ops.bases import collect, spread
from rgat.ops.dispatch import active_backend, backend, requested_backend, why_not
from rgat.ops.dropout import count_call, member_rates
from rgat.ops.folding import fold, fold_heads
from rgat.ops.operators import attend, convolve, project, sum_inputs
from rgat.ops.planner import Plan, Sizes, make_plan
from rgat.ops.reference import relational_attention
from rgat.ops.rows import Places, attend_rows, can_attend_rows, look_up

__all__ = [
    "Attention",
    "Places",
    "Plan",
    "Sizes",
    "active_backend",
    "attend",
    "attend_rows",
    "backend",
    "can_attend_rows",
    "collect",
    "convolve",
    "count_call",
    "fold",
    "fold_heads",
    "look_up",
    "make_plan",
    "member_rates",
    "project",
    "relational_attention",
    "requested_backend",
    "spread",
    "sum_inputs",
    "why_not",
]
