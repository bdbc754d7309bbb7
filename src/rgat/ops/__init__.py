"""Pure functions on tensors: the two operations of a relational layer, and the reference they are checked against."""

from rgat.ops.dispatch import active_backend, backend
from rgat.ops.dropout import count_call
from rgat.ops.reference import relational_attention
from rgat.ops.vectorised import Attention, attend, project

__all__ = ["Attention", "active_backend", "attend", "backend", "count_call", "project", "relational_attention"]
