"""What the relational layers share: checks of their inputs, dropout state, the one forward pass, merging of heads.

One layer computes either a single layer or a stack of ``S`` layers that differ in parameters, dropout seeds and rates
alone (`rgat.nn.stacked`). The parameters of a stack have an axis of members in front, its features are ``[N, S, F]`` or
shared by all members, and its outputs ``[N, S, C]``. A stack of layers with ``H`` heads is a layer with ``S * H`` heads
whose inputs may differ by member.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rgat import ops
from rgat.checks import check_count, check_ids
from rgat.graph import RelationalGraph
from rgat.nn.inputs import FeatureRows, check_features, check_nodes, check_num_nodes, one_hot_index
from rgat.nn.kernels import BasisKernel, FullKernel, RowKernel, RowsOfGraph, may_read_values


class RelationalConv(nn.Module):
    """A layer whose values are ``g_j = h_j W[r, k]``; subclasses say how neighbours are weighted.

    With ``num_nodes`` a learned row per node and relation is added: ``g_j = row[r, j, k] + h_j W[r, k]``, which is what
    features beside a one-hot vector of the node would give. Rows that a layer built with ``graph`` does not hold, those
    of other edges and of nodes that were added since, are zero.
    """

    row_ends: ClassVar[tuple[str, ...]]  # which rows of the structure the kernels are read at
    scope: tuple[str, ...] = ("within",)  # per head
    score: str | None = None  # None: constant attention
    attention_channels: int = 0  # 0: constant attention
    head_merge: str = "concat"
    projection: Tensor | None
    bias: Tensor | None
    members: int | None = None  # S of a stack; None: a single layer

    num_nodes: int | None = None  # of the rows that are added to projected features; None: there are none
    rows: Tensor | None  # [U] int64, sorted `r * N + node`: the rows of nodes that a compact layer holds
    rows_digest: str | None = None  # tells rows apart where their values are lost, as `to_empty` loses them
    dropout_state: Tensor  # [2] or [S, 2] int64: seed, number of training calls so far; masks are a function of both

    def __init__(
        self,
        channels: tuple[int, int],
        num_relations: int,
        heads: int,
        num_bases: int | None,
        dropout: tuple[float, float],
        graph: RelationalGraph | None,
        num_nodes: int | None = None,
    ) -> None:
        super().__init__()
        in_channels, out_channels = channels
        for name, value in (("in_channels", in_channels), ("num_relations", num_relations)):
            check_count(name, value, least=0)
        for name, value in (("out_channels", out_channels), ("heads", heads)):
            check_count(name, value)
        for name, rate in zip(("feature_dropout", "edge_dropout"), dropout, strict=True):
            if not 0 <= rate < 1:
                raise ValueError(f"`{name}` must be at least 0 and below 1, got {rate}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.num_relations = num_relations
        self.heads = heads
        self.feature_dropout, self.edge_dropout = dropout
        self.register_buffer("rows", None)
        self.kernel: FullKernel | BasisKernel | RowKernel
        self.kernel = self._make_kernel("in_channels", in_channels, num_bases, graph if num_nodes is None else None)
        if num_nodes is not None:
            check_count("num_nodes", num_nodes, least=0)
            self.num_nodes = num_nodes
            self.identity = self._make_kernel("num_nodes", num_nodes, num_bases, graph)
        self.register_buffer("dropout_state", torch.zeros(2, dtype=torch.int64))

    def _make_kernel(
        self, name: str, inputs: int, num_bases: int | None, graph: RelationalGraph | None
    ) -> FullKernel | BasisKernel | RowKernel:
        """Return a kernel for so many inputs, which ``name`` counts; for those of a graph's nodes it may be compact."""
        sizes = (self.num_relations, self.heads, inputs, self.out_channels)
        if num_bases is not None:
            check_count("num_bases", num_bases)
            return BasisKernel(*sizes, num_bases)
        if graph is None:
            return FullKernel(*sizes)
        if (graph.num_nodes, graph.num_relations) != (inputs, self.num_relations):
            raise ValueError(
                f"a layer built with `graph=` must have its sizes, {name}={graph.num_nodes} and "
                f"num_relations={graph.num_relations}, got {inputs} and {self.num_relations}"
            )
        ends = [getattr(graph.structure, end).keys(graph.num_nodes) for end in self.row_ends]
        keys = torch.unique(torch.cat(ends))  # sorted
        kernel = RowKernel(*sizes, len(keys))
        self.register_buffer("rows", keys.to(kernel.weight.device))
        self.rows_digest = _digest(keys)
        return kernel

    @property
    def node_kernel(self) -> FullKernel | BasisKernel | RowKernel | None:
        """What holds a row per node and relation to add to projected features; None without ``num_nodes``."""
        kernel: FullKernel | BasisKernel | RowKernel | None = getattr(self, "identity", None)
        return kernel

    def reset_parameters(self) -> None:
        """Draw all parameters anew, and the seed of the dropout masks."""
        self.kernel.reset(self.in_channels + self.out_channels)
        if self.node_kernel is not None and self.num_nodes is not None:
            self.node_kernel.reset(self.num_nodes + self.out_channels)
        self.dropout_state.zero_()
        self.dropout_state[0] = torch.randint(2**63 - 1, ())
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def plan(self, graph: RelationalGraph, alternative: str | None = None) -> ops.Plan:
        """Say how a call with node features is computed on this graph, with the estimated costs: print it.

        Args:
            graph: of the call.
            alternative: ask for this one instead of the cheapest, and pass the plan to the call as ``plan=``.
        """
        return self._plan(graph, True, alternative)

    def _plan(self, graph: RelationalGraph, attends: bool, alternative: str | None = None) -> ops.Plan:
        sizes = (self.in_channels, self.out_channels, self.heads, self.attention_channels if attends else 0)
        can_aggregate = self._why_not_aggregate(attends) is None
        return ops.make_plan(graph, ops.Sizes(*sizes, can_aggregate, torch.is_grad_enabled()), alternative)

    def _why_not_aggregate(self, attends: bool) -> str | None:
        """Say what keeps inputs from being aggregated before they are projected; None: nothing does."""
        if self.training and self.feature_dropout > 0:
            return "feature dropout, which is on"
        if self.num_nodes is not None:
            return "rows of nodes (`num_nodes`)"
        return "the dynamic score" if attends and self.score == "dynamic" else None

    def _check_plan(self, plan: ops.Plan, graph: RelationalGraph, attends: bool) -> None:
        """Refuse a plan that was made for another graph or another kind of call."""
        if not plan.aggregated:
            return
        if len(plan.aggregated) != graph.num_relations:
            raise ValueError(
                f"a plan must be made for a graph of {graph.num_relations} relations, got one for "
                f"{len(plan.aggregated)}; ask `conv.plan(graph)`"
            )
        reason = self._why_not_aggregate(attends) if ops.can_aggregate(graph.device) else "this backend"
        if any(plan.aggregated) and reason is not None:
            raise ValueError(
                f'the plan "{plan.alternative}" must not be used with {reason}; ask `conv.plan(graph)` in this mode'
            )

    def _compute(
        self, inputs: ops.Inputs, scores: ops.Scores | None, graph: RelationalGraph, plan: ops.Plan | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs ``[N, S * H, D]`` and the attention of the sorted edges ``[E, S * H]``.

        The bias is added where heads are concatenated; otherwise `_merge` adds it.
        """
        aggregated: tuple[bool, ...] = ()
        if inputs.x is not None and self.members is None:
            if plan is None and not ops.can_aggregate(graph.device):
                plan = ops.Plan()  # nothing to choose: counting rows would wait for the device
            plan = plan or self._plan(graph, scores is not None)
            self._check_plan(plan, graph, scores is not None)
            aggregated = plan.aggregated
        bias = self.bias if self.head_merge == "concat" else None
        call = self._call(inputs, scores, graph)._replace(
            state=self._next_dropout_state(), bias=None if bias is None else bias.flatten(), aggregated=aggregated
        )
        return ops.compute_layer(call)

    def _call(self, inputs: ops.Inputs, scores: ops.Scores | None, graph: RelationalGraph) -> ops.LayerCall:
        """Describe a call without dropout, bias and plan."""
        kernels: list[Any] = [self.kernel, self.node_kernel]
        for number, kernel in enumerate(kernels):
            if isinstance(kernel, RowKernel):
                assert self.rows is not None
                kernels[number] = RowsOfGraph(kernel, self.rows, graph, self.row_ends, or_zero=number == 1)
        across = [word == "across" for word in self.scope] * (self.members or 1)
        slope = None if scores is None or scores.score_kernels is not None else scores.negative_slope
        attention = ops.Attention(across, slope, *self._dropout_rates)
        return ops.LayerCall(inputs, kernels[0], scores, graph, attention, node_kernel=kernels[1])

    def logits_and_values(
        self, x: Tensor | FeatureRows | None, graph: RelationalGraph, constant_attention: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of the sorted edges ``[E, S * H]`` and the values of the source rows ``[U, S * H, D]``.

        The output is what `finish` makes of the sums of values that a softmax of these logits weights; no dropout.
        """
        scores = None if constant_attention else self._scores_of(graph)
        return ops.logits_and_values(self._call(self._check_input(x, graph), scores, graph))

    def _scores_of(self, graph: RelationalGraph) -> ops.Scores | None:
        """Return what the logits of a graph's edges are made of; None: attention is constant."""
        return None

    def finish(self, out: Tensor) -> Tensor:
        """Merge the heads of sums over the edges ``[N, S * H, D]``, and add the bias."""
        merged = self._merge(out)
        return merged if self.bias is None or self.head_merge != "concat" else merged + self.bias.to(merged.dtype)

    @property
    def _dropout_rates(self) -> tuple[float, float]:
        """Return the rates of features and edges; of a stack the largest, for each member has its own in the state."""
        return self.feature_dropout, self.edge_dropout

    def _next_dropout_state(self) -> Tensor | None:
        if not self.training or not any(self._dropout_rates):
            return None
        state: Tensor = ops.count_call(self.dropout_state)
        return state

    def _merge(self, out: Tensor) -> Tensor:
        """Merge the heads of outputs ``[N, S * H, D]``, and add the bias unless the outputs have it."""
        if self.members is not None:
            out = out.view(out.shape[0], self.members, self.heads, out.shape[2])
        if self.head_merge == "concat":
            return out.flatten(-2)
        if self.head_merge == "projection":
            assert self.projection is not None
            flat = out.flatten(-2)
            out = (
                flat @ self.projection if self.members is None else torch.einsum("nsi,sid->nsd", flat, self.projection)
            )
        else:
            out = out.mean(-2) if self.head_merge == "mean" else out.sum(-2)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _check_graph(
        self,
        x: Tensor | FeatureRows | None,
        graph: RelationalGraph | Tensor,
        edge_type: Tensor | None,
        edge_attr: Tensor | None,
    ) -> RelationalGraph:
        """Wrap bare tensors into a graph; check that graph and layer fit."""
        if not isinstance(graph, RelationalGraph):
            if edge_type is None:
                raise TypeError(
                    "`edge_type` must be given with `edge_index`, got None; pass both, or a RelationalGraph"
                )
            graph = RelationalGraph(
                graph,
                edge_type,
                num_nodes=self.in_channels if x is None else x.shape[0],
                num_relations=self.num_relations,
                edge_attr=edge_attr,
            )
        elif edge_type is not None:
            raise TypeError("`edge_type` must not be given with a RelationalGraph, which has its own; leave it out")
        graph.check_unchanged()
        if graph.num_relations != self.num_relations:
            raise ValueError(
                f"the graph must have the layer's {self.num_relations} relations, got {graph.num_relations}; "
                "build the layer with `num_relations=graph.num_relations`"
            )
        return graph

    def _check_input(self, x: Tensor | FeatureRows | None, graph: RelationalGraph) -> ops.Inputs:
        """Return dense features, or the position of the one in each node's one-hot input."""
        is_compact = isinstance(self.kernel, RowKernel)
        if self.num_nodes is not None:
            if x is None:
                raise ValueError("a layer with `num_nodes` must get features beside its rows of nodes, got `x=None`")
            if self.rows is None or (graph.node_ids is None and graph.num_nodes < self.num_nodes):
                check_nodes("with rows of nodes, `num_nodes`", "num_nodes", self.num_nodes, graph)
        if isinstance(x, FeatureRows):
            device = x.table.device.type
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self._dtype
            if not is_compact and x.can_stay(graph, dtype) and x.table.shape[1] == self.in_channels:
                return ops.Inputs(x.table, x.rows)
            x = x.gathered()
        if is_compact and x is not None:
            raise ValueError("a layer with `graph=` alone is featureless and takes only `x=None`; add `num_nodes=`")
        if x is None:
            check_nodes("without features, `in_channels`", "in_channels", self.in_channels, graph)
            return ops.Inputs(None, None if is_compact else graph.node_ids)
        if x.layout != torch.strided:
            x = one_hot_index(x, self.in_channels)
        if x.dim() == 1 and not x.is_floating_point() and x.dtype != torch.bool:
            if graph.validate and may_read_values():
                check_ids("x", x, self.in_channels, "in_channels")
            check_num_nodes(x, graph)
            return ops.Inputs(None, x.long())
        per_member = x.dim() == 3 and self.members is not None
        if per_member and x.shape[1] != self.members:
            raise ValueError(f"`x` must have one entry per member, [N, {self.members}, F], got {list(x.shape)}")
        if not (per_member or x.dim() == 2) or x.shape[-1] != self.in_channels:
            raise ValueError(f"`x` must have shape [num_nodes, {self.in_channels}], got {list(x.shape)}")
        if x.shape[-1] == 0:
            raise ValueError("`x` must have at least one column, got none; without features pass None")
        check_num_nodes(x, graph)
        check_features("x", x, graph)
        autocast = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (x.dtype, self._dtype)
        if x.dtype != self._dtype and not autocast:
            raise TypeError(f"`x` must have the layer's dtype {self._dtype}, got {x.dtype}; convert one of them")
        return ops.Inputs(x)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.kernel.parameters()).dtype

    @property
    def _shown(self) -> str:
        values = {name: getattr(self, name) for name in ("feature_dropout", "edge_dropout", "num_nodes")}
        return "".join(f", {name}={value}" for name, value in values.items() if value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        rows = state_dict.get(prefix + "rows")
        if rows is not None and self.rows is not None and _digest(rows) != (self.rows_digest or _digest(self.rows)):
            error_msgs: list[str] = args[-1]
            error_msgs.append(
                f"`{prefix}rows` must be the rows of the graph this layer was built with "
                f"({len(self.rows)}), got others ({len(rows)}); build the layer with the graph of the saved one"
            )
            for name, parameter in self.named_parameters(prefix[:-1]):
                state_dict[name] = parameter.detach()  # keep what is there
            return
        super()._load_from_state_dict(state_dict, prefix, *args)


def _digest(rows: Tensor) -> str:
    return hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()
