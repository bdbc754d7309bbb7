"""The extended space: search by halving, declare, run; the same records after any interruption and on any machine."""

import dataclasses
import itertools
import json
import shutil
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rgat.baselines import min_max
from rgat.data import load
from rgat.experiments import declaration, extended, prepared
from rgat.experiments import units as units_file
from rgat.experiments.declaration import choose_members, digest, digest_trials, without_literals
from rgat.experiments.executors import open_executor
from rgat.experiments.extended import describe_search, minutes_spent, ranked_relations
from rgat.experiments.folds import decode, encode, fold_data
from rgat.experiments.inputs import select_inputs, without_inputs
from rgat.experiments.protocol import open_protocol
from rgat.experiments.records import pack_array, read_experiment, record_name, unpack_array, write_record
from rgat.experiments.request import (
    ENSEMBLE,
    EXTENDED_MODELS,
    FOREST,
    KERNEL,
    PRUNING,
    SELECTED,
    WITHOUT_LITERALS,
    make_request,
)
from rgat.experiments.running import next_units, run_protocol
from rgat.experiments.units import make_unit, train_units
from rgat.training import accuracy, mean_roc_auc
from rgat.training.configuration import OneOf, build_model, split_config
from rgat.training.halving import merge, propose_step
from rgat.training.space import EXTENDED, to_config

ASKED = {"data": "institute", "space": "extended", "trials": 5, "seeds": 2, "folds": 5, "max_epochs": 2, "patience": 2}
SPACE = {"layer": OneOf(("rgcn",)), "hidden_channels": OneOf((4, 8)), "learning_rate": OneOf((0.01, 0.1))}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """A small space, and small steps."""
    monkeypatch.setenv("RGAT_BACKEND", "torch")
    monkeypatch.setattr(extended, "STEP", 3)
    monkeypatch.setattr(extended, "MOST_PRUNED", 2)
    monkeypatch.setattr(extended, "EXTENDED", {"node": SPACE, "graph": SPACE})


def untimed(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All records of an experiment that was not interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGAT_BACKEND", "torch")
        patch.setattr(extended, "STEP", 3)
        patch.setattr(extended, "MOST_PRUNED", 2)
        patch.setattr(extended, "EXTENDED", {"node": SPACE, "graph": SPACE})
        protocol = open_protocol(ASKED, tmp_path_factory.mktemp("extended"))
        written = []
        while units := next_units(protocol, protocol.records()):
            written.append(units)
            run_units(protocol, units)
    return protocol, protocol.records(), written


def run_units(protocol, units):
    for record in train_units(units, protocol.folded):
        write_record(protocol.folder, record)


def test_the_stages_follow_one_another(finished):
    protocol, records, stages = finished
    assert protocol.folder.name == "institute-extended"
    assert {record["status"] for record in records} == {"done"}
    shown = [[(u["kind"], u["model"], u.get("trial"), u.get("rung")) for u in units] for units in stages]
    assert shown[0] == [("trial", PRUNING, number, None) for number in range(3)]
    assert shown[1] == [("trial", SELECTED, number, 0) for number in range(3)]
    kinds = [{kind for kind, *_ in stage} for stage in shown]
    assert shown[-3] == [("trial", KERNEL, 0, 0)]
    assert kinds[-2:] == [{"declaration"}, {"run"}]
    rungs = [rung for stage in shown[2:-3] for *_, rung in stage]
    assert sorted(rungs) == [0, 0, 1]
    assert {record["setting"] for record in records} == {"extended"}
    assert {record["model"] for record in records} == {PRUNING, SELECTED, ENSEMBLE, KERNEL}


def test_a_trial_sees_no_test_data_and_keeps_what_it_predicts_for_held_out_nodes(finished):
    protocol, records, _ = finished
    trials = [record for record in records if record["kind"] == "trial" and record["model"] == SELECTED]
    assert len(trials) == 6
    for trial in trials:
        assert not {"scores", "outputs"} & trial.keys()
        for fold in trial["folds"]:
            train, valid = protocol.folded.fold_ids(fold["fold"])
            assert not {*train.tolist(), *valid.tolist()} & {*protocol.folded.data.test.tolist()}
            logits = torch.from_numpy(unpack_array(fold["outputs"]))
            hits = logits.argmax(1) == protocol.folded.data.labels[valid]
            assert float(hits.double().mean()) == pytest.approx(fold["valid_metric"])


def test_final_runs_carry_the_digest_of_the_declaration(finished):
    _, records, _ = finished
    (declaration,) = [record for record in records if record["kind"] == "declaration"]
    trials = [record for record in records if record["kind"] == "trial" and record["model"] == SELECTED]
    (kernel,) = [record for record in records if record["kind"] == "trial" and record["model"] == KERNEL]
    declared = declaration["declared"]
    assert declaration["sha256"] == digest(declared)
    assert declared["trials_sha256"] == digest_trials([kernel, *trials[::-1]])
    assert declared["kernel"]["objective"] == kernel["objective"]
    best = [trial for trial in merge(trials) if trial["rung"] == 1]
    assert [declared["selected"]["trial"]] == [trial["trial"] for trial in best]
    assert (declared["trials"], declared["by_rung"]) == (5, [5, 1])
    runs = [record for record in records if record["kind"] == "run"]
    rows = [(ENSEMBLE, 0), (ENSEMBLE, 1), (KERNEL, 0), (SELECTED, 0), (SELECTED, 1)]
    assert [(run["model"], run["seed"]) for run in runs] == rows
    assert {run["declaration"] for run in runs} == {declaration["sha256"]}
    assert all("over 5 folds without test data" in run["selected_on"] for run in runs if run["model"] != KERNEL)


def test_an_ensemble_is_the_weighted_mean_of_its_members(finished):
    protocol, records, _ = finished
    unit = next(record for record in records if record["model"] == ENSEMBLE)
    assert sum(member["weight"] for member in unit["members"]) == pytest.approx(1)
    means = 0.0
    for number, member in enumerate(unit["members"]):
        alone = {"kind": "run", "model": member["model"], "config": member["config"], "split": None}
        seeds = [seed + 1000 * number for seed in unit["stack"]]
        stack = [alone | {"seed": seed, "stack": seeds} for seed in seeds]
        run = next(train_units(stack, protocol.folded))
        logits = torch.from_numpy(unpack_array(run["outputs"]["test"])).double()
        means = means + member["weight"] * logits.softmax(-1)
    ours = torch.from_numpy(unpack_array(unit["outputs"]["test"])).double().exp()
    assert torch.allclose(ours, means, atol=2e-3)
    labels = protocol.folded.data.labels[protocol.folded.data.test]
    assert unit["scores"]["test"] == pytest.approx(float((ours.argmax(1) == labels).double().mean()), abs=0.02)


def test_a_search_goes_on_after_any_interruption(finished, tmp_path):
    """Every second record is lost each time."""
    _, records, _ = finished
    again = open_protocol(ASKED, tmp_path)
    for _ in range(40):
        units = next_units(again, again.records())
        if not units:
            break
        run_units(again, units[::2])
    assert untimed(again.records()) == untimed(records)


def test_another_machine_goes_on_to_the_end(finished, tmp_path):
    _, records, _ = finished
    here = open_protocol(ASKED, tmp_path)
    assert prepared.write_prepared(here) == 3
    assert prepared.run_prepared(here.folder) == 3
    prepared.write_prepared(here)
    prepared.main([str(here.folder), "--all"])
    assert untimed(record | {"workers": None} for record in here.records()) == untimed(
        record | {"workers": None} for record in records
    )
    assert {record["workers"] for record in here.records()} == {1}


def test_a_changed_declaration_is_refused(finished, tmp_path):
    protocol, _, _ = finished
    copied = dataclasses.replace(protocol, folder=tmp_path / "copy")
    shutil.copytree(protocol.folder, copied.folder)
    for path in copied.folder.glob("records/*/run-*.json"):
        path.unlink()
    (path,) = copied.folder.glob("records/*/declaration.json")
    record = json.loads(path.read_text())
    record["declared"]["selected"]["trial"] += 1
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="must be as it was written"):
        next_units(copied, copied.records())


def test_a_search_alone_declares_nothing(finished):
    protocol, records, _ = finished
    trials = [record for record in records if record["kind"] == "trial"]
    assert next_units(protocol, trials, search_only=True) == []
    (unit,) = next_units(protocol, trials)
    assert unit["kind"] == "declaration"
    lines = describe_search(trials)
    assert lines[0].startswith("tried 5 configurations; 5, 1 reached rungs 0 to 1; 0 failed")
    assert "on 5 validation folds; no test data were used" in lines[-1]


def test_minutes_end_the_search_and_earlier_calls_count(finished, tmp_path):
    protocol, records, _ = finished
    trials = [record for record in records if record["kind"] == "trial" and record["model"] == SELECTED]
    timed = dataclasses.replace(protocol, request=dataclasses.replace(protocol.request, minutes=1.0))
    half = [record | {"seconds": 60.0, "workers": 4} for record in trials[:2]]
    assert minutes_spent(half) == 0.5
    assert {unit["kind"] for unit in next_units(timed, half)} == {"trial"}
    whole = [record | {"seconds": 60.0, "workers": 2} for record in trials[:2]]
    assert [(unit["kind"], unit["model"]) for unit in next_units(timed, whole)] == [("trial", KERNEL)]
    kernel = next(record for record in records if record["kind"] == "trial" and record["model"] == KERNEL)
    assert [unit["kind"] for unit in next_units(timed, [*whole, kernel])] == ["declaration"]
    with pytest.raises(ValueError, match="at least one trial must finish before the time is over"):
        next_units(timed, [], minutes=1.0)
    pruning = [unit["model"] for unit in next_units(timed, [], minutes=0.1)]
    assert {*pruning} == {PRUNING}
    assert {unit["model"] for unit in next_units(timed, [], minutes=0.3)} == {SELECTED}, "a fifth is over"


def test_descriptors_stand_beside_molecules(tmp_path):
    folded = open_protocol(ASKED | {"data": "molecules", "folds": 2}, tmp_path).folded
    assert extended.whole_space(folded.data)["descriptors"].values == ("none", "rdkit", "both")
    columns, number = folded.data.graphs.graph_attr, folded.data.provenance["num_descriptors"]
    again = decode(encode(folded)).data
    assert torch.equal(again.graphs.graph_attr, columns)
    pool = columns[torch.cat(folded.fold_ids(0))].float()
    assert pool.mean(0).abs().max() < 0.1, "standardised by the molecules of the folds"
    chosen = {kind: select_inputs(again, {"descriptors": kind}).graphs.graph_attr for kind in ("none", "rdkit", "both")}
    assert chosen["none"] is None
    assert torch.equal(chosen["rdkit"], columns[:, :number])
    assert torch.equal(chosen["both"], columns)
    assert columns.shape[1] > number > 100
    config = {"layer": "rgcn", "hidden_channels": 8, "descriptors": "both", "max_epochs": 1, "patience": 1}
    unit = make_unit("trial", "molecules", SELECTED, config, trial=0, rung=0, folds=[0])
    (record,) = train_units([unit], folded)
    assert record["status"] == "done"


def test_the_last_rung_rehearses_the_final_training(finished):
    protocol, records, _ = finished
    protocol = dataclasses.replace(protocol, request=dataclasses.replace(protocol.request, folds=15))
    first = next(r for r in records if r["model"] == SELECTED and r.get("rung") == 0)
    losses = [[1.0, 0.8, 0.9, 1.0], [1.0, 0.9, 0.5]]
    trial = first | {"folds": [{"curve": {"valid_loss": curve}} for curve in losses]}
    config = extended._rung_config(protocol.request, trial, 2)
    assert config == first["config"] | {"max_epochs": 3, "patience": None}
    assert extended._rung_config(protocol.request, trial, 1) == first["config"]
    unit = extended._trial_unit(protocol, 0, first["options"], config, 2, 1)
    (record,) = train_units([unit], protocol.folded)
    assert [fold["fold"] for fold in record["folds"]] == list(range(5, 15))
    for fold in record["folds"]:
        outputs = torch.from_numpy(unpack_array(fold["outputs"])).float()
        labels = protocol.folded.data.labels[protocol.folded.fold_ids(fold["fold"])[1]]
        assert fold["best_epoch"] == len(fold["curve"]["train_loss"]) == 3
        assert fold["valid_metric"] == pytest.approx((outputs.argmax(1) == labels).float().mean().item())
        assert fold["valid_loss"] == pytest.approx(torch.nn.functional.nll_loss(outputs, labels).item(), rel=1e-2)
    (merged,) = merge([first, record])
    assert declaration._final(merged, protocol.folded.data)["config"] == config


OPTIONS = {
    "rgcn": {"layer": "rgcn"},
    "rgat": {"layer": "rgat", "scope": "within", "score": "additive", "heads": 2},
    "averaged": {"layer": "rgat", "scope": "mixed", "score": "dynamic", "heads": 2, "weight_averaging": True},
    "smoothed": {"layer": "rgcn", "label_smoothing": 0.1, "weight_averaging": True},
}


def compared_at_a_common_epoch(protocol, name, max_epochs=40, patience=4):
    """A trial of the first three folds, whose best epochs differ."""
    config = {"hidden_channels": 8, "learning_rate": 0.05, "feature_dropout": 0.3, "edge_dropout": 0.3}
    config |= OPTIONS[name] | {"max_epochs": max_epochs, "patience": patience}
    unit = extended._trial_unit(protocol, 3, {}, config, 0, 0) | {"folds": [0, 1, 2]}
    assert (unit["common_epoch"], unit["rehearsal"]) == (True, False)
    return unit


@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_metric_and_loss_of_a_fold_are_those_of_the_common_epoch(finished, name):
    folded = finished[0].folded
    (record,) = train_units([compared_at_a_common_epoch(finished[0], name)], folded)
    common = declaration.retraining(record["folds"])["max_epochs"]
    assert len({common, *(fold["best_epoch"] for fold in record["folds"])}) > 2, "early stopping keeps other epochs"
    measured = 0
    for fold in record["folds"]:
        outputs = torch.from_numpy(unpack_array(fold["outputs"]))
        labels = folded.data.labels[folded.fold_ids(fold["fold"])[1]]
        assert accuracy(outputs, labels) == fold["valid_metric"]
        assert fold["valid_loss"] == pytest.approx(torch.nn.functional.nll_loss(outputs, labels).item(), rel=1e-2)
        curve = fold["curve"]
        if len(curve["valid_loss"]) >= common:  # others stopped before
            measured += 1
            assert fold["valid_metric"] == pytest.approx(curve["valid_metric"][common - 1], rel=1e-4)
            assert fold["valid_loss"] == pytest.approx(curve["valid_loss"][common - 1], rel=1e-3)
    assert measured > 0
    assert record["objective"] == np.mean([fold["valid_metric"] for fold in record["folds"]])
    final = record["config"] | declaration.retraining(record["folds"])
    rehearsal = compared_at_a_common_epoch(finished[0], name) | {"config": final, "rehearsal": True}
    (again,) = train_units([rehearsal], folded)
    assert [fold["outputs"] for fold in again["folds"]] == [fold["outputs"] for fold in record["folds"]]


def test_folds_whose_best_epoch_is_the_common_one_are_trained_once(finished, monkeypatch):
    trained, fit_many = [], units_file.fit_many
    monkeypatch.setattr(units_file, "fit_many", lambda *given: trained.append(given[2]) or fit_many(*given))
    (record,) = train_units([compared_at_a_common_epoch(finished[0], "rgcn", 3, 3)], finished[0].folded)
    assert [fold["best_epoch"] for fold in record["folds"]] == [3] * 3
    assert [(each.max_epochs, each.patience) for each in trained] == [(3, 3)]
    trained.clear()
    (record,) = train_units([compared_at_a_common_epoch(finished[0], "rgcn")], finished[0].folded)
    common = declaration.retraining(record["folds"])["max_epochs"]
    assert [(each.max_epochs, each.patience) for each in trained] == [(40, 4), (common, None)]


def test_a_trial_that_is_stopped_in_its_second_training_has_no_record(finished, monkeypatch):
    unit = compared_at_a_common_epoch(finished[0], "rgcn")
    (record,) = train_units([unit], finished[0].folded)
    first = sum(len(fold["curve"]["valid_loss"]) for fold in record["folds"])
    second = 3 * declaration.retraining(record["folds"])["max_epochs"]
    for until, count in ((first + 1, 0), (first + second, 0), (first + second + 1, 1)):
        clock = itertools.count(1)
        monkeypatch.setattr(units_file, "time", SimpleNamespace(monotonic=clock.__next__, perf_counter=float))
        assert len(list(train_units([unit], finished[0].folded, until=until))) == count


@pytest.mark.parametrize("lost", ["loss", "outputs"])
def test_a_trial_that_diverges_in_its_second_training_has_no_objective(finished, monkeypatch, lost):
    train = units_file._train

    def diverging(config, *given):
        models, results = train(config, *given)
        if config["patience"] is None and lost == "loss":
            results[1] = dataclasses.replace(results[1], best_epoch=config["max_epochs"] - 1)
        elif config["patience"] is None:
            torch.nn.init.constant_(next(models[1].parameters()), float("nan"))
        return models, results

    monkeypatch.setattr(units_file, "_train", diverging)
    (record,) = train_units([compared_at_a_common_epoch(finished[0], "rgcn")], finished[0].folded)
    assert (record["status"], record["objective"], record["folds"]) == ("diverged", None, [])
    assert record["error"] == f"no finite {lost} in fold 1"


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_an_executor_stops_in_time(finished, executor):
    protocol, _, _ = finished
    config = {"layer": "rgcn", "hidden_channels": 4, "max_epochs": 10**7, "patience": 10**7}
    unit = protocol.unit("trial", SELECTED, config, trial=0, rung=0, folds=[0])
    with open_executor(executor, protocol.folded, 1 if executor == "processes" else None) as execute:
        assert list(execute([unit], time.monotonic() + 1)) == []
        declaration = protocol.unit("declaration", SELECTED, {})
        assert [record["kind"] for record in execute([declaration])] == ["declaration"]


def test_a_timed_search_of_no_time_writes_nothing(tmp_path):
    protocol = open_protocol(ASKED | {"minutes": 1e-6, "trials": None}, tmp_path)
    assert run_protocol(protocol, search_only=True) == []
    assert read_experiment(protocol.folder).records == []


def test_processes_that_train_together_are_not_stopped_in_time(tmp_path):
    protocol = open_protocol(ASKED | {"minutes": 1}, tmp_path)
    with pytest.raises(ValueError, match="`processes_per_run` must be 1 with `minutes`"):
        run_protocol(protocol, executor="ray", processes_per_run=2)


def made_up(number, outputs, folds, metric=0.5):
    made = [{"fold": fold, "outputs": pack_array(each)} for fold, each in zip(folds, outputs, strict=True)]
    return {"trial": number, "folds": made, "objective": metric}


def test_members_are_chosen_by_their_mean_on_held_out_examples(finished):
    """Two members that are wrong about different nodes complete each other; one that is always wrong is left out."""
    folded = finished[0].folded
    labels = folded.data.labels[folded.fold_ids(0)[1]].numpy()
    right, wrong = np.eye(4)[labels], np.eye(4)[(labels + 1) % 4]
    first_half = np.arange(len(labels))[:, None] % 2 == 0
    logs = [
        np.log(np.where(first_half, 0.8 * right + 0.05, 0.4 * right + 0.45 * wrong + 0.01)),
        np.log(np.where(~first_half, 0.8 * right + 0.05, 0.4 * right + 0.45 * wrong + 0.01)),
        np.log(0.9 * wrong + 0.02),
    ]
    trials = [made_up(number, [each], [0]) for number, each in enumerate(logs)]
    members, score = choose_members(folded, trials)
    assert score == 1.0
    assert {trial["trial"] for trial in members} == {0, 1}
    assert len(members) == 5


def test_ensembles_of_graphs_are_scored_by_mean_roc_auc():
    folded = fold_data(load("molecules"))
    labels = folded.data.labels[folded.fold_ids(0)[1]].clamp(min=0).numpy()
    good, bad = (np.log(0.05 + 0.9 * np.eye(2)[each]) for each in (labels, 1 - labels))
    members, score = choose_members(folded, [made_up(0, [bad], [0]), made_up(1, [good], [0])])
    assert [trial["trial"] for trial in members] == [1] * 5
    assert score == 1.0


@pytest.fixture(scope="module")
def with_forest(tmp_path_factory):
    """All records of an experiment on molecules, whose ensemble may have a forest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RGAT_BACKEND", "torch")
        patch.setattr(extended, "STEP", 3)
        patch.setattr(extended, "NUM_TREES", 4)
        patch.setattr(extended, "EXTENDED", {"node": SPACE, "graph": SPACE})
        asked = ASKED | {"data": "molecules", "trials": 3, "folds": 3, "seeds": 1}
        protocol = open_protocol(asked, tmp_path_factory.mktemp("forest"))
        order = []
        while units := next_units(protocol, protocol.records()):
            order.append({(unit["kind"], unit["model"]) for unit in units})
            for record in train_units(units, protocol.folded):
                assert record["status"] == "done", record.get("error")
                write_record(protocol.folder, record)
    return protocol, protocol.records(), order


def test_a_forest_of_descriptors_is_trained_before_the_declaration(with_forest):
    protocol, records, order = with_forest
    assert order[-3:-1] == [{("trial", FOREST)}, {("declaration", SELECTED)}]
    assert order[-1] == {("run", model) for model in (SELECTED, ENSEMBLE, FOREST)}
    trials = [record for record in records if record["kind"] == "trial"]
    (forest,) = (trial for trial in trials if trial["model"] == FOREST)
    assert [fold["fold"] for fold in forest["folds"]] == [0, 1, 2]
    for fold in forest["folds"]:
        outputs = torch.from_numpy(unpack_array(fold["outputs"]))
        labels = protocol.folded.data.labels[protocol.folded.fold_ids(fold["fold"])[1]]
        assert fold["valid_metric"] == pytest.approx(mean_roc_auc(outputs, labels), abs=1e-3)
        right = outputs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)[labels >= 0]
        assert fold["valid_loss"] == pytest.approx(-right.mean().item(), rel=1e-2)
    (declared,) = (record["declared"] for record in records if record["kind"] == "declaration")
    assert declared["selected"]["model"] == SELECTED
    assert declared["folds"] == [0, 1]  # no trial has reached the last rung
    assert declared["forest"]["objective"] == np.mean([fold["valid_metric"] for fold in forest["folds"][:2]])
    assert digest_trials(trials) == declared["trials_sha256"]
    assert declaration.declare(protocol.folded, [t for t in trials if t["model"] == SELECTED], forest) == declared


def test_time_that_is_over_does_not_stop_the_forest(with_forest):
    protocol, records, _ = with_forest
    timed = dataclasses.replace(protocol.request, minutes=1.0)
    units = {record["model"]: record for record in records if record["kind"] == "trial"}
    assert extended.minutes_of(timed, units[SELECTED]) == 1.0
    assert extended.minutes_of(timed, units[FOREST]) is None


def test_a_member_of_an_ensemble_may_be_a_forest(with_forest):
    protocol, records, _ = with_forest
    folded, (trial,) = protocol.folded, [r for r in records if r["kind"] == "trial" and r["model"] == SELECTED][:1]
    members = [
        {"model": SELECTED, "trial": 0, "config": trial["config"], "weight": 0.25},
        {"model": FOREST, "trial": 0, "config": {"num_trees": 3}, "weight": 0.75},
    ]
    split = next(iter(folded.splits))
    unit = make_unit("run", "molecules", ENSEMBLE, {}, members=members, seed=2, split=split)
    alone = [
        make_unit("run", "molecules", member["model"], member["config"], seed=2 + 1000 * number, split=split)
        for number, member in enumerate(members)
    ]
    records = list(train_units([unit, *alone], folded))
    assert [record["status"] for record in records] == ["done"] * 3
    mean, first, second = (torch.from_numpy(unpack_array(record["outputs"]["test"])).softmax(-1) for record in records)
    assert torch.allclose(mean, 0.25 * first + 0.75 * second, atol=2e-3)
    assert not torch.allclose(first, second, atol=0.05)


def test_a_kernel_that_is_a_member_is_trained_once_for_all_seeds(finished, monkeypatch):
    protocol, records, _ = finished
    trained = []

    def watched(data, seed, **settings):
        trained.append(seed)
        return min_max.run(data, seed, **settings)

    monkeypatch.setitem(units_file.NODE_BASELINES, KERNEL, watched)
    (alone,) = [record for record in records if record["kind"] == "run" and record["model"] == KERNEL]
    assert {"iterations", "C"} < alone["chosen"].keys()
    member = {"model": KERNEL, "trial": 0, "config": alone["config"], "weight": 0.5}
    ensemble = {"members": [member] * 2, "stack": [0, 1], "split": None}
    runs = list(
        train_units([make_unit("run", "institute", ENSEMBLE, {}, seed=n, **ensemble) for n in (0, 1)], protocol.folded)
    )
    assert len(trained) == 1
    expected = torch.from_numpy(unpack_array(alone["outputs"]["test"])).softmax(-1)
    for run in runs:
        assert torch.allclose(torch.from_numpy(unpack_array(run["outputs"]["test"])).exp(), expected, atol=2e-3)


def test_nodes_that_are_too_many_for_the_kernel_have_none(finished, monkeypatch):
    protocol, records, _ = finished
    trials = [record for record in records if record["kind"] == "trial" and record["model"] != KERNEL]
    assert [unit["model"] for unit in next_units(protocol, trials)] == [KERNEL]
    monkeypatch.setattr(extended, "MOST_NODES", 10)
    (unit,) = next_units(protocol, trials)
    assert unit["kind"] == "declaration"
    assert "kernel" not in unit["declared"]


def test_final_runs_of_models_alone_need_no_scikit_learn(finished, monkeypatch):
    protocol, records, _ = finished
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match="need scikit-learn"):
        extended.check_libraries(protocol, records)
    (declared,) = [record for record in records if record["kind"] == "declaration"]
    earlier = {key: value for key, value in declared["declared"].items() if key != "kernel"}
    extended.check_libraries(protocol, [declared | {"declared": earlier}])


def _without_declaration(records):
    return [record for record in records if record["kind"] == "trial"]


def test_nothing_is_declared_with_a_forest_that_failed_or_lacks_a_fold(with_forest):
    protocol, records, _ = with_forest
    *trials, forest = sorted(_without_declaration(records), key=lambda record: record["model"] == FOREST)
    failed = forest | {"status": "failed", "error": "MemoryError: full", "objective": None, "folds": []}
    with pytest.raises(ValueError, match=r"descriptor forest .* failed \(MemoryError: full\); .* delete records/desc"):
        next_units(protocol, [*trials, failed])
    with pytest.raises(ValueError, match=r"descriptor-forest.* must have the folds 0, 1, but lacks 1; delete it"):
        next_units(protocol, [*trials, forest | {"folds": [forest["folds"][0], forest["folds"][2]]}])


def test_a_request_made_before_the_forest_has_none(with_forest):
    protocol, records, _ = with_forest
    trials = [record for record in _without_declaration(records) if record["model"] == SELECTED]
    models = tuple(model for model in protocol.request.models if model != FOREST)
    earlier = dataclasses.replace(protocol, request=dataclasses.replace(protocol.request, models=models))
    (unit,) = next_units(earlier, trials)
    assert unit["kind"] == "declaration"
    assert "forest" not in unit["declared"]
    assert {member["model"] for member in unit["declared"]["members"]} == {SELECTED}


def test_a_search_of_molecules_without_scikit_learn_does_not_begin(with_forest, monkeypatch):
    protocol, _, _ = with_forest
    monkeypatch.setitem(sys.modules, "sklearn", None)
    empty = dataclasses.replace(protocol, folder=protocol.folder.parent / "empty")
    shutil.copytree(protocol.folder, empty.folder, ignore=shutil.ignore_patterns("*+extended"))
    with pytest.raises(ImportError, match=r"need scikit-learn; install it with `pip install 'rgat\[baselines\]'`"):
        run_protocol(empty)
    assert not empty.records()


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_every_draw_from_the_space_is_a_model(name, monkeypatch):
    monkeypatch.setattr(extended, "EXTENDED", EXTENDED)
    data = load(name)
    if name == "institute":
        vocabulary = {"types": ["a"], "degrees": ["p"], "numbers": {}}
        x = torch.randn(data.graph.num_nodes, 7)
        data = dataclasses.replace(data, x=x, provenance=data.provenance | {"vocabulary": vocabulary})
    space = extended.whole_space(data)
    drawn = propose_step(space, 0, 0, [], 60)
    for options in drawn:
        config = without_inputs(to_config(options) | {"max_epochs": 1, "patience": 1})
        build_model(select_inputs(data, options), **split_config(config)[0])
    for option, prior in space.items():
        if isinstance(prior, OneOf):
            assert {options[option] for options in drawn if option in options} == {*prior.values}, option


def test_relations_are_ranked_by_what_their_removal_gains():
    def removed(number, names, objective, status="done"):
        return {
            "trial": number, "status": status, "objective": objective, "tie_breaker": 1.0,
            "config": {"pruned_relations": names},
        }  # fmt: skip

    records = [removed(0, [], 0.5), removed(1, ["a"], 0.7), removed(2, ["b"], 0.4), removed(3, ["c"], 0.9)]
    assert ranked_relations(records) == ["c", "a"]
    assert ranked_relations(records[1:]) == []
    assert ranked_relations([*records, removed(4, ["d"], None, "failed")]) == ["c", "a"]


def test_the_selected_model_is_run_without_literals_beside_it():
    config = {"features": "types,literals", "identity": False, "heads": 2}
    assert without_literals(config) == {"features": "types", "identity": False, "heads": 2}
    beside = {"identity": True, "neighbours": True, "wide": True, "wide_l1": 0.1}
    assert without_literals({"features": "literals", **beside}) == {"features": "none"}
    assert without_literals({"features": "types"}) is None
    assert without_literals({}) is None
    assert WITHOUT_LITERALS in EXTENDED_MODELS


def test_names_of_rungs_and_declarations_differ():
    trial = {"kind": "trial", "model": SELECTED, "setting": "extended", "trial": 7}
    names = [record_name(trial | {"rung": rung}) for rung in range(3)]
    assert names[0] == record_name(trial)
    assert len({*names, record_name(trial | {"kind": "declaration"})}) == 4


def test_further_draws_of_folds_are_other_folds(finished):
    folded = finished[0].folded
    pool = {*folded.splits[None][0].tolist()}
    for first in (0, 5, 10):
        parts = [{*folded.fold_ids(first + fold)[1].tolist()} for fold in range(5)]
        assert set().union(*parts) == pool
        assert sum(map(len, parts)) == len(pool)
    assert not torch.equal(folded.fold_ids(0)[1], folded.fold_ids(5)[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"space": "wide"}, "`space` must be"),
        ({"space": "extended", "models": ["RGCN"]}, "`models` must be left out"),
        ({"space": "extended", "setting": "x", "fixed": {"heads": 1}}, "`setting` must be left out"),
        ({"space": "paper", "minutes": 1}, "`minutes` must be left out"),
        ({"minutes": 0}, "`minutes` must be a number above 0"),
        ({"setting": "extended"}, "give `space`"),
        ({"space": "extended", "folds": 16}, "`folds` must be at most 15"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        make_request("node", {"data": "institute"} | given)


def test_minutes_ask_for_the_extended_space():
    request = make_request("graph", {"data": "molecules", "minutes": 3})
    assert (request.space, request.setting, request.budget, request.folds) == ("extended", "extended", "custom", 4)
    assert request.trials > 10_000
    assert "space" not in make_request("graph", {"data": "molecules"}).description()
