import dataclasses
import functools
import json
from types import SimpleNamespace

import pytest
import torch
from helpers import labelled_graph

import rgat
from rgat.data import from_rdf, from_smiles
from rgat.predictor import files as own_data
from rgat.predictor.ensemble import Calibration, Ensemble
from rgat.predictor.evaluation import _evaluate_nodes, bootstrap, wilson
from rgat.predictor.inspection import describe, find_leaks
from rgat.training import many, save_checkpoint
from rgat.training.configuration import DEFAULTS, Settings, configure, read_config, read_option, split_config

QUICK = {"max_epochs": 25, "patience": 10, "comparison": False}


def test_a_fit_of_plain_files_beats_the_majority_and_says_how_sure_it_is(node_data, node_model):
    report = node_model.report
    low, high = report["interval"]
    assert report["metric"] == "accuracy"
    assert low < report["scores"]["test"] < high
    assert report["right"] == round(report["scores"]["test"] * 12)
    assert report["scores"]["test"] > 0.5
    assert (len(node_model.members), len(node_data.valid)) == (2, 0)


def test_test_labels_change_nothing_but_the_report(node_data, node_model):
    labels = node_data.labels.clone()
    labels[node_data.test] = (labels[node_data.test] + 1) % 4
    again = rgat.fit(dataclasses.replace(node_data, labels=labels), ensemble=2, **QUICK)
    assert torch.equal(again.logits, node_model.logits)
    assert torch.equal(again.calibration.slope, node_model.calibration.slope)
    assert again.report["scores"]["test"] != node_model.report["scores"]["test"]


def test_members_differ_and_their_spread_is_reported(node_model):
    predictions = node_model.predict()
    assert not torch.equal(*node_model.logits)
    assert (predictions.spread > 0).all()
    assert predictions.probabilities.sum(1) == pytest.approx(1)
    alone = dataclasses.replace(node_model, members=node_model.members[:1]).predict()
    assert (alone.spread == 0).all()


def test_by_default_the_unlabelled_nodes_of_the_labelled_ones_type_are_judged(node_model):
    assert node_model.shared_type() == "<http://institute.example/Person>"
    predictions = node_model.predict()
    assert len(predictions) == 12
    assert all("/person/" in name for name in predictions.names)
    assert len(node_model.predict(type="http://institute.example/Topic")) == 32
    assert node_model.predict(["http://institute.example/person/59"]).names == (predictions.names[-1],)
    assert node_model.predict_proba(["http://institute.example/person/59"]).shape == (1, 4)
    assert set(predictions.labels) <= set(node_model.data.classes)
    for question, message in (
        ({"nodes": ["http://x/y"]}, "http://x/y must be one of the 524 nodes of the graph"),
        ({"type": "http://institute.example/person/1"}, "must be the type of some node"),
        ({"nodes": []}, "must be unlabelled nodes to predict, got none"),
    ):
        with pytest.raises(ValueError, match=message):
            node_model.predict(**question)


def test_a_search_takes_the_best_by_validation(node_data):
    fitted = rgat.fit(node_data, search=2, max_epochs=4, patience=4, model="RGCN", comparison=False)
    assert fitted.report["search"] == 2
    assert (fitted.config["model"], fitted.config["max_epochs"]) == ("RGCN", 4)


def test_a_fit_is_compared_with_what_is_simpler(node_data):
    fitted = rgat.fit(node_data, max_epochs=15, patience=15, model="additive WIRGAT")
    rows = {row["name"]: row for row in fitted.report["comparison"]}
    assert list(rows) == ["majority vote", "FEAT", "RGCN"]
    assert rows["majority vote"]["scores"]["train"] < 0.5
    assert rows["RGCN"]["scores"]["train"] >= 0.99


def test_molecules_are_compared_too_and_calibrated(graph_model):
    report = graph_model.report
    assert report["metric"] == "mean ROC-AUC"
    assert 0.5 < report["interval"][0] < report["scores"]["test"] < report["interval"][1] <= 1
    assert report["positives"] < report["pr_auc"] <= 1
    assert set(report["tasks"]) == set(graph_model.tasks)
    predictions = graph_model.predict(["c1ccccc1C(=O)NC", "C(C", "CCO"])
    assert predictions.labels[1].tolist() == [-1] * 6
    amide = graph_model.tasks.index("amide")
    assert predictions.probabilities[0, amide] > predictions.probabilities[2, amide]
    assert graph_model.predict_proba("CCO").shape == (1, 6)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({}, "some nodes must have labels to learn from, got none"),
        (dict.fromkeys("abcd", "red"), 'two classes or more, got one only, "red"'),
        ({"a": "red", "b": "red", "c": "blue", "d": "red"}, "2 labelled nodes or more to learn from, got 1"),
    ],
)
def test_labels_that_teach_nothing_are_refused(tmp_path, labels, message):
    graph, table = tmp_path / "g.nt", tmp_path / "l.tsv"
    graph.write_text("".join(f"<http://x/{node}> <http://x/p> <http://x/o> .\n" for node in "abcd"))
    table.write_text("node\tclass\n" + "".join(f"http://x/{node}\t{name}\n" for node, name in labels.items()))
    with pytest.raises(ValueError, match=message):
        rgat.fit(from_rdf(graph, train=table))


def test_an_empty_graph_and_tasks_without_labels_are_refused(node_data):
    graph = rgat.RelationalGraph(
        torch.zeros(2, 0, dtype=torch.long),
        torch.zeros(0, dtype=torch.long),
        num_nodes=node_data.graph.num_nodes,
        num_relations=43,
    )
    with pytest.raises(ValueError, match="the graph must have edges"):
        rgat.fit(dataclasses.replace(node_data, graph=graph))
    data = rgat.data.load("molecules")
    missing, one = data.labels.clone(), data.labels.clone()
    missing[:, 1], one[:, 2] = -1, 0
    none = data.graphs.select(torch.arange(0))
    for labels, message in ((missing, "task acid .* got no label at all"), (one, "task aryl-halide .* got only 0")):
        with pytest.raises(ValueError, match=message):
            rgat.fit(dataclasses.replace(data, labels=labels))
    with pytest.raises(ValueError, match="must have rows"):
        rgat.fit(dataclasses.replace(data, graphs=none))


def test_a_training_that_diverges_says_what_to_do(node_data):
    with pytest.raises(ValueError, match="diverged; lower `learning_rate`"):
        rgat.fit(node_data, learning_rate=1e38, max_epochs=3, comparison=False)


def test_wrong_options_are_named(tmp_path, node_data):
    for options, message in (
        ({"head": 2}, 'did you mean "heads"'),
        ({"model": "WIRGAT"}, '`model` must be "RGCN"'),
        ({"model": "RGCN", "heads": 2}, "`heads` must not be given for RGCN"),
        ({"ensemble": 0}, "`ensemble` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            rgat.fit(node_data, **options)
    bad = tmp_path / "bad.toml"
    bad.write_text("heads = ")
    for path, message in ((bad, "must be TOML"), (tmp_path / "none.toml", "can be read")):
        with pytest.raises(ValueError, match=message):
            read_config(path)
    with pytest.raises(ValueError, match='NAME=VALUE, got "heads"'):
        read_option("heads")


def test_a_configuration_comes_from_a_file_or_from_words(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('model = "RGCN"\n[config]\nscope = "within"\nhidden_channels = 8\nkernel_l2_1 = 0.1\n')
    given = read_config(path)
    assert given == {"model": "RGCN", "hidden_channels": 8, "kernel_l2_1": 0.1}
    options, settings = split_config(configure("node", given))
    assert (options["hidden_channels"], options["layer"], settings.kernel_l2) == (8, "rgcn", (0.1, 5e-4))
    path.write_text("heads = 2\n")
    assert read_config(path) == {"heads": 2}
    assert [read_option(text)[1] for text in ("a=2", "a=true", "a=additive ARGAT")] == [2, True, "additive ARGAT"]


def test_a_relation_that_states_the_class_is_a_leak_and_an_identifier_is_not(tmp_path, files, node_data):
    assert find_leaks(node_data) == []
    rows = [line.split("\t") for line in files[1].read_text().splitlines()[1:]]
    said = "".join(f"<{node}> <http://x/in> <http://x/{name}> .\n" for node, name in rows)
    more = "".join(f'<{node}> <http://x/number> "{place}" .\n' for place, (node, _) in enumerate(rows))
    graph = tmp_path / "leak.nt"
    graph.write_text(files[0].read_text() + said + more)
    leaks = find_leaks(from_rdf(graph, files[1]))
    assert [leak.relation for leak in leaks] == ["<http://x/in>"]
    assert "determines the class of 100% of the labelled nodes" in str(leaks[0])


def test_the_description_says_what_was_understood(tmp_path, node_data):
    lines = describe(node_data)
    assert lines[0].startswith("graph: ")
    assert "48 nodes of 4 classes: climate (" in "".join(lines)
    assert "split: 36 train, 12 test" in lines
    table = tmp_path / "m.csv"
    table.write_text("smiles,t,note\nCC,1,a\nCCC,0,b\nC(C,1,c\nCN,,d\n")
    lines = describe(rgat.data.from_smiles(table, skip_invalid=True))
    assert "skipped: 1 row with invalid SMILES (line 4)" in lines
    assert "task t: 1 positive, 1 negative, 1 missing" in lines
    assert "ignored columns: note" in lines


def test_intervals_hold_the_truth_and_shrink_with_more_examples():
    low, high = wilson(0.9, 36)
    assert (round(low, 3), round(high, 3)) == (0.761, 0.962)  # by hand: 0.8614 and 0.1008 to either side
    assert wilson(1.0, 10)[1] == pytest.approx(1.0)
    values = torch.arange(400.0)
    low, high = bootstrap(lambda rows: float(values[rows].mean()), 400)
    assert 185 < low < 199.5 < high < 214
    assert bootstrap(lambda rows: float("nan"), 3) == [0.0, 1.0]


def test_repeated_and_contradictory_molecules_are_counted(tmp_path):
    table = tmp_path / "m.csv"
    table.write_text("smiles,a\n" + "".join(f"{'C' * n}O,{n % 2}\n" for n in range(1, 30)) + "OCC,1\nOCCC,1\n")
    (said,) = [line for line in describe(from_smiles(table)) if line.startswith("repeated")]
    assert "2 molecules with several rows, 1 of them with contradictory labels" in said


class CrashError(BaseException):  # as KeyboardInterrupt; a comparison survives any other error
    """The process ends here."""


def crash_at(stage, text, share):
    """A progress callback that ends the fit once a stage has got so far."""

    def progress(step):
        if step.stage == stage and text in step.text and step.share >= share:
            raise CrashError

    return progress


@pytest.mark.parametrize(
    ("stage", "text", "kept"),
    [("training", "epoch", ["checkpoint.json", "fit.json", "folds.json"]), ("comparison", "RGCN, training", None)],
)
def test_a_fit_that_was_interrupted_resumes_to_the_same_predictor(tmp_path, node_data, monkeypatch, stage, text, kept):
    monkeypatch.setattr(many, "fit", functools.partial(many.fit, checkpoint_seconds=0.0))
    options = {"max_epochs": 6, "patience": 6, "hidden_channels": 8, "comparison": kept is None}
    whole = rgat.fit(node_data, **options)
    with pytest.raises(CrashError):
        rgat.fit(node_data, progress=crash_at(stage, text, 0.5), checkpoint=tmp_path, **options)
    if kept is not None:
        assert sorted(path.name for path in tmp_path.glob("*.json")) == kept
    trained = []
    resumed = rgat.fit(node_data, progress=trained.append, checkpoint=tmp_path, **options)
    assert [step.text for step in trained if step.stage == "cross-validation"] == ["5 of 5 folds were done before"]
    assert torch.equal(resumed.logits, whole.logits)
    assert torch.equal(resumed.calibration.slope, whole.calibration.slope)
    assert resumed.report == whole.report
    names = sorted(path.name for path in tmp_path.glob("*.json"))
    assert names == ["checkpoint.json", "fit.json"], "the folds are needed no more"


def test_a_search_that_was_interrupted_repeats_no_trial(tmp_path, node_data):
    options = {"search": 3, "max_epochs": 2, "patience": 2, "model": "RGCN", "comparison": False}
    whole = rgat.fit(node_data, **options)
    with pytest.raises(CrashError):
        rgat.fit(
            node_data,
            progress=crash_at("search", "configuration 3 of 3, 5 of 5 folds", 0),
            checkpoint=tmp_path,
            **options,
        )
    trained = []
    resumed = rgat.fit(node_data, progress=trained.append, checkpoint=tmp_path, **options)
    texts = [step.text for step in trained if step.stage == "search"]
    assert texts[:2] == [f"configuration {number} of 3, 5 of 5 folds were done before" for number in (1, 2)]
    assert all(text.startswith("configuration 3 of 3") for text in texts[2:])
    assert resumed.config == whole.config
    assert torch.equal(resumed.logits, whole.logits)


def test_a_checkpoint_of_another_fit_is_refused_and_its_folds_are_not_used(tmp_path, node_data):
    options = {"max_epochs": 2, "hidden_channels": 8, "comparison": False, "checkpoint": tmp_path}
    rgat.fit(node_data, **options)
    for other, message in (
        ({"hidden_channels": 4}, "its `hidden_channels` is 8, not 4"),
        ({"patience": 3}, "its `patience` is 30, not 3"),
        ({"seed": 1}, "its `seed` is 0, not 1"),
        ({"ensemble": 2}, "its `ensemble` is 1, not 2"),
    ):
        with pytest.raises(ValueError, match=rf"must be resumed with the same data and options, but {message}; use"):
            rgat.fit(node_data, **options | other)
    with pytest.raises(ValueError, match="but it has other data"):
        rgat.fit(dataclasses.replace(node_data, train=node_data.train[1:]), **options)
    trained = []
    longer = rgat.fit(node_data, progress=trained.append, **options | {"max_epochs": 3})
    assert [step.text for step in trained[:2]] == ["", "5 of 5 folds, epoch 1 of 3"]
    assert (trained[0].stage, trained[0].title) == ("cross-validation", "stage 1 of 3: cross-validation")
    assert longer.config["max_epochs"] == 3


def test_a_folder_in_which_a_model_was_trained_is_refused_unless_it_is_resumed(tmp_path, node_data):
    own_data.train(node_data, tmp_path, max_epochs=1, comparison=False)
    message = "must not hold a model or an unfinished training, but does; continue it with --resume, or choose"
    with pytest.raises(ValueError, match=message), own_data.held_folder(tmp_path):
        pass
    with own_data.held_folder(tmp_path, resume=True):
        assert rgat.predictor.load(tmp_path).config["max_epochs"] == 1


def test_a_command_that_torchrun_starts_again_continues_its_own_training_alone(tmp_path, node_data, monkeypatch):
    own_data.train(node_data, tmp_path, max_epochs=1, comparison=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with own_data.held_folder(tmp_path) as is_resumed:
        assert is_resumed
    (tmp_path / "fit.json").unlink()  # the model of another training
    with pytest.raises(ValueError, match="must not hold a model"), own_data.held_folder(tmp_path):
        pass


def test_a_fit_of_several_processes_is_continued_by_one_without_a_choice(tmp_path, node_data, monkeypatch):
    options = {"checkpoint": tmp_path, "max_epochs": 1, "hidden_channels": 4}
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    together = rgat.fit(node_data, **options)
    assert "choice" not in together.report
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    again = rgat.fit(node_data, **options)
    assert ("choice" in again.report, again.config["model"]) == (False, together.config["model"])
    record = json.loads((tmp_path / "fit.json").read_text())
    (tmp_path / "fit.json").write_text(json.dumps(record | {"compared": True}))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ValueError, match="compares inputs and models, which one process does; continue it without"):
        rgat.fit(node_data, **options)


def test_a_fit_that_diverged_leaves_a_folder_that_can_be_used_again(tmp_path):
    graph_data = rgat.data.load("molecules")
    options = {"max_epochs": 2, "comparison": False, "checkpoint": tmp_path}
    with pytest.raises(ValueError, match="diverged; lower `learning_rate`"):
        rgat.fit(graph_data, learning_rate=1e30, **options)
    assert rgat.fit(graph_data, **options).config["max_epochs"] == 2


def test_a_damaged_description_of_a_fit_is_refused(tmp_path, node_data):
    (tmp_path / "fit.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"fit\.json must describe a fit, but is damaged"):
        rgat.fit(node_data, max_epochs=1, comparison=False, checkpoint=tmp_path)


def test_a_bare_model_of_an_earlier_version_is_refused_with_what_to_do(tmp_path):
    save_checkpoint(tmp_path, {"a": torch.zeros(1)}, {"model": "RGCN"}, name="model")
    with pytest.raises(ValueError, match=r"has only model\.json, of an earlier rgat; write one with `rgat train`"):
        rgat.predictor.load(tmp_path)


def test_the_report_says_how_each_member_was_trained(node_model, graph_model):
    for predictor in (node_model, graph_model):
        assert len(predictor.report["training"]) == 2
        for member in predictor.report["training"]:
            assert 1 <= member["best_epoch"] <= member["epochs"]
            assert member["constant_scores"]["test"] >= 0
            assert member["how"].startswith("in a stack of 2")
    assert node_model.report["training"][0]["scores"]["valid"] is None


def test_every_default_has_one_place(monkeypatch):
    assert DEFAULTS["node"].items() <= configure("node", {}).items()
    for name in ("learning_rate", "max_epochs", "patience"):
        assert getattr(Settings(), name) == DEFAULTS["node"][name]
    monkeypatch.setitem(DEFAULTS["graph"], "learning_rate", 0.5)
    assert split_config(configure("graph", {}))[1].learning_rate == 0.5


def test_test_nodes_without_a_label_are_neither_right_nor_wrong():
    data = labelled_graph()
    labels = data.labels.clone()
    labels[data.test[:4]] = -1
    logits = torch.nn.functional.one_hot(data.labels).float()
    ensemble = Ensemble([], {}, Calibration(torch.ones(()), torch.zeros(3)), {})
    outputs_of = lambda nodes: (logits[nodes].unsqueeze(0), None)
    predictor = SimpleNamespace(**vars(ensemble), outputs_of=outputs_of, probabilities=ensemble.probabilities)
    report = _evaluate_nodes(predictor, dataclasses.replace(data, labels=labels))
    assert (report["scores"]["test"], report["tested"], report["right"]) == (1.0, 6, 6)
    labels[data.test] = -1
    report = _evaluate_nodes(predictor, dataclasses.replace(data, labels=labels))
    assert "tested" not in report
