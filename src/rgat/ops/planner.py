"""Choose for each relation whether inputs are projected before or after they are summed (equations 1 to 11).

The output is ``sum over r, j of a_ij x_j W[r]``. For one relation it may be computed in two orders:

* ``project``: ``x_j W[r]`` for each distinct source, then the weighted sums;
* ``aggregate``: ``sum_j a_ij x_j`` for each distinct target, then the kernel.

A plan takes one of them for all relations, or the cheaper one ``per relation``. It is made from counts alone, in eager
mode, kept with the graph, and enters traced code as a constant. Only the Numba backend aggregates: on a GPU both orders
move the same bytes, and projecting first is one launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from rgat.checks import check_word
from rgat.graph import RelationalGraph
from rgat.ops.dispatch import active_backend, requested_backend
from rgat.structure import outside

ALTERNATIVES = ("project", "aggregate", "per relation")


class Sizes(NamedTuple):
    """The sizes of a layer that a plan depends on.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> sizes = ops.Sizes(8, 16, heads=1, attention_channels=1, can_aggregate=True, backward=True)
        >>> ops.make_plan(graph, sizes, alternative="project").alternative
        'project'
    """

    in_channels: int
    channels: int  # per head
    heads: int
    attention_channels: int  # 0: constant attention
    can_aggregate: bool  # not with feature dropout, rows of nodes or the dynamic score
    backward: bool


@dataclass(frozen=True)
class Plan:
    """How one call of a layer is computed.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> from rgat.nn import RGATConv
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> conv = RGATConv(8, 16, num_relations=2)
        >>> plan = conv.plan(graph)
        >>> conv(torch.randn(3, 8), graph, plan=plan).shape
        torch.Size([3, 16])
    """

    alternative: str = "project"
    aggregated: tuple[bool, ...] = ()  # per relation; empty: none
    costs: dict[str, float] = field(default_factory=dict, compare=False)  # estimated milliseconds
    reason: str = field(default="", compare=False)
    backend: str = field(default="", compare=False)

    def __str__(self) -> str:
        lines = [f"{self.alternative}{self.reason}"]
        if self.alternative == "per relation":
            lines[0] += f" ({sum(self.aggregated)} of {len(self.aggregated)} relations aggregated first)"
        for name, cost in sorted(self.costs.items(), key=lambda item: item[1]):
            lines.append(f"{'->' if name == self.alternative else '  '} {name:16s} {cost:10.3f} ms")
        return "\n".join(lines)


class Work(NamedTuple):
    """Units of work; also the nanoseconds of each unit."""

    product: float = 0  # multiply and add in a matrix product
    number: float = 0  # a number read, multiplied and added in a loop over edges
    edge: float = 0  # an edge and head, beside its numbers
    move: float = 0  # a number gathered, scattered or written
    row: float = 0  # a row
    call: float = 0  # a matrix product that is started
    aggregation: float = 0  # a relation that is aggregated first: loops and products of its own

    def __add__(self, other: tuple[float, ...]) -> Work:  # type: ignore[override]
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def cost(self, passes: int) -> float:
        """Return milliseconds on one thread."""
        return passes * sum(a * b for a, b in zip(self, NANOSECONDS, strict=True)) / 1e6


# On one thread, fitted by `benchmarks/planner.py --fit`.
NANOSECONDS = Work(0.02, 0.7, 40.0, 0.47, 40.0, 1_000.0, 30_000.0)


def make_plan(graph: RelationalGraph, sizes: Sizes, alternative: str | None = None) -> Plan:
    """Return the cheapest plan, or the one that is asked for; in compiled code one made before, or the default.

    Examples:
        >>> import torch
        >>> from rgat import RelationalGraph, ops
        >>> edges, types = torch.tensor([[0, 1, 2], [1, 2, 1]]), torch.tensor([0, 0, 1])
        >>> graph = RelationalGraph(edges, types, num_nodes=3, num_relations=2)
        >>> sizes = ops.Sizes(8, 16, heads=1, attention_channels=0, can_aggregate=False, backward=False)
        >>> ops.make_plan(graph, sizes).alternative
        'project'
    """
    key = (sizes, alternative)
    if torch.compiler.is_compiling():
        known: Plan = graph.plans.get(key) or Plan()
        return known if requested_backend() in ("auto", known.backend) else Plan()
    backend = active_backend(graph.device)
    if key not in graph.plans or graph.plans[key].backend != backend:
        with outside():
            graph.plans[key] = _make_plan(graph, sizes, backend, alternative)
    plan: Plan = graph.plans[key]
    return plan


def can_aggregate(device: torch.device) -> bool:
    """Whether the backend for tensors on a device can sum inputs first; the reference takes any plan.

    Examples:
        >>> import torch
        >>> from rgat import ops
        >>> with ops.backend("torch"):
        ...     ops.can_aggregate(torch.device("cpu"))
        False
    """
    return torch.compiler.is_compiling() or active_backend(device) in ("numba", "reference")


def _make_plan(graph: RelationalGraph, sizes: Sizes, backend: str, alternative: str | None) -> Plan:
    passes = 3 if sizes.backward else 1
    costs = {name: work.cost(passes) for name, work in total_work(graph, sizes).items()}
    sides: tuple[bool, ...] = ()
    if backend != "numba" or not sizes.can_aggregate:
        del costs["aggregate"]
    else:
        gains = [project.cost(passes) - aggregate.cost(passes) for project, aggregate in relation_work(graph, sizes)]
        sides, gain = tuple(gain > 0 for gain in gains), sum(gain for gain in gains if gain > 0)
        # A mixture takes a fifth to a quarter more than the sum of its parts: it must promise more than that.
        if any(sides) and not all(sides) and gain > 0.25 * costs["project"]:
            costs["per relation"] = costs["project"] - gain
    if alternative is None:
        chosen, reason = min(costs, key=lambda name: costs[name]), ""
    else:
        check_word("alternative", alternative, ALTERNATIVES)
        if alternative not in costs:
            raise ValueError(
                f'the plan "{alternative}" is not possible here (possible: {", ".join(costs)}); aggregation needs the '
                "numba backend, no feature dropout, no rows of nodes, and a score that is not dynamic"
            )
        chosen, reason = alternative, ", as asked for"
    aggregated = {"aggregate": (True,) * graph.num_relations, "per relation": sides}.get(chosen, ())
    return Plan(chosen, aggregated, costs, reason, backend)


def total_work(graph: RelationalGraph, sizes: Sizes) -> dict[str, Work]:
    """Count the work of a forward pass in either order, for all relations."""
    F, _, H, A = sizes[:4]
    queries = _products(graph.structure.targets.node.shape[0], F, H * A, graph.num_relations) if A else Work()
    works = relation_work(graph, sizes)
    return {name: sum((pair[order] for pair in works), queries) for order, name in enumerate(("project", "aggregate"))}


def relation_work(graph: RelationalGraph, sizes: Sizes) -> list[tuple[Work, Work]]:
    """Count for each relation the work of projecting first and of aggregating first, without the queries."""
    s = graph.structure
    pointers = (s.sources.relation_ptr, s.targets.relation_ptr, s.source_ptr[s.sources.relation_ptr.long()])
    F, D, H, A = sizes[:4]
    works = []
    for sources, targets, edges in zip(*(ptr.diff().tolist() for ptr in pointers), strict=True):
        project = _products(sources, F, H * (D + A), 1) + _sums(edges, H, D)
        sums = Work(targets * H * F * D, move=targets * H * (F + D), row=targets, call=H, aggregation=1)
        aggregate = _sums(edges, H, F) + sums
        if A:
            aggregate += _products(sources, F, H * A, 1)  # keys
        works.append((project, aggregate))
    return works


def _sums(edges: float, heads: int, width: int) -> Work:
    """Count the weighted sums over edges."""
    return Work(number=edges * heads * width, edge=edges * heads)


def _products(rows: float, depth: int, width: int, calls: int) -> Work:
    """Count the products of gathered rows with the kernels of their relations."""
    return Work(product=rows * depth * width, move=rows * (depth + width), row=rows, call=calls)
