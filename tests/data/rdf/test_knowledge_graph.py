import numpy as np
import torch
from helpers_rdf import EX, table, write

from rgat.data import MISSING, from_rdf, prune
from rgat.models import NodeClassifier


def test_inverses_and_self_loops_are_options(tmp_path):
    path = write(tmp_path)
    data = from_rdf(path)
    assert (data.graph.num_relations, data.graph.num_edges) == (2 * 6 + 1, 2 * 11 + 12)
    assert len(data.relation_names) == 13
    plain = from_rdf(path, inverses=False, self_loops=False)
    assert (plain.graph.num_relations, plain.graph.num_edges) == (6, 11)
    assert data.provenance["edges"] == plain.provenance["edges"] == 11


def test_an_empty_file_is_an_empty_graph(tmp_path):
    data = from_rdf(write(tmp_path, ""))
    assert (data.graph.num_nodes, data.graph.num_edges) == (0, 0)
    assert "0 nodes" in str(data)


def test_pruning_leaves_the_outputs_at_labelled_nodes_as_they_were(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"<{EX}n{rng.integers(80)}> <{EX}p{rng.integers(3)}> <{EX}n{rng.integers(80)}> .\n" for _ in range(90)]
    labels = table(tmp_path, f"node class\n{EX}n3 red\n{EX}n5 blue\n{EX}n7 red\n")
    data = from_rdf(write(tmp_path, "".join(lines)), labels, skip_unknown=True)
    small = prune(data, 2)
    assert small.graph.num_nodes < data.graph.num_nodes
    assert small.graph.num_edges < data.graph.num_edges
    x = torch.randn(data.graph.num_nodes, 4)
    places = torch.tensor([data.node_names.index(name) for name in small.node_names])
    for scope in ("within", "across"):
        model = NodeClassifier(4, 2, data.graph.num_relations, scope=scope)
        full, part = model(x, data.graph)[places], model(x[places], small.graph)
        labelled = small.labels != MISSING
        assert labelled.sum() == 3
        torch.testing.assert_close(part[labelled], full[labelled])
    again = from_rdf(tmp_path / "graph.nt", labels, skip_unknown=True, hops=2)
    assert again.node_names == small.node_names
