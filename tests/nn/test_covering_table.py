"""Compare output, attention and all gradients with the float64 reference for every pair of layer options."""

import itertools

import pytest
import torch
from helpers import assert_matches_reference, pairwise, random_graph

from rgat.nn import RGATConv, RGCNConv

N, R, F, D = 9, 4, 5, 3
OPTIONS = {
    "scope": ["within", "across", "mixed"],
    "score": [
        *[("additive", None), ("multiplicative", None), ("multiplicative", 1), ("multiplicative", 5)],
        *[("dynamic", None), ("dynamic", 4)],
    ],
    "heads": [1, 2, 3],
    "head_merge": ["concat", "mean", "sum", "projection"],
    "num_bases": [None, 2],
    "num_attention_bases": [None, 3],
    "edge_dim": [None, 4],
    "feature_dropout": [0.0, 0.4],
    "edge_dropout": [0.0, 0.4],
    "bias": [True, False],
    "constant_attention": [False, True],
    "input": ["dense", "featureless", "compact", "index", "sparse"],
}
WITH_NODES = OPTIONS | {"input": ["dense and nodes", "dense and compact nodes", "index and nodes"]}
OF_RGCN = ("num_bases", "feature_dropout", "edge_dropout", "bias", "input")
RGCN_OPTIONS, RGCN_WITH_NODES = ({name: options[name] for name in OF_RGCN} for options in (OPTIONS, WITH_NODES))
TABLES = [(pairwise(options), options) for options in (OPTIONS, WITH_NODES, RGCN_OPTIONS, RGCN_WITH_NODES)]
ROWS, RGCN_ROWS = TABLES[0][0] + TABLES[1][0], TABLES[2][0] + TABLES[3][0]


def make_input(kind):
    """Return the input, its width, and what the layer is to know about nodes."""
    graph = random_graph(N, 60, R, seed=1)
    generator = torch.Generator().manual_seed(2)
    index = torch.randint(F, (N,), generator=generator)
    dense = torch.randn(N, F, generator=generator, dtype=torch.float64)
    return {
        "dense": (dense, F, {}),
        "featureless": (None, N, {}),
        "compact": (None, N, {"graph": graph}),
        "index": (index, F, {}),
        "sparse": (torch.nn.functional.one_hot(index, F).double().to_sparse(), F, {}),
        "dense and nodes": (dense, F, {"num_nodes": N}),
        "dense and compact nodes": (dense, F, {"num_nodes": N, "graph": graph}),
        "index and nodes": (index, F, {"num_nodes": N}),
    }[kind]


def build(row):
    x, width, nodes = make_input(row["input"])
    scope = row["scope"]
    if scope == "mixed":
        scope = ["across", "within", "across"][: row["heads"]]
    names = (
        "heads",
        "head_merge",
        "num_bases",
        "num_attention_bases",
        "edge_dim",
        "feature_dropout",
        "edge_dropout",
        "bias",
    )
    score, attention_channels = row["score"]
    conv = RGATConv(
        width,
        D,
        R,
        scope=scope,
        score=score,
        attention_channels=attention_channels,
        **nodes,
        **{k: row[k] for k in names},
    )
    if conv.bias is not None:
        torch.nn.init.normal_(conv.bias)
    return conv, x, random_graph(N, 60, R, edge_dim=row["edge_dim"], seed=1)


def label(row):
    return "-".join(str(value) for value in row.values())


@pytest.mark.parametrize(("table", "size"), [*zip(TABLES, (34, 28, 11, 8), strict=True)])
def test_the_tables_cover_every_pair_of_options(table, size):
    rows, options = table
    assert len(rows) == size
    pairs = 0
    for a, b in itertools.combinations(options, 2):
        seen = {(str(row[a]), str(row[b])) for row in rows}
        assert len(seen) == len(options[a]) * len(options[b])
        pairs += len(seen)
    assert pairs > 40


BACKENDS = [
    ("cpu", "torch"),
    ("cpu", "numba"),
    pytest.param("cuda", "torch", marks=pytest.mark.gpu),
    pytest.param("cuda", "triton", marks=pytest.mark.gpu),
]
PRECISIONS = [(torch.float64, None), (torch.float32, None), (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@pytest.mark.parametrize(("dtype", "autocast"), PRECISIONS, ids=["float64", "float32", "bf16-autocast"])
@pytest.mark.parametrize("row", ROWS, ids=label)
def test_rgat_agrees_with_the_reference(row, dtype, autocast, device, backend):
    conv, x, graph = build(row)
    constant = row["constant_attention"]
    compared = assert_matches_reference(
        conv, x, graph, dtype, autocast, backend, device=device, constant_attention=constant
    )
    assert compared >= 3


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@pytest.mark.parametrize(("dtype", "autocast"), PRECISIONS, ids=["float64", "float32", "bf16-autocast"])
@pytest.mark.parametrize("row", RGCN_ROWS, ids=label)
def test_rgcn_agrees_with_the_reference(row, dtype, autocast, device, backend):
    x, width, nodes = make_input(row["input"])
    options = {name: row[name] for name in ("num_bases", "feature_dropout", "edge_dropout", "bias")}
    conv = RGCNConv(width, D, R, **nodes, **options)
    assert (
        assert_matches_reference(
            conv, x, random_graph(N, 60, R, seed=1), dtype, autocast, backend, device=device, attention=False
        )
        >= 2
    )
