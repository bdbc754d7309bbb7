"""Descriptors beside the graph: standardised by the training part, the same wherever a model reads them."""

import copy
import csv
import dataclasses
import json
import pickle
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from helpers import rewrite

import rgat
from rgat.data.molecules.descriptors import (
    BIT_SCALE,
    NUM_BITS,
    QUICK,
    VECTORS,
    Descriptors,
    all_properties,
    describe,
    needs_stereo,
)
from rgat.data.molecules.smiles import parse_smiles
from rgat.models import GraphClassifier, stack
from rgat.predictor import streaming
from rgat.predictor.described import TRIED, describe_data
from rgat.predictor.export import make_program
from rgat.predictor.predictor import parse_molecules
from rgat.predictor.text import choice_table, explanation_table, performance
from rgat.training import build_model, graph_logits
from rgat.training.configuration import split_config
from rgat.training.task import GraphTask

SMILES = ["CCO", "CC(=O)NC", "c1ccccc1C(=O)O"]


@pytest.fixture(scope="module")
def data():
    return rgat.data.load("molecules")


@pytest.fixture(scope="module")
def described(data):
    return describe_data(data, ["both"])["both"]


@pytest.fixture(scope="module")
def chosen(data):
    """The default: descriptors are chosen by validation."""
    return rgat.fit(data, hidden_channels=8, dense_channels=16, heads=1, max_epochs=2)


@pytest.fixture(scope="module")
def both(data):
    return rgat.fit(
        data, hidden_channels=8, heads=1, max_epochs=2, ensemble=2, descriptors="both", comparison=False, patience=2
    )


def test_columns_are_standardised_by_the_training_part_alone(data, described):
    columns = described.graphs.graph_attr.float()
    train, varies = columns[data.train], described.descriptors.scale[:-NUM_BITS] != 1
    assert varies.sum() > 20
    values = train[:, :-NUM_BITS][:, varies]
    assert values.mean(0).abs().max() < 0.05
    inside = values.abs().amax(0) < 9  # not clipped
    assert (values.std(0)[inside] - 1).abs().max() < 0.05
    bits = columns[:, -NUM_BITS:]
    assert set(((bits.amax(0) - bits.amin(0)) * BIT_SCALE).round(decimals=2).tolist()) == {0.0, 1.0}
    swapped = dataclasses.replace(data, train=data.test, test=data.train)
    other = describe_data(swapped, ["both"])["both"].descriptors
    assert not torch.equal(other.mean, described.descriptors.mean)


def test_what_rdkit_cannot_compute_counts_as_the_mean():
    columns = torch.tensor([[1.0, 2.0], [3.0, float("nan")], [5.0, float("inf")]])
    learnt = Descriptors.learn("rdkit", ("a", "b"), columns)
    assert learnt.mean.tolist() == [3.0, 2.0]
    rows = learnt.standardise(torch.tensor([[float("nan"), 2.0], [1e30, 2.0]]))
    assert rows.tolist() == [[0.0, 0.0], [10.0, 0.0]]


def test_every_kind_has_its_columns():
    molecules, names = [parse_smiles(text) for text in SMILES], all_properties()
    widths = {kind: describe(molecules, kind, names).shape[1] for kind in ("none", "rdkit", "morgan", "both")}
    assert widths["none"] == 0
    assert widths["morgan"] == NUM_BITS
    assert widths["rdkit"] > 100
    assert widths["both"] == widths["rdkit"] + NUM_BITS
    weight = describe(molecules, "rdkit", names)[:, names.index("amw")]
    torch.testing.assert_close(weight, torch.tensor([46.069, 73.095, 122.123]), atol=0.01, rtol=0)
    chosen = [names.index(name) for name in QUICK]
    assert torch.equal(describe(molecules, "rdkit", QUICK), describe(molecules, "rdkit", names)[:, chosen])


def test_quick_properties_need_no_stereo_marks():
    texts = ["C/C=C/C", "C[C@H](N)C(=O)O", "[H]C(F)Cl", "[nH]1cccc1", "C1CC1C(=O)[O-].[Na+]"]
    assert not needs_stereo(QUICK)
    assert needs_stereo(all_properties())
    with_marks, without = ([parse_smiles(text, stereo=stereo) for text in texts] for stereo in (True, False))
    assert torch.equal(describe(with_marks, "both", QUICK), describe(without, "both", QUICK))


def test_a_folder_of_an_earlier_version_reads_all_properties(data, tmp_path):
    predictor = rgat.fit(data, comparison=False, max_epochs=1, hidden_channels=8)
    columns = Descriptors("rdkit", all_properties(), *torch.ones(2, 121))
    store = dataclasses.replace(data.graphs, graph_attr=torch.zeros(len(data.graphs), 121))
    described = dataclasses.replace(data, graphs=store, descriptors=columns)
    members = [build_model(described, 0, **split_config(predictor.config)[0])]
    vocabulary = dataclasses.replace(predictor.vocabulary, descriptors=columns)
    predictor = dataclasses.replace(predictor, members=members, vocabulary=vocabulary, familiarity=None)
    predictor.save(tmp_path / "model")
    as_written = {"kind": "rdkit", "properties": all_properties()[: -len(VECTORS)]}
    rewrite(tmp_path / "model", descriptors=as_written)
    again = rgat.load(tmp_path / "model")
    assert again.vocabulary.descriptors.properties == all_properties()
    np.testing.assert_allclose(again.predict_proba(SMILES), predictor.predict_proba(SMILES), atol=1e-6)


def test_stacked_and_padded_training_reads_the_same_columns(described):
    models = [build_model(described, seed, hidden_channels=8).eval() for seed in range(2)]
    x, batch = described.graphs.batch(described.train[:7])
    alone = torch.stack([model(x, batch) for model in models])
    torch.testing.assert_close(stack(models)(x, batch), alone, atol=1e-5, rtol=1e-5)
    batch.graph_attr = torch.zeros_like(batch.graph_attr)
    assert (models[0](x, batch) - alone[0]).abs().max() > 1e-3
    task = GraphTask(described, 8, torch.device("cpu"))
    for ids in (described.train[:8], described.train[8:13]):
        task.pad(ids)
        torch.testing.assert_close(task.padded_losses(models[0]), task.losses(models[0], ids), atol=1e-4, rtol=1e-4)


def test_the_default_is_chosen_on_validation_data_and_said(chosen):
    choice = chosen.report["choice"]
    scores = {row["input"]: row["score"] for row in choice["candidates"]}
    assert tuple(scores) == TRIED
    assert scores[choice["input"]] == max(scores.values())
    assert choice["on"] == "of the validation part"
    ((_, _, rows, _),) = choice_table(chosen)
    assert sum("chosen" in row for row in rows) == 1
    kind = "none" if chosen.vocabulary.descriptors is None else chosen.vocabulary.descriptors.kind
    assert kind == choice["input"]


class _Here:
    """A pool that runs in this process."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(pickle.loads(pickle.dumps(function(*arguments))))
        return future


def test_a_model_reads_the_same_descriptors_from_a_folder_a_list_and_a_file(both, tmp_path, monkeypatch):
    both.save(tmp_path / "model")
    loaded = rgat.load(tmp_path / "model")
    expected = both.predict(SMILES).probabilities
    np.testing.assert_array_equal(loaded.predict(SMILES).probabilities, expected)
    (tmp_path / "library.smi").write_text("\n".join(SMILES) + "\n")
    monkeypatch.setattr(streaming, "WorkerPool", _Here)
    streaming.predict_file(loaded, tmp_path / "library.smi", tmp_path / "out.csv", workers=1)
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.reader(file))
    np.testing.assert_allclose(float(rows[2][1]), expected[1, 0], atol=1e-4)


def test_predictions_from_training_columns_and_from_smiles_agree(both, data, described):
    logits = torch.stack([graph_logits(member, described.graphs, data.test) for member in both.members])
    names = [data.graph_names[i] for i in data.test.tolist()]
    np.testing.assert_allclose(both.predict(names).probabilities, both.probabilities(logits), atol=1e-4)


def test_the_report_and_explanations_say_what_came_from_descriptors(both):
    found = both.report["descriptor_contribution"]
    assert found["part"] == "test"
    assert found["score"] == pytest.approx(both.report["scores"]["test"])
    assert found["exchanged"] != found["score"]
    assert any("exchanged among test molecules" in line for line in performance(both))
    explanation = both.explain("CC(=O)NC", "amide")
    assert explanation.descriptor_effect != 0
    assert any("average training molecule" in line for line in explanation_table(explanation, 5, True)[0])
    assert "all descriptors" in explanation.page()


def test_a_changed_folder_is_refused(both, tmp_path):
    both.save(tmp_path)
    path = tmp_path / "fitted.json"
    record = json.loads(path.read_text())
    text = json.dumps(record)
    assert '"kind": "both"' in text
    path.write_text(text.replace('"kind": "both"', '"kind": "morgan"'))
    with pytest.raises(ValueError, match=r"must hold a complete predictor|changed"):
        rgat.load(tmp_path)


def test_wrong_uses_are_one_sentence(data, described):
    with pytest.raises(ValueError, match="`descriptors` must be"):
        rgat.fit(data, descriptors="ecfp")
    with pytest.raises(ValueError, match="are for molecules"):
        rgat.fit("institute", descriptors="rdkit")
    others = dataclasses.replace(data, graph_names=tuple(f"graph {i}!" for i in range(len(data.graphs))))
    with pytest.raises(ValueError, match="for molecules named by SMILES"):
        rgat.fit(others, descriptors="rdkit")
    model = GraphClassifier(data.in_channels, 6, 5, descriptor_channels=3)
    with pytest.raises(ValueError, match="needs a batch with 3 descriptors of each graph in `graph_attr`, got none"):
        model(*data.graphs.batch(data.test[:2]))


def test_a_graph_keeps_its_descriptors(described):
    _, batch = described.graphs.batch(described.test[:3])
    expected = described.graphs.graph_attr[described.test[:3]].float()
    for each in (batch, copy.deepcopy(batch), batch.to("cpu"), batch.with_self_loops()):
        assert torch.equal(each.graph_attr, expected)
    twice = rgat.RelationalGraph.collate([batch, batch])
    assert torch.equal(twice.graph_attr, torch.cat([expected, expected]))
    assert torch.equal(described.graphs.select(described.test[:3]).graph_attr.float(), expected)
    state = batch.__getstate__() | {"graph_attr": expected[:2]}
    with pytest.raises(ValueError, match="`graph_attr` of a stored graph must have shape"):
        batch.__setstate__(state)


def test_an_exported_program_takes_descriptors_as_one_more_input(both):
    vocabulary = both.vocabulary
    parsed = parse_molecules(SMILES, *vocabulary.reading)
    edges, sizes = torch.from_numpy(parsed.edges).long(), torch.from_numpy(parsed.sizes).long()
    columns = torch.from_numpy(parsed.columns)
    program = make_program(both, vocabulary)
    batch = torch.arange(len(sizes)).repeat_interleave(sizes)
    given, _ = program(torch.from_numpy(parsed.x).float(), edges[:2], edges[2], batch, columns)
    np.testing.assert_allclose(given.detach().numpy(), both.predict(SMILES).probabilities, atol=1e-5)
