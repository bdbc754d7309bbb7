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
from rgat.graph import RelationalGraph, outside

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


class Work(NamedTuple):
    """Units of work of a way to compute a layer; also the nanoseconds of each unit."""

    product: float = 0  # multiply and add in a matrix product
    loop_product: float = 0  # the same in a compiled loop over bases
    number: float = 0  # a number read, multiplied and added in a loop over edges
    edge: float = 0  # an edge and head, beside its numbers
    move: float = 0  # a number gathered, scattered or written
    row: float = 0  # a row
    call: float = 0  # a matrix product that is started
    aggregation: float = 0  # a relation that is aggregated first: its own loops and products
    operation: float = 0  # an operation of its own in PyTorch's graph

    def __add__(self, other: tuple[float, ...]) -> Work:  # type: ignore[override]
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Work:
        """The work of several passes."""
        return Work(*(a * factor for a in self))

    def cost(self, rates: Work) -> float:
        """Milliseconds."""
        return sum(a * b for a, b in zip(self, rates, strict=True)) / 1e6


# Nanoseconds on one thread, fitted by `benchmarks/planner.py --fit`.
CPU = Work(0.02, 0.05, 0.7, 40.0, 0.47, 40.0, 1_000.0, 30_000.0, 60_000.0)
# On an H200, where everything is traffic, and operations are launches.
GPU = Work(0.00004, 0.00004, 0.001, 0.002, 0.001, 0.001, 0.0, 100_000.0, 60_000.0)


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
        with outside():
            graph.plans[key] = _make_plan(graph, sizes, backend, alternative)
    plan: Plan = graph.plans[key]
    if plan.alternative == "dense":
        _ = graph.complete_structure
    return plan


def _make_plan(graph: RelationalGraph, sizes: Sizes, backend: str, alternative: str | None) -> Plan:
    costs = estimate(_counts(graph), sizes, GPU if graph.device.type == "cuda" else CPU)
    sides: tuple[bool, ...] = ()
    if backend != "numba":
        for name in ("aggregate", "basis aggregate"):
            costs.pop(name, None)
    elif not sizes.drops_features:
        sides, gain = _cheaper_sides(graph, sizes)
        # A mixture takes a fifth to a quarter more than the sum of its parts: it must promise more than that.
        if any(sides) and not all(sides) and gain > 0.25 * costs["project"]:
            costs["per relation"] = costs["project"] - gain
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


def work(counts: Counts, sizes: Sizes) -> dict[str, Work]:
    """The work of the alternatives that treat all relations alike."""
    n, edges, sources, targets, relations = counts
    F, D, H, A, B = sizes[:5]
    passes = 3 if sizes.backward else 1
    HD = H * D
    every = n * relations

    scores = _products(targets, F, H * A, relations) if A else Work()  # queries; keys are columns of the values
    compose = Work() if B is None else Work(product=relations * HD * B * F)
    keys = _products(sources, F, H * A, relations) if A else Work()
    found = {
        "project": compose + scores + _products(sources, F, HD + H * A, relations) + _sums(edges, H, D),
        "aggregate": compose + scores + keys + _aggregated(targets, F, D, H, relations) + _sums(edges, H, F),
    }
    if A:
        unfolded = _products(sources + targets, F, HD, 2 * relations) + _products(sources + targets, D, A, 0, H)
        found["unfolded"] = compose + unfolded + _sums(edges, H, D) + Work(move=2 * sources * HD, operation=2)
    if every < 4 * max(sources, targets):
        dense = _products(every, F, HD + H * A, relations) + _products(every if A else 0, F, H * A, relations)
        found["dense"] = compose + dense + _sums(edges, H, D) + Work(row=every)
    if B is not None:
        composed = compose + scores + keys + Work(operation=1) if A else Work()
        combine = Work(loop_product=sources * HD * B, row=sources, move=3 * sources * HD, operation=2)
        found["basis"] = composed + combine + _product(n, F, B * D) + _sums(edges, H, D)
        combine = Work(loop_product=targets * H * B * F, row=targets, move=2 * targets * H * F, operation=2)
        last = _product(n * H, B * F, D) + Work(move=n * H * B * F)
        found["basis aggregate"] = composed + combine + last + _sums(edges, H, F)
    if sizes.drops_features:
        for name in ("aggregate", "basis aggregate"):
            found.pop(name, None)
    return {name: one.times(passes) for name, one in found.items()}


def estimate(counts: Counts, sizes: Sizes, rates: Work) -> dict[str, float]:
    """Milliseconds of the alternatives that treat all relations alike."""
    return {name: one.cost(rates) for name, one in work(counts, sizes).items()}


def _sums(edges: float, heads: int, width: int) -> Work:
    """Weighted sums over the edges."""
    return Work(number=edges * heads * width, edge=edges * heads)


def _product(rows: float, depth: int, width: int) -> Work:
    """One matrix product."""
    return Work(product=rows * depth * width, move=rows * width, call=1)


def _products(rows: float, depth: int, width: int, calls: int, batch: int = 1) -> Work:
    """Rows of ``depth`` numbers, gathered, times the kernels of their relations."""
    amount = rows * depth * width * batch
    return Work(product=amount, move=rows * (depth + width) * batch, row=rows, call=calls)


def _aggregated(targets: float, inputs: int, channels: int, heads: int, relations: int) -> Work:
    """Sums of inputs times the kernels of their relations."""
    amount = targets * heads * inputs * channels
    moved = targets * heads * (inputs + channels)
    return Work(product=amount, move=moved, row=targets, call=relations * heads, aggregation=relations)


def _sides(graph: RelationalGraph, sizes: Sizes) -> list[tuple[Work, Work]]:
    """For each relation the work of projecting and of aggregating first, as far as they differ."""
    s = graph.structure
    counts = (s.sources.relation_ptr, s.targets.relation_ptr, s.source_ptr[s.sources.relation_ptr.long()])
    F, D, H, A = sizes[:4]
    passes = 3 if sizes.backward else 1
    found = []
    for sources, targets, edges in zip(*(ptr.diff().tolist() for ptr in counts), strict=True):
        project = _products(sources, F, H * (D + A), 1) + _sums(edges, H, D)
        aggregate = _aggregated(targets, F, D, H, 1) + _sums(edges, H, F)
        if A:
            aggregate += Work(product=sources * F * H * A, move=sources * (F + H * A), call=1)
        found.append((project.times(passes), aggregate.times(passes)))
    return found


def _cheaper_sides(graph: RelationalGraph, sizes: Sizes) -> tuple[tuple[bool, ...], float]:
    """Which relations are better aggregated first, and the milliseconds that this saves."""
    gains = [project.cost(CPU) - aggregate.cost(CPU) for project, aggregate in _sides(graph, sizes)]
    return tuple(gain > 0 for gain in gains), sum(gain for gain in gains if gain > 0)
