"""Compare the reference with loops over single edges in plain Python."""

import math

import pytest
import torch
from helpers import random_graph

from rgat.ops import relational_attention


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def loop_layer(x, W, QK, graph, scope, slope, edge_attr, u, a):
    """Compute output [N, H, D] and attention [E, H] as nested lists, one number at a time."""
    x, W = x.tolist(), W.tolist()
    R, H = len(W), len(W[0])
    F, D = len(W[0][0]), len(W[0][0][0])
    edges = list(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))

    def value(n, r, h):
        return [sum(x[n][f] * W[r][h][f][d] for f in range(F)) for d in range(D)]

    def project(g, kernel):
        return [sum(g[d] * kernel[d][a] for d in range(D)) for a in range(len(kernel[0]))]

    logits = []
    for e, (j, i, r) in enumerate(edges):
        row = []
        for h in range(H):
            if QK is None:
                row.append(0.0)
                continue
            q = project(value(i, r, h), QK[0][r][h].tolist())
            k = project(value(j, r, h), QK[1][r][h].tolist())
            if a is not None:
                hidden = [s if s > 0 else slope * s for s in map(sum, zip(q, k, strict=True))]
                z = dot(a[r][h].tolist(), hidden)
            else:
                z = dot(q, k) if slope is None else q[0] + k[0]
            if u is not None:
                z += dot(edge_attr[e].tolist(), u[r][h].tolist())
            if slope is not None and a is None and z < 0:
                z *= slope
            row.append(z)
        logits.append(row)

    out = [[[0.0] * D for _ in range(H)] for _ in x]
    attention = [[0.0] * H for _ in edges]
    assert graph.num_relations == R
    for e, (j, i, r) in enumerate(edges):
        for h in range(H):
            rivals = [
                math.exp(logits[o][h])
                for o, (_, other_i, other_r) in enumerate(edges)
                if other_i == i and (scope[h] == "across" or other_r == r)
            ]
            attention[e][h] = math.exp(logits[e][h]) / sum(rivals)
            for d, g in enumerate(value(j, r, h)):
                out[i][h][d] += attention[e][h] * g
    return torch.tensor(out, dtype=torch.float64), torch.tensor(attention, dtype=torch.float64)


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("score", ["additive", "multiplicative", "dynamic", "constant"])
@pytest.mark.parametrize("scope", [("within", "within"), ("across", "across"), ("across", "within")])
def test_reference_equals_a_loop_over_edges(scope, score, edge_dim):
    graph = random_graph(6, 30, 3, edge_dim=edge_dim, seed=3)
    H, F, D, A = 2, 4, 3, 1 if score == "additive" else 2
    x, W = torch.randn(6, F).double(), torch.randn(3, H, F, D).double()
    QK = None if score == "constant" else (torch.randn(3, H, D, A).double(), torch.randn(3, H, D, A).double())
    u = None if edge_dim is None else torch.randn(3, H, edge_dim).double()
    a = torch.randn(3, H, A).double() if score == "dynamic" else None
    slope = 0.2 if score in ("additive", "dynamic") else None
    expected, expected_attention = loop_layer(x, W, QK, graph, scope, slope, graph.edge_attr, u, a)
    options = {"score_kernels": a, "edge_attr": graph.edge_attr, "edge_kernels": u}
    out, attention = relational_attention(x, W, QK, graph, scope=scope, negative_slope=slope, **options)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(attention, expected_attention, rtol=1e-12, atol=1e-12)


def test_reference_dropout_multiplies_values_and_attention_by_their_masks():
    from rgat.ops.dropout import EDGES, FEATURES, keep_mask

    graph = random_graph(6, 30, 3, seed=3)
    H, F, D = 2, 4, 3
    x, W = torch.randn(6, F).double(), torch.randn(3, H, F, D).double()
    state = torch.tensor([11, 5])
    out, attention = relational_attention(
        x, W, None, graph, scope=["within"] * H, dropout_state=state, feature_dropout=0.5, edge_dropout=0.25
    )
    place = {edge: sorted_place for sorted_place, edge in enumerate(graph.structure.order.tolist())}
    expected = torch.zeros(6, H, D).double()
    for e, (j, i, r) in enumerate(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True)):
        keep_value = keep_mask(state, FEATURES, torch.tensor([r * 6 + j]), H * D, 0.5).view(H, D)
        keep_edge = keep_mask(state, EDGES, torch.tensor([place[e]]), H, 0.25).view(H, 1)
        expected[i] += attention[e].unsqueeze(1) * keep_edge / 0.75 * (x[j] @ W[r]) * keep_value / 0.5
    torch.testing.assert_close(out, expected)
