"""Sample the incoming edges of nodes on the CPU, and sort them as `rgat.structure` does, without a comparison sort."""

from __future__ import annotations

import numpy as np

from rgat.ops.numba.compile import compiled
from rgat.ops.numba.row_loops import id_key, random_bits


@compiled
def count_edges(targets, node_ptr, group_ptr, group_relation, fanout):
    """Return the numbers of groups and of edges that a sample of these targets has."""
    num_groups = num_edges = 0
    for i in targets:
        num_groups += node_ptr[i + 1] - node_ptr[i]
        for v in range(node_ptr[i], node_ptr[i + 1]):
            degree, most = group_ptr[v + 1] - group_ptr[v], fanout[group_relation[v]]
            num_edges += degree if most < 0 else min(degree, most)
    return num_groups, num_edges


@compiled
def draw_edges(
    targets, node_ptr, group_ptr, group_relation, fanout, stream, num_nodes,
    target, group, edge_id, target_ptr, new_group_ptr, relation_of_group, groups_of_node,
):  # fmt: skip
    """Draw the edges of each group uniformly without replacement, by Floyd's algorithm, in ascending order.

    The j-th of k draws from d edges takes a random one of the first d - k + j + 1, or the last of these if that one was
    drawn before.
    """
    e = w = 0
    target_ptr[0] = new_group_ptr[0] = groups_of_node[0] = 0
    for t in range(len(targets)):
        i = targets[t]
        for v in range(node_ptr[i], node_ptr[i + 1]):
            relation, first = group_relation[v], group_ptr[v]
            degree, most = group_ptr[v + 1] - first, fanout[relation]
            begin = e
            if most < 0 or degree <= most:
                for j in range(degree):
                    edge_id[e] = first + j
                    e += 1
            else:
                key = id_key(stream, np.int64(relation) * num_nodes + i)
                for j in range(most):
                    last = degree - most + j
                    drawn = np.int64((np.uint64(random_bits(key, j)) * np.uint64(last + 1)) >> np.uint64(32))
                    drawn += first
                    place = e
                    while place > begin and edge_id[place - 1] > drawn:
                        place -= 1
                    if place > begin and edge_id[place - 1] == drawn:
                        edge_id[e] = first + last  # larger than all before
                    else:
                        for k in range(e, place, -1):
                            edge_id[k] = edge_id[k - 1]
                        edge_id[place] = drawn
                    e += 1
            for k in range(begin, e):
                target[k] = t
                group[k] = w
            relation_of_group[w] = relation
            w += 1
            new_group_ptr[w] = e
        target_ptr[t + 1] = e
        groups_of_node[t + 1] = w


@compiled
def number_sources(edge_id, source, local, nodes, num_numbered, out):
    """Write the local id of each edge's source, append sources without one to ``nodes``, and return their number."""
    for e in range(len(edge_id)):  # apart from the next loop, so that the processor can overlap its cache misses
        out[e] = source[edge_id[e]]
    for e in range(len(edge_id)):
        j = out[e]
        number = local[j]
        if number < 0:
            number = num_numbered
            local[j] = number
            nodes[number] = j
            num_numbered += 1
        out[e] = number
    return num_numbered


@compiled
def sort_sources(
    source, group, relation_of_group, relation_ptr, node_ptr, by_source, source_row, source_ptr, row_node, row_relation,
    by_node, scratch,
):  # fmt: skip
    """Sort edges by (relation, source), find the distinct pairs, and return the number of these rows.

    Two stable counting sorts; ``relation_ptr`` [R + 1] and ``node_ptr`` [N + 1] begin as zeros.
    """
    for e in range(len(source)):
        node_ptr[source[e] + 1] += 1
    for i in range(len(node_ptr) - 1):
        node_ptr[i + 1] += node_ptr[i]
    for e in range(len(source)):
        scratch[node_ptr[source[e]]] = e
        node_ptr[source[e]] += 1
    num_relations = len(relation_ptr) - 1
    begin = np.zeros(num_relations + 1, dtype=np.int64)
    for e in range(len(source)):
        begin[relation_of_group[group[e]] + 1] += 1
    for r in range(num_relations):
        begin[r + 1] += begin[r]
    for k in range(len(source)):
        e = scratch[k]
        r = relation_of_group[group[e]]
        by_source[begin[r]] = e
        begin[r] += 1
    rows = 0
    node_ptr[:] = 0
    for k in range(len(source)):
        e = by_source[k]
        j, r = source[e], relation_of_group[group[e]]
        if rows == 0 or row_node[rows - 1] != j or row_relation[rows - 1] != r:
            row_node[rows], row_relation[rows], source_ptr[rows] = j, r, k
            relation_ptr[r + 1] += 1
            node_ptr[j + 1] += 1
            rows += 1
        source_row[e] = rows - 1
    source_ptr[rows] = len(source)
    for r in range(num_relations):
        relation_ptr[r + 1] += relation_ptr[r]
    _list_by_node(row_node, rows, node_ptr, by_node)
    return rows


@compiled
def sort_targets(relation_of_group, groups_of_node, relation_ptr, node_ptr, row_node, row_relation, by_node):
    """Sort the groups, which are in the order of (target, relation), by (relation, target)."""
    num_relations = len(relation_ptr) - 1
    begin = np.zeros(num_relations + 1, dtype=np.int64)
    for v in range(len(relation_of_group)):
        begin[relation_of_group[v] + 1] += 1
    for r in range(num_relations):
        begin[r + 1] += begin[r]
    for r in range(num_relations + 1):
        relation_ptr[r] = begin[r]
    for t in range(len(groups_of_node) - 1):
        for v in range(groups_of_node[t], groups_of_node[t + 1]):
            r = relation_of_group[v]
            row = begin[r]
            begin[r] += 1
            row_node[row], row_relation[row], by_node[v] = t, r, row
    for t in range(len(node_ptr)):  # nodes after the targets have no groups
        node_ptr[t] = groups_of_node[min(t, len(groups_of_node) - 1)]


@compiled
def _list_by_node(row_node, rows, node_ptr, by_node):
    """Sort rows by node; ``node_ptr[i + 1]`` holds the number of rows of node ``i``, and then their end."""
    for i in range(len(node_ptr) - 1):
        node_ptr[i + 1] += node_ptr[i]
    begin = node_ptr[:-1].copy()
    for row in range(rows):
        by_node[begin[row_node[row]]] = row
        begin[row_node[row]] += 1
