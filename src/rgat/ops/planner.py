"""Which of several exact ways to compute a layer is cheapest on a graph (the contractions of equations 1 to 11).

The output is ``sum over r, j of a_ij x_j W[r]``. The sums may be taken in several orders:

* ``project``: ``x_j W[r]`` for each distinct (relation, source), then the weighted sums; queries and keys with folded
  kernels, ``x (W Q)``.
* ``unfolded``: the same with ``(x W) Q``: the values of targets too.
* ``aggregate``: ``sum_j a_ij x_j`` for each distinct (relation, target), then the kernel.
* ``per relation``: the cheaper of ``project`` and ``aggregate`` for each relation.
* ``dense``: ``x W[r]`` for all nodes and relations, without gathering rows.
* ``basis``: ``x V[b]`` for each node and basis, combined for each distinct (relation, source).
* ``basis aggregate``: ``sum_j a_ij x_j``, combined for each target and basis, then ``V[b]``.

A plan is made from counts alone, in eager mode, kept with the graph, and enters traced code as a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rgat.checks import check_word
from rgat.graph import RelationalGraph

ALTERNATIVES = ("project", "unfolded", "aggregate", "per relation", "dense", "basis", "basis aggregate")


class Sizes(NamedTuple):
    """What a plan depends on beside the graph."""

    in_channels: int
    channels: int  # per head
    heads: int
    attention_channels: int  # 0: constant attention
    num_bases: int | None
    drops_features: bool  # then rows are projected first
    backward: bool


@dataclass(frozen=True)
class Plan:
    """How one call of a layer is computed."""

    alternative: str = "project"
    aggregated: tuple[bool, ...] = ()  # per relation, of "per relation" and "aggregate"
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


class Rates(NamedTuple):
    """Nanoseconds of one thread per unit of work, fitted to `benchmarks/planner.py`."""

    product: float  # multiply and add in a matrix product
    loop_product: float  # the same in a compiled loop over small matrices
    number: float  # a number read, multiplied and added in a loop over edges
    edge: float  # an edge and head, beside its numbers
    move: float  # a number gathered, scattered or written
    row: float  # a row
    call: float  # a matrix product that is started


CPU = Rates(product=0.030, loop_product=0.09, number=0.12, edge=4.0, move=0.25, row=6.0, call=6000.0)
GPU = Rates(product=0.00004, loop_product=0.0001, number=0.0006, edge=0.002, move=0.001, row=0.002, call=0.0)

SMALL = 512  # numbers in a kernel up to which the CPU backend multiplies rows in a loop


class Counts(NamedTuple):
    """Sizes of a graph."""

    num_nodes: int
    num_edges: int
    num_sources: int  # distinct (relation, source)
    num_targets: int
    num_relations: int


def _counts(graph: RelationalGraph) -> Counts:
    s = graph.structure
    return Counts(
        graph.num_nodes, graph.num_edges, s.sources.node.shape[0], s.targets.node.shape[0], graph.num_relations
    )


def make_plan(graph: RelationalGraph, sizes: Sizes, backend: str, alternative: str | None = None) -> Plan:
    """The cheapest plan, or the one that is asked for."""
    key = (sizes, alternative)
    if key not in graph.plans or graph.plans[key].backend != backend:
        graph.plans[key] = _make_plan(graph, sizes, backend, alternative)
    plan: Plan = graph.plans[key]
    if plan.alternative == "dense":
        _ = graph.complete_structure
    return plan


def _make_plan(graph: RelationalGraph, sizes: Sizes, backend: str, alternative: str | None) -> Plan:
    sides = _cheaper_sides(graph, sizes) if backend == "numba" and not sizes.drops_features else ()
    costs = estimate(_counts(graph), sizes, GPU if graph.device.type == "cuda" else CPU)
    if backend == "numba":
        if any(sides) and not all(sides):
            costs["per relation"] = _per_relation_cost(graph, sizes, sides, costs)
    else:
        for name in ("aggregate", "basis aggregate"):
            costs.pop(name, None)
    if alternative is None:
        best = min(costs, key=lambda name: costs[name])
        reason = ""
    else:
        check_word("alternative", alternative, ALTERNATIVES)
        if alternative not in costs:
            raise ValueError(
                f'the plan "{alternative}" is not possible here (possible: {", ".join(costs)}); '
                "aggregation needs the numba backend and no feature dropout, bases need `num_bases`"
            )
        best, reason = alternative, ", as asked for"
    relations = graph.num_relations
    aggregated = {"aggregate": (True,) * relations, "per relation": sides}.get(best, ())
    return Plan(best, aggregated, costs, reason, backend)


def estimate(counts: Counts, sizes: Sizes, rates: Rates) -> dict[str, float]:
    """Milliseconds of the alternatives that treat all relations alike."""
    n, edges, sources, targets, relations = counts
    F, D, H, A, B = sizes[:5]
    passes = 3 if sizes.backward else 1
    HD = H * D

    def projected(rows: int, width: int, depth: int, calls: int, moved: int) -> float:
        """Rows of ``depth`` numbers times matrices of ``width`` columns."""
        return passes * (_products(rows, depth, width, calls, rates) + rows * (rates.row + moved * rates.move))

    def summed(width: int) -> float:
        return passes * edges * H * (rates.edge + width * rates.number)

    compose = 0.0 if B is None else passes * relations * H * B * F * D * rates.product
    scores = projected(sources, H * A, F, relations, F) + projected(targets, H * A, F, relations, F) if A else 0.0
    values = projected(sources, HD, F, relations, F + HD)
    unfolded_scores = values / max(sources, 1) * targets
    unfolded_scores += passes * (sources + targets) * HD * (A * rates.loop_product + rates.move)
    every = n * relations
    dense = projected(every, HD, F, relations, 0) + every * passes * rates.row
    dense_scores = 2 * projected(every, H * A, F, relations, 0) if A else 0.0
    costs = {
        "project": compose + scores + values + summed(D),
        "aggregate": compose + scores + projected(targets, D, F * H, relations * H, F * H + HD) + summed(F),
    }
    if A:
        costs["unfolded"] = compose + values + unfolded_scores + summed(D)
    if every < 4 * max(sources, targets):
        costs["dense"] = compose + dense + dense_scores + summed(D)
    if B is not None:
        combine = passes * (sources * (HD * B * rates.loop_product + rates.row + HD * rates.move))
        costs["basis"] = (compose + scores if A else 0.0) + projected(n, B * D, F, 1, 0) + combine + summed(D)
        combine = passes * targets * (H * B * F * rates.loop_product + rates.row + 2 * H * F * rates.move)
        last = projected(n * H, D, B * F, 1, B * F)
        costs["basis aggregate"] = (compose + scores if A else 0.0) + combine + last + summed(F)
    if sizes.drops_features:
        for name in ("aggregate", "basis aggregate"):
            costs.pop(name, None)
    return {name: cost / 1e6 for name, cost in costs.items()}


def _products(rows: int, depth: int, width: int, calls: int, rates: Rates) -> float:
    work = rows * depth * width
    if depth * width <= SMALL:
        return work * rates.loop_product
    return work * rates.product + calls * rates.call


def _sides(graph: RelationalGraph, sizes: Sizes) -> tuple[list[float], list[float]]:
    """For each relation the costs of projecting and of aggregating first, as far as they differ."""
    s = graph.structure
    sources, targets = s.sources.relation_ptr.diff().tolist(), s.targets.relation_ptr.diff().tolist()
    edges = s.source_ptr[s.sources.relation_ptr.long()].diff().tolist()
    F, D, H = sizes[:3]
    passes = 3 if sizes.backward else 1
    kernel = F * H * D * CPU.product + CPU.row
    project = [
        passes * (n * (kernel + (F + H * D) * CPU.move) + e * H * D * CPU.number + CPU.call)
        for n, e in zip(sources, edges, strict=True)
    ]
    aggregate = [
        passes * (n * (kernel + (F + D) * H * CPU.move) + e * H * F * CPU.number + H * CPU.call)
        for n, e in zip(targets, edges, strict=True)
    ]
    return project, aggregate


def _cheaper_sides(graph: RelationalGraph, sizes: Sizes) -> tuple[bool, ...]:
    return tuple(a < p for p, a in zip(*_sides(graph, sizes), strict=True))


def _per_relation_cost(graph: RelationalGraph, sizes: Sizes, sides: tuple[bool, ...], costs: dict[str, float]) -> float:
    project, aggregate = _sides(graph, sizes)
    saved = sum(p - a for p, a, side in zip(project, aggregate, sides, strict=True) if side)
    return sum(project) / 1e6 + (costs["project"] - sum(project) / 1e6) - saved / 1e6
