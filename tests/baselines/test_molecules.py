"""The molecule systems: their equations on molecules small enough to work out by hand."""

import math
import sys

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier

from rgat.baselines import GRAPH_BASELINES, classic, molecules, multitask
from rgat.baselines.graphconv import DegreeConv, GraphConv, batch_molecules, max_pool
from rgat.baselines.molecules import fingerprints
from rgat.baselines.multitask import Bypass, Multitask
from rgat.baselines.weave import BINS, Histogram, Weave, WeavePairs, batch_with_pairs, pair_features, store_pairs
from rgat.data import GraphData, load
from rgat.data.molecules.smiles import parse_smiles, rdkit, store_molecules
from rgat.data.splits import random_parts
from rgat.experiments.folds import fold_data
from rgat.experiments.inputs import with_descriptors


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def data_of(smiles, labels=None, shares=(1.0, 0.0)):
    parts = random_parts(len(smiles), 0, shares)
    return GraphData(
        name="few",
        graphs=store_molecules([parse_smiles(text) for text in smiles]),
        labels=torch.zeros(len(smiles), 1, dtype=torch.long) if labels is None else labels,
        tasks=("one",) if labels is None else tuple(f"task {i}" for i in range(labels.shape[1])),
        train=parts[0],
        valid=parts[1],
        test=parts[2],
        graph_names=tuple(smiles),
        relation_names=("single", "double", "triple", "aromatic", "self"),
    )


def fill(parameter, *values):
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).view_as(parameter))


def test_fingerprints_have_a_bit_for_each_neighbourhood():
    """Ethanol: three atoms, and three different neighbourhoods of radius 1; the whole molecule is one of them."""
    bits = fingerprints(data_of(["CCO", "C[C@H](N)O", "C[C@@H](N)O"]))
    assert bits.shape == (3, 1024)
    assert bits[0].sum() == 6
    assert torch.equal(bits[1], bits[2])  # no chirality
    assert set(bits.unique().tolist()) == {0, 1}


def test_names_must_be_smiles(monkeypatch):
    data = data_of(["CCO"])
    object.__setattr__(data, "graph_names", ("ethanol",))
    with pytest.raises(ValueError, match='graphs of few must be named by SMILES, got "ethanol"'):
        fingerprints(data)


def test_multitask_by_hand():
    model = Multitask(2, 1, hidden_channels=2, dropout=0.5).eval()
    fill(model.hidden.weight, 1.0, 2.0, 0.0, -3.0)
    fill(model.hidden.bias, 1.0, 1.0)
    fill(model.out.weight, 1.0, 1.0, 0.0, 5.0)
    fill(model.out.bias, 0.5, 0.0)
    logits = model(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))  # hidden: (4, 0) and (2, 1)
    assert logits.tolist() == [[[4.5, 0.0]], [[3.5, 5.0]]]


def test_bypass_by_hand():
    """A shared unit, and a unit for each of two tasks: task t reads the shared one and its own."""
    model = Bypass(2, 2, hidden_channels=1, bypass_channels=1).eval()
    fill(model.shared.weight, 1.0, 0.0)
    fill(model.own.weight, 0.0, 2.0, 0.0, -1.0)
    fill(model.shared.bias, 0.0)
    fill(model.own.bias, 0.0, 4.0)
    fill(model.weight, *[1.0, 0.0, 10.0, 0.0], *[0.0, 1.0, 0.0, 10.0])
    fill(model.bias, 0.0, 0.5, 0.0, 0.0)
    logits = model(torch.tensor([[3.0, 1.0]]))  # shared 3, own 2 and 3
    assert logits.tolist() == [[[23.0, 0.5], [0.0, 33.0]]]


def test_fingerprint_networks_drop_units_in_training_only():
    x = torch.ones(2, 8)
    for model in (Multitask(8, 1, 50), Bypass(8, 1, 50, 50)):
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))
        hidden = model.hidden if isinstance(model, Multitask) else model.shared
        assert hidden.bias.unique().tolist() == [1.0]
        assert hidden.weight.abs().max() <= 2 * multitask.WEIGHT_STD


def test_degree_specific_convolution_by_hand():
    """A path 0 - 1 - 2 and a lonely node 3; node 1 has two neighbours, and with `max_degree=1` counts as having one."""
    source, target = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 2, 1])
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    conv = DegreeConv(1, 1, max_degree=2)
    fill(conv.own, 1.0, 10.0, 100.0)
    fill(conv.neighbour, 1000.0, 10000.0)
    fill(conv.bias, 0.1, 0.2, 0.3)
    expected = [10 * 1 + 1000 * 2 + 0.2, 100 * 2 + 10000 * 5 + 0.3, 10 * 4 + 1000 * 2 + 0.2, 8 + 0.1]
    assert conv(x, source, target).flatten().tolist() == pytest.approx(expected)
    small = DegreeConv(1, 1, max_degree=1)
    fill(small.own, 1.0, 10.0)
    fill(small.neighbour, 1000.0)
    fill(small.bias, 0.0, 0.0)
    assert small(x, source, target).flatten().tolist() == pytest.approx([2010, 5020, 2040, 8])
    assert sum(p.shape[0] for p in (DegreeConv(3, 4).own, DegreeConv(3, 4).neighbour)) == 21
    assert conv(x[:0], source[:0], target[:0]).shape == (0, 1)


def test_pooling_takes_the_largest_of_a_node_and_its_neighbours():
    x = torch.tensor([[1.0, 5.0], [2.0, 0.0], [4.0, 1.0], [-8.0, 0.0]])
    pooled = max_pool(x, torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 2, 1]))
    assert pooled.tolist() == [[2, 5], [4, 5], [4, 1], [-8, 0]]


def test_graphconv_batches_bonds_without_loops_and_equals_single_molecules():
    data = data_of(["CCO", "C", "C1CC1C#N"])
    batch = batch_molecules(data.graphs, torch.tensor([2, 0]))
    assert batch.molecule.tolist() == [0] * 5 + [1] * 3
    assert len(batch.source) == 2 * (5 + 2)
    assert (batch.source != batch.target).all()
    model = GraphConv(75, 3, 8, 6).eval()
    alone = [model(batch_molecules(data.graphs, torch.tensor([i]))) for i in range(3)]
    torch.testing.assert_close(model(batch_molecules(data.graphs, torch.arange(3))), torch.cat(alone))
    assert alone[0].shape == (1, 3, 2)


def test_pair_features_by_hand():
    """Cyclopropanol, C1CC1O: bond type (4), conjugated, in a ring, same ring, distance 1 to 7."""
    features = pair_features(parse_smiles("C1CC1O"))
    ring_bond, other_bond, two_apart = [1, 0, 0, 0, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0, 1], [0] * 8 + [1]
    expected = {(0, 1): ring_bond, (0, 2): ring_bond, (1, 2): ring_bond, (2, 3): other_bond, (0, 3): two_apart}
    for (i, j), row in expected.items():
        assert features[i, j].tolist() == row + [0] * (14 - len(row))
        assert features[j, i].tolist() == features[i, j].tolist()
    assert not features[np.arange(4), np.arange(4)].any()
    far = pair_features(parse_smiles("CCCCCCCCC=CC=C"))
    assert far[0, 7, -7:].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert not far[0, 8].any()
    assert far[9, 10, :6].tolist() == [1, 0, 0, 0, 1, 0]


def test_pairs_are_stored_once_and_summed_for_both_atoms():
    data = data_of(["C", "CCO", "C1CC1O"])
    store = store_pairs(data)
    assert store.ptr.tolist() == [0, 1, 7, 17]
    _, pairs = batch_with_pairs(data.graphs, store, torch.tensor([2, 1]))
    assert list(zip(pairs.first[10:].tolist(), pairs.second[10:].tolist(), strict=True)) == [
        *[(4, 4), (4, 5), (4, 6)],
        *[(5, 5), (5, 6), (6, 6)],
    ]
    values = torch.arange(16.0).unsqueeze(1)
    assert pairs.sum_per_atom(values, 7)[4:].flatten().tolist() == [10 + 11 + 12, 11 + 13 + 14, 12 + 14 + 15]
    one_hot = torch.eye(len(pairs.patterns))[pairs.pattern]
    torch.testing.assert_close(pairs.pattern_counts(7), pairs.sum_per_atom(one_hot, 7))
    for place, name in ((0, "C1CC1O"), (10, "CCO")):
        features = pair_features(parse_smiles(name))
        expected = torch.from_numpy(features[np.triu_indices(len(features))]).float()
        assert torch.equal(pairs.patterns[pairs.pattern[place : place + len(expected)]], expected)


def slow_weave(model, x, features):
    """The weave network of one molecule, over all ordered pairs, as its equations are printed."""
    n = len(x)
    p = torch.from_numpy(features)  # [n, n, 14]
    relu = torch.relu

    def atoms(layer, a, p):
        heard = relu(layer.from_pairs(p)).sum(1)
        return relu(layer.merge(torch.cat([relu(layer.from_atoms(a)), heard], dim=1)))

    def pairs(layer, a, p):
        here, there = a.unsqueeze(1).expand(n, n, -1), a.unsqueeze(0).expand(n, n, -1)
        both = relu(layer.from_atoms(torch.cat([here, there], 2))) + relu(layer.from_atoms(torch.cat([there, here], 2)))
        return relu(layer.merge(torch.cat([both, relu(layer.from_pairs(p))], dim=2)))

    a = atoms(model.atoms2, atoms(model.atoms1, x, p), pairs(model.pairs1, x, p))
    a = model.norm(torch.tanh(model.dense1(a)))
    bells = [torch.exp(-((a - mean) ** 2) / (2 * std**2)) for mean, std in BINS]
    total = torch.stack(bells, dim=-1)
    z = (total / total.sum(-1, keepdim=True)).sum(0).flatten()
    return model.out(torch.tanh(model.dense2(z))).view(model.num_tasks, 2)


def test_weave_is_its_equations_over_all_ordered_pairs():
    names = ["CCO", "C1CC1C(=O)N", "C"]
    data = data_of(names)
    model = Weave(75, 14, 2, hidden_channels=6, dense_channels=5).double().eval()
    store = store_pairs(data)
    batch, pairs = batch_with_pairs(data.graphs, store, torch.arange(3))
    batch = batch._replace(x=batch.x.double())
    found = model((batch, pairs._replace(patterns=pairs.patterns.double())))
    for place, name in enumerate(names):
        features = pair_features(parse_smiles(name)).astype(np.float64)
        expected = slow_weave(model, batch.x[batch.molecule == place], features)
        torch.testing.assert_close(found[place], expected)


def test_new_pairs_do_not_depend_on_the_order_of_their_atoms():
    data = data_of(["C1CC1C(=O)N"])
    pairs = store_pairs(data).batch(torch.tensor([0]), data.graphs.node_ptr)
    layer = WeavePairs(75, 14, 4)
    swapped = pairs._replace(first=pairs.second, second=pairs.first)
    torch.testing.assert_close(layer(data.graphs.x, pairs), layer(data.graphs.x, swapped))


def test_histogram_by_hand():
    """At the middle of bin 5 the next bins are two standard deviations away; far away, the last bin has it all."""
    found = Histogram()(torch.tensor([[0.0], [9.0], [0.0]]), torch.tensor([0, 1, 0]), 2)
    bells = [math.exp(-(mean**2) / (2 * std**2)) for mean, std in BINS]
    assert found[0].tolist() == pytest.approx([2 * bell / sum(bells) for bell in bells], abs=1e-6)
    assert found[1].tolist() == pytest.approx([0] * 10 + [1], abs=1e-6)


def test_tanimoto_by_hand():
    bits = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 0]], dtype=np.float32)
    np.testing.assert_allclose(classic.tanimoto(bits), [[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 1]])


def test_classic_systems_learn_each_task_from_its_known_labels():
    """A bit that decides; the labels of the second task are known of few, those of the third of one class only."""
    amines, alcohols = [f"{'C' * n}N" for n in range(1, 13)], [f"{'C' * n}O" for n in range(1, 13)]
    labels = torch.tensor([1] * 12 + [0] * 12).unsqueeze(1).repeat(1, 3)
    labels[:, 1] = 1 - labels[:, 1]
    labels[::3, 1] = -1
    labels[:, 2] = 1
    data = data_of([*amines, *alcohols], labels, (0.5, 0.25))
    for name in ("logistic regression", "random forest", "descriptor forest", "kernel SVM"):
        outcome = GRAPH_BASELINES[name](data, 0, **({"num_trees": 20} if "forest" in name else {}))
        assert outcome.scores(data)["test"] > 0.9
        assert (outcome.logits["test"][:, 2] == 0).all()
        assert ("validation part" in outcome.selected_on) == ("forest" not in name)


def test_the_descriptor_forest_returns_log_odds_and_reads_the_descriptors_that_the_data_have():
    smiles = [f"{'C' * n}{end}" for n in range(1, 25) for end in "NO"]
    data = data_of(smiles, torch.tensor([1, 0] * 24).unsqueeze(1), (0.5, 0.25))
    described = with_descriptors(fold_data(data)).data
    assert described.graphs.graph_attr is not None
    for given in (data, described):
        columns = classic._descriptors(given)
        assert columns.shape == described.graphs.graph_attr.shape
        forest = RandomForestClassifier(5, random_state=3, **classic.DESCRIPTOR_FOREST)
        rows = given.train.numpy()
        expected = forest.fit(columns[rows], given.labels[rows, 0].numpy()).predict_proba(columns)
        outcome = classic.descriptor_forest(given, 3, num_trees=5)
        for part, logits in outcome.logits.items():
            found = logits[:, 0].softmax(-1).numpy()
            np.testing.assert_allclose(found, expected[getattr(given, part).numpy()], atol=2e-6)
    assert outcome.config["num_trees"] == 5


@pytest.mark.parametrize("name", ["Multitask", "Bypass", "GraphConv", "Weave"])
def test_networks_learn_and_a_seed_says_all(name):
    data = load("molecules")
    few = {"hidden_channels": 16, "epochs": 3, "batch_size": 16, "learning_rate": 0.003}
    few |= {"dense_channels": 16} if name in ("GraphConv", "Weave") else {"weight_l2": 0.0}
    few |= {"bypass_channels": 8} if name == "Bypass" else {}
    first, again, other = (GRAPH_BASELINES[name](data, seed, **few) for seed in (1, 1, 2))
    assert torch.equal(first.logits["test"], again.logits["test"])
    assert not torch.equal(first.logits["test"], other.logits["test"])
    assert first.train_loss[-1] < first.train_loss[0]
    assert first.scores(data)["train"] > 0.6
    assert first.selected_on == molecules.SELECTED_ON
    assert (first.best_epoch, first.config["hidden_channels"]) == (3, 16)


def test_the_penalty_is_half_the_squares_of_the_matrices():
    model = torch.nn.Linear(2, 1)
    fill(model.weight, 3.0, 4.0)
    fill(model.bias, 100.0)
    assert molecules._half_squares(model).item() == 12.5


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match=r'`setting` must be .* got "epoch"; did you mean "epochs"\?'):
        GRAPH_BASELINES["GraphConv"](data_of(["CCO"]), 0, epoch=2)


def test_rdkit_is_asked_for_in_one_sentence(monkeypatch):
    data = data_of(["CCO"])
    rdkit.cache_clear()
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match=r"pip install 'rgat\[molecules\]'"):
        fingerprints(data)


def test_weave_learns_from_a_batch_of_one_atom():
    data = data_of(["C", "CCO"])
    pairs = store_pairs(data)
    model = Weave(data.in_channels, pairs.patterns.shape[1], 1, 50, 211)
    assert model(batch_with_pairs(data.graphs, pairs, torch.tensor([0]))).isfinite().all()
