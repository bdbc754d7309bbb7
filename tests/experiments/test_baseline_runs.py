"""Baselines become records like those of the models: once each, resumable, also when they fail."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from rgat.baselines import DETERMINISTIC, GRAPH_BASELINES, NODE_BASELINES, Outcome
from rgat.data import GraphData, load
from rgat.experiments import baseline_runs
from rgat.experiments.baseline_runs import run_baseline, run_baselines
from rgat.experiments.records import describe_data, open_experiment, read_experiment, unpack_array


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def made_up(calls, wrong=False):
    """A system that names the right class, and says how often it was asked."""

    def run(data, seed=0, **settings):
        calls.append(seed)
        labels = data.labels.clamp(min=0)
        logits = torch.nn.functional.one_hot(labels, 2 if isinstance(data, GraphData) else len(data.classes)).float()
        parts = {part: (-1 if wrong else 1) * logits[getattr(data, part)] for part in ("train", "valid", "test")}
        return Outcome({"size": 3}, "nothing: made up", parts, 2, [1.23456789, 0.5])

    return run


def test_a_node_record_says_all(monkeypatch):
    monkeypatch.setitem(NODE_BASELINES, "R-GCN", made_up([]))
    data = load("institute")
    record = run_baseline("R-GCN", data, seed=4)
    assert (record["kind"], record["model"], record["seed"], record["split"]) == ("run", "R-GCN", 4, None)
    assert (record["data"], record["budget"], record["status"]) == ("institute", "custom", "done")
    assert record["scores"] == {"train": 1, "valid": 1, "test": 1}
    assert record["constant_scores"] is None
    assert record["curve"]["train_loss"] == [1.2346, 0.5]
    assert (record["config"], record["best_epoch"]) == ({"size": 3}, 2)
    assert "torch" in record["versions"]
    found = unpack_array(record["outputs"]["test"]).argmax(1)
    assert np.array_equal(found, data.labels[data.test].numpy())
    assert record["class_scores"]["test"]["macro_f1"] == 1


def test_a_graph_record_has_a_score_for_each_task(monkeypatch):
    monkeypatch.setitem(GRAPH_BASELINES, "Weave", made_up([], wrong=True))
    data = load("molecules")
    record = run_baseline("Weave", data, split=122)
    assert record["scores"]["test"] == 0
    assert set(record["task_scores"]["test"]) == set(data.tasks)
    assert record["constant_task_scores"] is None
    assert "class_scores" not in record
    assert unpack_array(record["outputs"]["test"]).shape == (len(data.test), len(data.tasks), 2)


def test_what_does_not_end_well_is_a_record_too(monkeypatch):
    data = load("institute")

    def fail(data, seed):
        raise RuntimeError("no memory")

    def diverge(data, seed):
        parts = {part: torch.full((len(getattr(data, part)), 4), torch.nan) for part in ("train", "valid", "test")}
        return Outcome({}, "nothing", parts)

    for run, status, error in (
        (fail, "failed", "RuntimeError: no memory"),
        (diverge, "diverged", "the outputs are not numbers"),
    ):
        monkeypatch.setitem(NODE_BASELINES, "WL", run)
        record = run_baseline("WL", data)
        assert (record["status"], record["scores"]) == (status, None)
        assert error in record["error"]
    with pytest.raises(ValueError, match=r'`baseline` must be "FEAT", .* got "Weave"'):
        run_baseline("Weave", data)


def test_runs_are_made_once_and_a_deterministic_system_is_run_once(tmp_path, monkeypatch):
    calls = {name: [] for name in NODE_BASELINES}
    for name, made in calls.items():
        monkeypatch.setitem(NODE_BASELINES, name, made_up(made))
    records = list(run_baselines("all", "institute", 2, tmp_path))
    assert calls == {"FEAT": [0], "WL": [0], "RDF2Vec": [0, 1], "R-GCN": [0, 1], "min-max kernel": [0]}
    again = list(run_baselines("all", "institute", 3, tmp_path))
    assert calls["R-GCN"] == [0, 1, 2]
    assert [record for record in again if record["seed"] < 2] == records
    experiment = read_experiment(tmp_path / "institute")
    assert len(experiment.records) == 9
    assert experiment.description["majority"] < 0.5
    assert set(DETERMINISTIC) <= {*NODE_BASELINES, *GRAPH_BASELINES}


def test_the_same_system_has_several_spellings(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(GRAPH_BASELINES, "kernel SVM", made_up(calls))
    for name in ("kernel-svm", "Kernel SVM", "kernel_SVM"):
        (record,) = run_baselines(name, "molecules", 1, tmp_path)
        assert record["model"] == "kernel SVM"
    assert calls == [0]
    with pytest.raises(ValueError, match='got "kernel"; did you mean "kernel SVM"'):
        list(run_baselines("kernel", "molecules", 1, tmp_path))
    with pytest.raises(ValueError, match="`seeds` must be an integer of at least 1, got 0"):
        list(run_baselines("all", "molecules", 0, tmp_path))


def test_records_join_an_experiment_of_the_same_data_only(tmp_path, monkeypatch):
    monkeypatch.setitem(NODE_BASELINES, "WL", made_up([]))
    data = load("institute")
    folder = tmp_path / "institute"
    open_experiment(folder, describe_data({None: data}) | {"budget": "smoke", "trials": 3, "seeds": 3})
    assert len(list(run_baselines("WL", "institute", 1, tmp_path))) == 1
    assert read_experiment(folder).description["trials"] == 3
    path = folder / "experiment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"test_labels": {"": [0]}}))
    with pytest.raises(ValueError, match="with other test_labels"):
        list(run_baselines("WL", "institute", 1, tmp_path))


def test_tox21_is_run_on_its_three_splits(tmp_path, monkeypatch):
    asked = []

    def load_split(name, split=None):
        asked.append(split)
        return load("molecules", seed=0)

    monkeypatch.setattr(baseline_runs, "load", load_split)
    monkeypatch.setitem(GRAPH_BASELINES, "Weave", made_up([]))
    records = list(run_baselines("Weave", "tox21", 2, tmp_path))
    assert asked == [122, 123, 124]
    assert [(record["split"], record["seed"]) for record in records] == [(s, i) for s in asked for i in (0, 1)]
    assert set(read_experiment(tmp_path / "tox21").description["test_labels"]) == {"122", "123", "124"}


def rgat(*arguments):
    environment = os.environ | {"COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "rgat", *arguments], capture_output=True, text=True, timeout=300, env=environment
    )


def test_the_command_prints_a_table_and_leaves_records(tmp_path):
    done = rgat("baseline", "wl", "institute", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "WL" in done.stdout
    assert (tmp_path / "institute" / "records" / "wl" / "run-0000.json").is_file()
    wrong = rgat("baseline", "weave", "institute", "--out", str(tmp_path))
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "baselines\n", 1)
    assert '"min-max kernel" or "all", got "weave"' in wrong.stderr
