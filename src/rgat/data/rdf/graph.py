"""Build the graph that layers receive from triples: with inverses and self-loops where asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rgat.data.dataset import INVERSE, NodeData
from rgat.data.rdf.reader import Triples
from rgat.graph import RelationalGraph


def relational_graph(triples: Triples, inverses: bool, self_loops: bool) -> RelationalGraph:
    """Return the graph of some triples; the inverse of relation ``r`` is ``r + R``, and self-loops are the last one."""
    edges = torch.from_numpy(triples.edges)
    graph = RelationalGraph(
        edges[:, [0, 2]].t(),
        edges[:, 1],
        num_nodes=len(triples.node_names),
        num_relations=len(triples.relation_names),
    )
    if inverses:
        graph = graph.with_inverses()
    return graph.with_self_loops() if self_loops else graph


def all_relation_names(names: Sequence[str], inverses: bool, self_loops: bool) -> tuple[str, ...]:
    """Return the names of all relations of such a graph."""
    return (*names, *(f"{INVERSE}{name}" for name in names if inverses), *(["self"] if self_loops else []))


def assemble(
    triples: Triples,
    x: Tensor | None,
    labels: Tensor,
    classes: tuple[str, ...],
    parts: Sequence[Tensor],
    inverses: bool,
    self_loops: bool,
    name: str,
) -> NodeData:
    """Return a data set of triples, labels and parts, with inverse and self-loop relations added on request."""
    graph = relational_graph(triples, inverses, self_loops)
    return NodeData(
        name=name,
        graph=graph,
        x=x,
        labels=labels,
        classes=classes,
        train=parts[0],
        valid=parts[1],
        test=parts[2],
        node_names=tuple(triples.node_names),
        relation_names=all_relation_names(triples.relation_names, inverses, self_loops),
        provenance={"nodes": graph.num_nodes, "edges": len(triples), "relations": len(triples.relation_names)},
    )
