"""What the relational layers share: inputs, graph, values, dropout state, and the rows of featureless layers."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from rgat import ops
from rgat.checks import check_count
from rgat.graph import RelationalGraph, Rows, check_ids
from rgat.nn.kernels import BasisKernel, FullKernel, RowKernel


class RelationalConv(nn.Module):
    """A layer whose values are ``g_j = h_j W[r, k]``; subclasses say how neighbours are weighted."""

    row_ends: ClassVar[tuple[str, ...]]  # which rows of the structure the kernels are read at
    _attention_width: int = 0  # attention channels; 0: constant attention

    rows: Tensor | None  # [U] int64, sorted `r * N + node`: the rows that a compact featureless layer holds
    rows_digest: str | None = None  # tells rows apart where their values are lost, as `to_empty` loses them
    dropout_state: Tensor  # [2] int64: seed, number of training calls so far; masks are a function of both

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        heads: int,
        num_bases: int | None,
        feature_dropout: float,
        edge_dropout: float,
        graph: RelationalGraph | None,
    ) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("num_relations", num_relations)):
            check_count(name, value, least=0)
        for name, value in (("out_channels", out_channels), ("heads", heads)):
            check_count(name, value)
        for name, rate in (("feature_dropout", feature_dropout), ("edge_dropout", edge_dropout)):
            if not 0 <= rate < 1:
                raise ValueError(f"`{name}` must be at least 0 and below 1, got {rate}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.num_relations = num_relations
        self.heads = heads
        self.feature_dropout = feature_dropout
        self.edge_dropout = edge_dropout
        self.register_buffer("rows", None)
        sizes = (num_relations, heads, in_channels, out_channels)
        self.kernel: FullKernel | BasisKernel | RowKernel
        if num_bases is not None:
            check_count("num_bases", num_bases)
            self.kernel = BasisKernel(*sizes, num_bases)
        elif graph is not None:
            keys = self._keys_of(graph)
            self.kernel = RowKernel(*sizes, len(keys))
            self.register_buffer("rows", keys.to(self.kernel.weight.device))
            self.rows_digest = _digest(keys)
        else:
            self.kernel = FullKernel(*sizes)
        self.register_buffer("dropout_state", torch.zeros(2, dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Draw all parameters anew, and the seed of the dropout masks."""
        self.kernel.reset(self.in_channels + self.out_channels)
        self.dropout_state.zero_()
        self.dropout_state[0] = torch.randint(2**63 - 1, ())

    def _kernels(self) -> Tensor:
        """``W`` as ``[R, H, F, D]``."""
        if isinstance(self.kernel, RowKernel):
            assert self.rows is not None
            return self.kernel.compose_rows(self.rows)
        return self.kernel.compose()

    def _as_graph(
        self, x: Tensor | None, graph: RelationalGraph | Tensor, edge_type: Tensor | None, edge_attr: Tensor | None
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

    def _split_input(self, x: Tensor | None, graph: RelationalGraph) -> tuple[Tensor | None, Tensor | None]:
        """Return dense features ``[N, F]``, or the position of the one of each node's one-hot input ``[N]``.

        Without either, each node's own.
        """
        if self.rows is not None and x is not None:
            raise ValueError("a layer built with `graph=` is featureless and takes only `x=None`")
        if x is None:
            if graph.num_nodes != self.in_channels:
                raise ValueError(
                    f"without features, `in_channels` must be the number of nodes, {graph.num_nodes}, "
                    f"got {self.in_channels}"
                )
            return None, None
        if x.layout != torch.strided:
            x = _one_hot_index(x, self.in_channels)
        if x.dim() == 1 and not x.is_floating_point() and x.dtype != torch.bool:
            if graph.validate and _may_look_at_values():
                check_ids("x", x, self.in_channels, "in_channels")
            self._check_num_nodes(x, graph)
            return None, x.long()
        if x.dim() != 2 or x.shape[1] != self.in_channels:
            raise ValueError(f"`x` must have shape [num_nodes, {self.in_channels}], got {list(x.shape)}")
        if x.shape[1] == 0:
            raise ValueError("`x` must have at least one column, got none; without features pass None")
        self._check_num_nodes(x, graph)
        check_features("x", x, graph)
        autocast = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (x.dtype, self._dtype)
        if x.dtype != self._dtype and not autocast:
            raise TypeError(f"`x` must have the layer's dtype {self._dtype}, got {x.dtype}; convert one of them")
        return x, None

    @staticmethod
    def _check_num_nodes(x: Tensor, graph: RelationalGraph) -> None:
        if x.shape[0] != graph.num_nodes:
            raise ValueError(f"`x` must have one row per node of the graph, {graph.num_nodes}, got {x.shape[0]}")

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.kernel.parameters()).dtype

    def plan(self, graph: RelationalGraph, alternative: str | None = None) -> ops.Plan:
        """How a call with node features is computed on this graph, with the estimated costs: print it.

        Args:
            graph: of the call.
            alternative: ask for this one instead of the cheapest, and pass the plan to the call as ``plan=``.
        """
        return self._plan(graph, constant_attention=False, alternative=alternative)

    def _plan(self, graph: RelationalGraph, constant_attention: bool, alternative: str | None = None) -> ops.Plan:
        attends = 0 if constant_attention else self._attention_width
        bases = self.kernel.bases.shape[0] if isinstance(self.kernel, BasisKernel) else None
        drops = self.training and self.feature_dropout > 0
        sizes = ops.Sizes(
            self.in_channels, self.out_channels, self.heads, attends, bases, drops, torch.is_grad_enabled()
        )
        if torch.compiler.is_compiling():  # plans are made in eager mode
            plan = graph.plans.get((sizes, alternative)) or ops.Plan()
            return plan if ops.requested_backend() in ("auto", plan.backend) else ops.Plan()
        return ops.make_plan(graph, sizes, ops.active_backend(graph.device), alternative)

    def _convolve(
        self,
        x: Tensor,
        attention_kernels: Tensor | None,
        edge_logits: Tensor | None,
        graph: RelationalGraph,
        plan: ops.Plan,
        how: ops.Attention,
        state: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs ``[N, H, D]`` and attention ``[E, H]`` for dense features, in the order that is planned.

        ``attention_kernels`` are ``[Q; K]`` stacked, ``[R, H, 2 D, A]``; None: constant attention.
        """
        self._check_plan(plan, graph)
        x = as_autocast(x)
        bias = None if bias is None else bias.to(x.dtype)
        s = graph.complete_structure if plan.alternative == "dense" else graph.structure
        if not (isinstance(self.kernel, BasisKernel) and plan.alternative.startswith("basis")):
            inputs = (x, self._kernels(), attention_kernels, edge_logits)
            return ops.convolve(*inputs, s, how, state, plan.aggregated, bias)
        queries = keys = None
        if attention_kernels is not None:
            weight, query_weight = ops.fold(self._kernels(), attention_kernels)
            queries = self._project_scores(x, query_weight, s.targets)
            keys = self._project_scores(x, weight[..., self.heads * self.out_channels :], s.sources)
        scores = (queries, keys, edge_logits)
        bases, coefficients = self.kernel.bases.to(x.dtype), self.kernel.coefficients.to(x.dtype)
        if plan.alternative == "basis":
            table = torch.einsum("nf,bfd->nbd", x, bases).unsqueeze(1)
            out, attention = ops.attend(ops.spread(table, coefficients, s.sources), *scores, s, how, state)
        else:
            sums, attention = ops.sum_inputs(x, *scores, s, how, state)
            table = ops.collect(sums, coefficients, s.targets, graph.num_nodes)  # [N, H, B, F]
            out = torch.einsum("nhbf,bfd->nhd", table, bases)
        return out if bias is None else out + bias.view(out.shape[1:]), attention

    def _check_plan(self, plan: ops.Plan, graph: RelationalGraph) -> None:
        """Refuse a plan that was made for another graph or another way to call the layer."""
        if plan.aggregated and len(plan.aggregated) != graph.num_relations:
            raise ValueError(
                f"a plan must be made for a graph of {graph.num_relations} relations, got one for "
                f"{len(plan.aggregated)}; ask `conv.plan(graph)`"
            )
        drops = self.training and self.feature_dropout > 0
        if drops and (any(plan.aggregated) or plan.alternative == "basis aggregate"):
            raise ValueError(
                f'the plan "{plan.alternative}" must not be used with feature dropout, which is on; '
                "ask `conv.plan(graph)` in training mode"
            )

    def _project_scores(self, x: Tensor, weight: Tensor, rows: Rows) -> Tensor:
        """Queries or keys ``[U, H, A]`` with folded kernels ``[R, 1, F, H * A]``."""
        return ops.project(x.unsqueeze(1), weight.to(x.dtype), rows).view(-1, self.heads, weight.shape[3] // self.heads)

    def _values(self, x: Tensor | None, index: Tensor | None, rows: Rows, graph: RelationalGraph) -> Tensor:
        """The values ``g`` of the given rows, ``[U, H, D]``."""
        if x is not None:
            return self.kernel.project(as_autocast(x), rows)
        if isinstance(self.kernel, RowKernel):
            return ops.look_up(self.kernel.weight, find_rows(self.rows, rows, graph))[0]
        return self.kernel.look_up(None if index is None else index.index_select(0, rows.node), rows)

    def _both_values(self, x: Tensor | None, index: Tensor | None, graph: RelationalGraph) -> tuple[Tensor, ...]:
        """The values of the source rows, and of the target rows."""
        ends = (graph.structure.sources, graph.structure.targets)
        if isinstance(self.kernel, RowKernel):
            return ops.look_up(self.kernel.weight, *(find_rows(self.rows, rows, graph) for rows in ends))
        return tuple(self._values(x, index, rows, graph) for rows in ends)

    def _attend_rows(
        self,
        kernels: tuple[Tensor, Tensor] | None,
        edge_logits: Tensor | None,
        graph: RelationalGraph,
        how: ops.Attention,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor] | None:
        """What ``ops.attend`` returns, straight from the rows that a compact featureless layer holds, where it can be.

        ``kernels`` make queries and keys of values; None: constant attention.
        """
        if not isinstance(self.kernel, RowKernel) or not ops.can_attend_rows(self.kernel.weight, how):
            return None
        self._check_rows(graph)
        places = row_places(self.rows, graph, kernels is not None)
        return ops.attend_rows(self.kernel.weight, kernels, edge_logits, *places, graph.structure, how, state)

    def _check_rows(self, graph: RelationalGraph) -> None:
        """Refuse a graph with other rows also where they are not read."""
        self._check_held(self.rows, graph)

    def _check_held(self, held: Tensor | None, graph: RelationalGraph) -> None:
        """Likewise, of the rows that a stack holds."""
        for end in self.row_ends if held is not None else ():
            find_rows(held, getattr(graph.structure, end), graph)

    def _keys_of(self, graph: RelationalGraph) -> Tensor:
        """The rows ``r * N + node`` that edges of ``graph`` use, sorted."""
        if (graph.num_nodes, graph.num_relations) != (self.in_channels, self.num_relations):
            raise ValueError(
                f"a layer built with `graph=` must have its sizes, in_channels={graph.num_nodes} and "
                f"num_relations={graph.num_relations}, got {self.in_channels} and {self.num_relations}"
            )
        ends = [getattr(graph.structure, end).keys(graph.num_nodes) for end in self.row_ends]
        keys: Tensor = torch.unique(torch.cat(ends))
        return keys

    def _dense(self, x: Tensor | None, index: Tensor | None) -> Tensor:
        """The input as a matrix ``[N, F]``, for the reference."""
        if x is not None:
            return x.to(self._dtype)
        eye = torch.eye(self.in_channels, dtype=self._dtype, device=next(self.parameters()).device)
        return eye if index is None else eye[index]

    def _next_dropout_state(self) -> Tensor | None:
        if not self.training or self.feature_dropout == self.edge_dropout == 0:
            return None
        state: Tensor = ops.count_call(self.dropout_state)
        return state

    @property
    def _shown_dropout(self) -> str:
        rates = {name: getattr(self, name) for name in ("feature_dropout", "edge_dropout")}
        return "".join(f", {name}={rate}" for name, rate in rates.items() if rate)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        rows = state_dict.get(prefix + "rows")
        if rows is not None and self.rows is not None and _digest(rows) != (self.rows_digest or _digest(self.rows)):
            error_msgs: list[str] = args[-1]
            error_msgs.append(
                f"`{prefix}rows` must be the rows of the graph this layer was built with "
                f"({len(self.rows)}), got others ({len(rows)}); build the layer with the graph of the saved one"
            )
            for name, parameter in self.kernel.named_parameters(prefix + "kernel"):
                state_dict[name] = parameter.detach()  # keep what is there
            return
        super()._load_from_state_dict(state_dict, prefix, *args)


def _digest(rows: Tensor) -> str:
    return hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()


def find_rows(held: Tensor | None, rows: Rows, graph: RelationalGraph) -> ops.Places:
    """Where rows of the graph stand among those that a compact layer holds; an error if one is not among them."""
    if torch.compiler.is_compiling():
        return ops.Places(*_find_rows(held, rows.keys(graph.num_nodes)))
    key = ("places", rows is graph.structure.sources)
    known, places = graph.plans.get(key, (None, None))
    if known is not held:
        with torch.inference_mode(False):  # a graph first used in inference may be trained on later
            places = ops.Places(*_find_rows(held, rows.keys(graph.num_nodes)))
        graph.plans[key] = (held, places)
    found: ops.Places = places
    return found


def row_places(held: Tensor | None, graph: RelationalGraph, targets: bool) -> tuple[ops.Places, ops.Places, Tensor]:
    """Where source rows, target rows (if these are read) and the source row of each edge stand among those held."""
    s = graph.structure
    sources = find_rows(held, s.sources, graph)
    known, at_edges = graph.plans.get(("edge places",), (None, None))
    if known is not sources:
        with torch.inference_mode(False):
            at_edges = sources.place.index_select(0, s.source_row)
        graph.plans[("edge places",)] = (sources, at_edges)
    return sources, find_rows(held, s.targets, graph) if targets else sources, at_edges


@torch.library.custom_op("rgat::find_rows", mutates_args=())
def _find_rows(held: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The places of ``keys`` among the sorted ``held``, and back; an operator, so that compiled code checks too."""
    places = torch.searchsorted(held, keys)
    if _may_look_at_values():
        missing = len(keys)
        if len(held):
            missing = int((held[places.clamp(max=len(held) - 1)] != keys).sum())
        if missing:
            raise ValueError(
                "the graph must use only rows (relation, node) of the graph this layer was built with, "
                f"got {missing} others; build the layer with this graph, or without `graph=`"
            )
    number = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
    return places.int(), number.new_full(held.shape, -1).index_copy_(0, places, number)


@_find_rows.register_fake
def _(held: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    return keys.new_empty(keys.shape, dtype=torch.int32), held.new_empty(held.shape, dtype=torch.int32)


def as_autocast(x: Tensor) -> Tensor:
    """The features in the dtype that autocast asks for, if it is on."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(device))
    return x


def check_features(name: str, features: Tensor, graph: RelationalGraph) -> None:
    """Raise unless ``features`` are numbers."""
    if not features.is_floating_point():
        raise TypeError(f"`{name}` must be floating point, got {features.dtype}; convert it with `.float()`")
    if not graph.validate or not _may_look_at_values() or _is_trusted(features):
        return
    # A sum shows at once that there is no NaN; only if it does not, each number is looked at.
    if features.sum().isnan() and features.isnan().any():
        raise ValueError(
            f"`{name}` must not contain NaN; clean the features first, or build the graph with `validate=False`"
        )
    if features.is_cuda and not features.is_inference():
        _looked_at[features] = features._version


_looked_at = WeakIdKeyDictionary()  # features on a GPU without NaN: their version then


def _is_trusted(features: Tensor) -> bool:
    """Looking at values waits for the device: there, each input is looked at once, and what a model computed never."""
    if not features.is_cuda or features.is_inference():
        return False
    return features.grad_fn is not None or _looked_at.get(features) == features._version  # type: ignore[no-untyped-call]


def _may_look_at_values() -> bool:
    """Whether Python may branch on the contents of a tensor: not while tracing or capturing."""
    return not torch.compiler.is_compiling() and not (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    )


def _one_hot_index(x: Tensor, in_channels: int) -> Tensor:
    """The column of the one in each row of a sparse one-hot matrix."""
    if x.dim() != 2 or x.shape[1] != in_channels:
        raise ValueError(f"`x` must have shape [num_nodes, {in_channels}], got {list(x.shape)}")
    x = x.to_sparse(layout=torch.sparse_coo).coalesce()
    row: Tensor
    column: Tensor
    row, column = x.indices()[:, x.values() != 0]
    expected = torch.arange(x.shape[0], device=x.device)
    if not torch.equal(row, expected) or bool(((x.values() != 1) & (x.values() != 0)).any()):
        raise ValueError("a sparse `x` must be one-hot, a single 1 in each row; pass other features as `x.to_dense()`")
    return column
