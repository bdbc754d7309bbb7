"""Sets and distances of fitted predictors: in predictions, files, folders, reports and sentences."""

import csv
import dataclasses

import numpy as np
import pytest
import torch

import rgat
from rgat.predictor import files as own_data
from rgat.predictor.ensemble import true_answers
from rgat.predictor.familiarity import collected, unseen_relations
from rgat.predictor.streaming import predict_file
from rgat.predictor.text import performance, prediction_rows
from rgat.predictor.uncertainty_text import warning_sentences
from rgat.sampling import NeighborSampler, exact_logits
from rgat.training.task import node_logits


def test_the_sets_of_nodes_grow_with_the_coverage(node_model, node_data):
    names = [node_data.node_names[node] for node in node_data.test.tolist()]
    wide, narrow = (node_model.predict(names, coverage=coverage) for coverage in (0.95, 0.5))
    large, small = wide.sets["class"], narrow.sets["class"]
    assert large.shape == small.shape == (len(names), 4)
    assert (large | ~small).all()
    assert large.sum() > small.sum()
    assert node_model.predict(names).rows() == node_model.predict(names, coverage=0.9).rows()
    assert wide.intervals == {}
    assert node_model.predict(names).header()[-3:] == ["90 % set", "distance", "unlike training"]
    row = wide.rows()[0]
    assert [name in row[-3].split(" | ") for name in wide.columns] == large[0].tolist()


def test_held_out_scores_are_of_nodes_that_training_did_not_see(node_model, node_data):
    held_out = node_model.calibration.held_out
    counts = np.bincount(held_out.groups, minlength=4)
    assert counts.tolist() == node_data.labels[node_data.train].bincount(minlength=4).tolist()  # by cross-validation
    assert ((held_out.scores >= 0) & (held_out.scores <= 1)).all()


def test_the_report_states_the_coverage_on_the_test_part(node_model, graph_model, node_data):
    found = node_model.report["sets"]
    names = [node_data.node_names[node] for node in node_data.test.tolist()]
    sets, labels = node_model.predict(names).sets["class"], node_data.labels[node_data.test].numpy()
    assert found["covered"] == pytest.approx(sets[np.arange(len(labels)), labels].mean())
    assert found["size"] == pytest.approx(sets.sum(1).mean())
    assert found["labels"] == len(labels)
    assert node_model.report["coverage"] == 0.9
    lines = performance(node_model)
    assert any(line.startswith("sets of a coverage of 90% hold the true class of ") for line in lines)
    assert any("further from the training part than 99 % of held-out examples" in line for line in lines)
    assert graph_model.report["sets"]["labels"] > 300
    assert 0 <= graph_model.report["far"] < 0.2


@pytest.fixture(scope="module")
def folders(node_model, graph_model, tmp_path_factory):
    """Return the folders of both models, and of one as an earlier version wrote it."""
    folder = tmp_path_factory.mktemp("models")
    node_model.save(folder / "nodes")
    graph_model.save(folder / "molecules")
    calibration = dataclasses.replace(graph_model.calibration, held_out=None)
    dataclasses.replace(graph_model, calibration=calibration, familiarity=None).save(folder / "earlier")
    return folder


def test_a_folder_keeps_sets_and_distances(folders, node_model, graph_model):
    first, again = node_model.predict(), rgat.load(folders / "nodes").predict()
    assert (first.sets["class"] == again.sets["class"]).all()
    assert np.allclose(first.distance, again.distance)
    molecules = ["CCO", "c1ccccc1C(=O)N", "no molecule"]
    first, again = graph_model.predict(molecules), rgat.load(folders / "molecules").predict(molecules)
    assert first.rows() == again.rows()
    assert again.rows()[2][-8:] == [""] * 8


def test_a_folder_of_an_earlier_version_has_neither(folders):
    model = rgat.load(folders / "earlier")
    predictions = model.predict(["CCO"])
    assert predictions.sets == {}
    assert predictions.distance is predictions.coverage is None
    assert predictions.header()[-1] == "problem"
    assert len(predictions.rows()[0]) == len(predictions.header())
    assert predictions.warnings == [""]
    assert prediction_rows(predictions)[2] == 2
    with pytest.raises(ValueError, match=r"written by an earlier version; train it again, or leave `coverage`"):
        model.predict(["CCO"], coverage=0.8)


def test_the_sets_of_molecules_are_of_the_results_0_and_1(graph_model):
    predictions = graph_model.predict(["CCO", "CC(=O)N"])
    assert predictions.sets["amide"].shape == (2, 2)
    assert tuple(predictions.sets) == graph_model.tasks
    assert predictions.header()[-8:-2] == [f"90 % set of {task}" for task in graph_model.tasks]
    words = {cell for row in predictions.rows() for cell in row[-8:-2]}
    assert words <= {"0", "1", "0 | 1", "none"}
    columns, rows, num_text = prediction_rows(predictions)
    assert columns == ("smiles", "task", "90 % set", "probability", "spread", "distance")
    assert (len(rows), num_text) == (12, 3)


def test_training_molecules_are_near_and_strange_ones_far_with_their_reason(graph_model):
    data = rgat.data.load("molecules")
    known = [data.graph_names[graph] for graph in data.train[:20].tolist()]
    assert graph_model.predict(known).distance == pytest.approx(np.zeros(20), abs=1e-3)
    assert graph_model.predict(known).warnings == [""] * 20
    held_out = graph_model.predict([data.graph_names[graph] for graph in data.valid.tolist()])
    assert (held_out.distance > 1).mean() <= 0.02
    strange = graph_model.predict(["[Se]1[Se][Se][Se][Se][Se][Se][Se]1", "C" * 150, "CC[Si](C)C"])
    assert strange.distance[0] > 1
    assert strange.distance[1] > 1
    assert strange.warnings[0].endswith("no training molecule has Se")
    assert strange.warnings[2].endswith("no training molecule has Si")
    (sentence,) = warning_sentences(strange)
    assert sentence.startswith("3 molecules of 3 are unlike the training data, such as [Se]1")
    assert warning_sentences(graph_model.predict(known)) == []


def test_a_relation_that_no_training_node_has_is_named(node_data):
    seen = torch.ones(len(node_data.relation_names), dtype=torch.bool)
    nodes = node_data.test[:3].tolist()
    assert unseen_relations(node_data, nodes, seen) == ["", "", ""]
    into = node_data.graph.edge_type[node_data.graph.edge_index[1] == nodes[0]]
    relation = int(into[0])
    seen[relation] = False
    texts = unseen_relations(node_data, [*nodes, nodes[0]], seen)
    assert texts[0] == texts[3]
    assert texts[0].startswith("no training node has ")


def test_hidden_rows_are_the_same_whole_and_in_blocks(node_model, node_data):
    model, nodes = node_model.members[0], node_data.test.flip(0)
    with collected(model, nodes) as whole:
        node_logits(model, node_data)
    with collected(model, nodes) as blocks, torch.no_grad():
        exact_logits(model, node_data.x, NeighborSampler(node_data.graph, [-1]), nodes, block_numbers=20_000)
    assert whole.rows.shape == (len(nodes), 16)
    assert torch.allclose(whole.rows, blocks.rows, atol=1e-5)
    assert not model.convs[-1]._forward_pre_hooks


def test_a_file_of_molecules_has_sets_of_the_coverage(graph_model, tmp_path):
    (tmp_path / "m.smi").write_text("CCO\nnothing\n[Se]\n")
    counts = predict_file(graph_model, tmp_path / "m.smi", tmp_path / "p.csv", workers=1, coverage=0.8)
    assert counts.unlike == 1
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["80 % set of amide"] in ("0", "1", "0 | 1", "none")
    assert rows[1]["80 % set of amide"] == rows[1]["distance"] == ""
    assert "no training molecule has Se" in rows[2]["unlike training"]
    _, notes = own_data.predict(graph_model, None, smiles="[Se]", coverage=0.8)
    assert "1 molecule of 1 is unlike the training data" in notes[-1]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Return a model of a number, a class and a result, some of them missing, and the table that it learned from."""
    smiles = rgat.data.load("molecules").graph_names[:150]
    folder = tmp_path_factory.mktemp("mixed")
    lines = ["smiles,weight (g),kind,toxic"]
    for number, text in enumerate(smiles):
        weight, kind = ("" if number % 9 == 0 else f"{len(text) + number % 3}"), "abc"[text.count("C") % 3]
        lines.append(f"{text},{weight}.5,{kind},{int('N' in text)}" if weight else f"{text},,{kind},")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    data = rgat.data.from_smiles(folder / "table.csv", tasks=["weight (g)", "kind", "toxic"], shares=(0.5, 0.3))
    model = rgat.fit(data, model="RGCN", hidden_channels=8, dense_channels=8, max_epochs=2, comparison=False)
    return model, data


def test_numbers_have_intervals_and_classes_sets_in_a_mixed_table(mixed, tmp_path):
    model, data = mixed
    test = [data.graph_names[graph] for graph in data.test.tolist()]
    predictions = model.predict([*test, "no molecule"])
    assert set(predictions.sets) == {"kind", "toxic"}
    (interval,) = predictions.intervals.values()
    number = predictions.of("weight (g)")
    width = interval[:-1, 1] - interval[:-1, 0]
    assert width == pytest.approx(np.full(len(test), width[0]))
    assert interval[:-1].mean(1) == pytest.approx(number[:-1])
    assert np.isnan(interval[-1]).all()
    added = ["90 % low of weight (g)", "90 % high of weight (g)", "90 % set of kind", "90 % set of toxic"]
    assert predictions.header()[-6:] == [*added, "distance", "unlike training"]
    assert predictions.rows()[-1][-6:] == [""] * 6
    truth = data.values[data.test, 0].numpy()
    known = ~np.isnan(truth)
    inside = (interval[:-1, 0] <= truth) & (truth <= interval[:-1, 1])
    assert model.report["intervals"]["weight (g)"]["covered"] == pytest.approx(inside[known].mean())
    assert model.report["intervals"]["weight (g)"]["width"] == pytest.approx(width[0])
    assert any(line.startswith("intervals of weight (g) of a coverage of 90% hold ") for line in performance(model))
    columns, rows, num_text = prediction_rows(model.predict(test[:1]))
    assert columns[2] == "90 % set or interval"
    assert (num_text, len(rows)) == (3, 3)
    assert " to " in rows[0][2]
    model.save(tmp_path / "model")
    assert rgat.load(tmp_path / "model").predict(test).rows() == model.predict(test).rows()


def test_bounds_of_numbers_are_no_truths(mixed):
    _, data = mixed
    ids = torch.arange(10)
    assert true_answers(data, ids)[:, 1].tolist() == data.values[ids, 1:4].argmax(1).tolist()
    bounds = torch.zeros_like(data.values, dtype=torch.int8)
    bounds[1, 0] = 1
    bounded = true_answers(dataclasses.replace(data, bounds=bounds), ids)
    assert bounded[1, 0].isnan()
    assert not bounded[2:9, 0].isnan().any()


def test_a_changed_tensor_is_refused(folders, graph_model, tmp_path):
    held_out = graph_model.calibration.held_out
    wrong = dataclasses.replace(held_out, groups=held_out.groups + 12)
    calibration = dataclasses.replace(graph_model.calibration, held_out=wrong)
    dataclasses.replace(graph_model, calibration=calibration).save(tmp_path / "groups")
    with pytest.raises(ValueError, match="held_out_groups"):
        rgat.load(tmp_path / "groups")
    narrow = dataclasses.replace(graph_model.familiarity, rows=torch.zeros(3, 2))
    dataclasses.replace(graph_model, familiarity=narrow).save(tmp_path / "rows")
    with pytest.raises(ValueError, match="`training_rows` must be float32 of shape"):
        rgat.load(tmp_path / "rows")
