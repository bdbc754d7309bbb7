"""Name blank nodes by their neighbourhood: their labels may differ from format to format and from run to run."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Colours = NDArray[np.uint64]
Sides = list[tuple[Ids, Ids, Colours]]  # of edges at a blank node: this end, the other end, hash of relation and side

MAX_ROUNDS = 100  # of colour refinement; bounds the time
MAX_VISITS = 1 << 25  # of edges in all rounds after the first MAX_ROUNDS: a second or two


def name_blank_nodes(names: list[str], relation_names: list[str], edges: Ids) -> list[str]:
    """Return the names with those of blank nodes replaced by hashes of their neighbourhoods.

    The colour of a blank node is a hash of its edges and of the colours at their other ends, refined round by round.
    Components (blank nodes joined by edges between blank nodes) are numbered one after the other, so the order of equal
    components does not matter. Within a component, one of several nodes of the same colour is singled out and colours
    are refined again. After ``MAX_VISITS`` the order of first occurrence decides.
    """
    blank = np.array([name[0] == "_" for name in names], dtype=bool)
    if not blank.any():
        return names
    edges = np.unique(edges[blank[edges[:, 0]] | blank[edges[:, 2]]], axis=0)
    nodes = np.flatnonzero(blank)
    components = _components(nodes, edges[blank[edges[:, 0]] & blank[edges[:, 2]]])
    colour = _colours(names, relation_names, edges, blank, components)
    order = nodes[np.lexsort((nodes, components, colour[nodes]))]
    renamed, counts = list(names), dict.fromkeys(colour[order].tolist(), 0)
    width = len(str(len(order)))
    for node in order.tolist():
        value = int(colour[node])
        renamed[node] = f"_:{value:016x}.{counts[value]:0{width}d}"
        counts[value] += 1
    return renamed


def _colours(
    names: list[str], relation_names: list[str], edges: Ids, blank: NDArray[np.bool_], components: Ids
) -> Colours:
    """Return colours that differ within a component, unless the limits of time are reached."""
    colour = np.zeros(len(names), dtype=np.uint64)
    for node in np.unique(edges[:, [0, 2]]).tolist():
        if not blank[node]:
            colour[node] = _hash(names[node])
    relation = np.array([_hash(name) for name in relation_names], dtype=np.uint64)[edges[:, 1]]
    sides: Sides = []
    for here, there, direction in ((0, 2, 1), (2, 0, 2)):
        at_blank = blank[edges[:, here]]
        sides.append((edges[at_blank, here], edges[at_blank, there], mix(relation[at_blank] + np.uint64(direction))))
    colour, _ = _refine(colour, blank, sides, MAX_ROUNDS)
    rounds = MAX_VISITS // max(len(edges), 1)
    nodes = np.flatnonzero(blank)
    for _ in range(MAX_ROUNDS):
        order = np.lexsort((components, colour[nodes]))
        colours, component = colour[nodes[order]], components[order]
        same = (colours[1:] == colours[:-1]) & (component[1:] == component[:-1])
        if not same.any() or rounds <= 0:
            break
        chosen = nodes[order[int(np.argmax(same))]]
        colour[chosen] = mix(colour[chosen : chosen + 1] + np.uint64(1))[0]
        colour, used = _refine(colour, blank, sides, min(MAX_ROUNDS, rounds))
        rounds -= used
    return colour


def _refine(colour: Colours, blank: NDArray[np.bool_], sides: Sides, max_rounds: int) -> tuple[Colours, int]:
    """Refine the colours of blank nodes until their number stops growing; also return the number of rounds."""
    num_colours = -1
    for used in range(max_rounds):
        count = len(np.unique(colour[blank]))
        if count <= num_colours:
            return colour, used
        num_colours = count
        refined = mix(colour)
        for here, there, edge_hash in sides:
            np.add.at(refined, here, mix(colour[there] ^ edge_hash))
        colour = np.where(blank, refined, colour)
    return colour, max_rounds


def _components(nodes: Ids, edges: Ids) -> Ids:
    """Return the first node of each blank node's connected component."""
    parent = {node: node for node in nodes.tolist()}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for source, _, target in edges.tolist():
        a, b = root(source), root(target)
        parent[max(a, b)] = min(a, b)
    return np.array([root(node) for node in nodes.tolist()], dtype=np.int64)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(value: Colours) -> Colours:
    """Return the finaliser of SplitMix64: flipping one bit of the input flips about half of the output."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
