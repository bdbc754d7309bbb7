"""Search, select, retrain, evaluate: the same records with any executor, after any interruption, on any machine."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib

import numpy as np
import pytest
import torch
from helpers import large_graphs

from rgat.experiments import prepared
from rgat.experiments import records as record_files
from rgat.experiments import units as unit_files
from rgat.experiments.executors import open_executor
from rgat.experiments.protocol import open_protocol
from rgat.experiments.published import PUBLISHED, constant_row, summarise, write_configs
from rgat.experiments.records import unpack_array, write_record
from rgat.experiments.request import make_request, read_request
from rgat.experiments.running import next_units, run_protocol
from rgat.experiments.units import train_units
from rgat.training import roc_auc_per_task
from rgat.training.configuration import VARIANTS, build_model, split_config
from rgat.training.search import select

ASKED = {"trials": 3, "seeds": 2, "folds": 2, "max_epochs": 3, "patience": 2}
NODES = ASKED | {"data": "institute", "models": ["RGCN", "multiplicative ARGAT"]}
GRAPHS = ASKED | {"data": "molecules", "models": ["additive WIRGAT"], "trials": 1, "seeds": 1, "folds": 1}


@pytest.fixture(autouse=True)
def _plain_backend(monkeypatch):
    """Workers have nothing to compile."""
    monkeypatch.setenv("RGAT_BACKEND", "torch")


def untimed(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.fixture(scope="module")
def node_run(tmp_path_factory):
    os.environ["RGAT_BACKEND"] = "torch"
    protocol = open_protocol(NODES, tmp_path_factory.mktemp("nodes"))
    progress = []
    records = run_protocol(protocol, on_progress=lambda *counts: progress.append(counts))
    os.environ.pop("RGAT_BACKEND")
    return protocol, records, progress


@pytest.fixture(scope="module")
def graph_run(tmp_path_factory):
    os.environ["RGAT_BACKEND"] = "torch"
    protocol = open_protocol(GRAPHS, tmp_path_factory.mktemp("graphs"))
    records = run_protocol(protocol)
    os.environ.pop("RGAT_BACKEND")
    return protocol, records


def test_nodes_are_searched_by_folds_and_retrained_without_validation(node_run):
    _, records, progress = node_run
    assert [record["kind"] for record in records] == (["run"] * 2 + ["trial"] * 3) * 2
    assert [counts[:2] for counts in progress] == [(done, 10) for done in range(11)]
    assert progress[0][2] is None
    assert sorted(new["kind"] for *_, new in progress[1:]) == ["run"] * 4 + ["trial"] * 6
    for model in NODES["models"]:
        trials = [r for r in records if r["model"] == model and r["kind"] == "trial"]
        runs = [r for r in records if r["model"] == model and r["kind"] == "run"]
        best = select(trials)
        for trial in trials:
            assert [len(fold["curve"]["valid_loss"]) <= 3 for fold in trial["folds"]] == [True, True]
            mean = sum(fold["valid_metric"] for fold in trial["folds"]) / 2
            assert trial["objective"] == pytest.approx(mean)
            assert not {"scores", "constant_scores", "outputs"} & trial.keys()
        for run in runs:
            assert run["config"] | {"max_epochs": 3, "patience": 2} == best["config"]
            assert run["config"]["patience"] is None
            assert run["best_epoch"] == run["config"]["max_epochs"] == len(run["curve"]["train_loss"])
            assert f"trial {best['trial']} of 3" in run["selected_on"]
            assert (run["constant_scores"] is None) == (model == "RGCN")
            assert run["scores"]["valid"] is None


def test_outputs_give_the_score_again(node_run, graph_run):
    protocol, records, _ = node_run
    labels = protocol.folded.data.labels[protocol.folded.data.test].numpy()
    for run in [record for record in records if record["kind"] == "run"]:
        logits = unpack_array(run["outputs"]["test"])
        assert (logits.argmax(1) == labels).mean() == pytest.approx(run["scores"]["test"], abs=0.02)
        confusion = np.array(run["class_scores"]["test"]["confusion"])
        assert confusion.sum(1).tolist() == np.bincount(labels, minlength=4).tolist()
        assert confusion.trace() / len(labels) == pytest.approx(run["scores"]["test"])
    description = json.loads((protocol.folder / "experiment.json").read_text())
    assert description["test_labels"][""] == labels.tolist()
    assert description["majority"] == (labels == labels_mode(protocol)).mean()

    protocol, records = graph_run
    run = next(record for record in records if record["kind"] == "run")
    test = protocol.folded.splits[run["split"]][2]
    again = roc_auc_per_task(torch.tensor(unpack_array(run["outputs"]["test"])), protocol.folded.data.labels[test])
    stored = [run["task_scores"]["test"][task] for task in protocol.folded.data.tasks]
    assert [value is None for value in stored] == [value != value for value in again]
    assert [v for v in stored if v is not None] == pytest.approx([v for v in again if v == v], abs=0.02)


def labels_mode(protocol):
    folded = protocol.folded
    return int(folded.data.labels[folded.splits[None][0]].bincount().argmax())


def test_graphs_are_run_on_three_splits_with_early_stopping(graph_run):
    _, records = graph_run
    runs = [record for record in records if record["kind"] == "run"]
    assert [(run["split"], run["seed"]) for run in runs] == [(122, 0), (123, 0), (124, 0)]
    trial = next(record for record in records if record["kind"] == "trial")
    for run in runs:
        assert run["config"] == trial["config"]
        assert run["config"]["batch_size"] == 64
        assert set(run["task_scores"]) == {"train", "valid", "test"} == set(run["constant_task_scores"])


def test_a_second_call_finds_nothing_to_do_and_a_lost_record_is_made_again(node_run, tmp_path):
    protocol, records, _ = node_run
    assert next_units(protocol, records) == []
    shutil.copytree(protocol.folder, tmp_path / "institute")
    again = open_protocol(NODES, tmp_path)
    for name in ("rgcn/trial-0001.json", "multiplicative-argat/run-0001.json"):
        (again.folder / "records" / name).unlink()
    assert len(next_units(again, again.records())) == 2
    assert untimed(run_protocol(again)) == untimed(records)


def test_processes_give_the_records_of_one_process_even_if_one_is_killed(node_run):
    protocol, records, _ = node_run
    trials = [record for record in records if record["kind"] == "trial"]
    units = next_units(protocol, []) + next_units(protocol, trials)
    with open_executor("processes", protocol.folded, workers=1) as execute:
        new_records = []
        for record in execute(units):
            new_records.append(json.loads(record_files._dump({"format": 1, **record})))
            if len(new_records) == 2:
                os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    order = [record_files.record_name(record) for record in records]
    new_records.sort(key=lambda record: order.index(record_files.record_name(record)))
    assert untimed(new_records) == untimed(records)


def test_workers_that_always_die_end_the_work_with_a_sentence(node_run, monkeypatch):
    protocol, _, _ = node_run
    monkeypatch.setattr("rgat.experiments.executors.RETRIES", 1)
    over = threading.Event()

    def kill():
        while not over.is_set():
            for child in multiprocessing.active_children():
                child.kill()
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        refused = pytest.raises(ValueError, match="workers must survive their work, got 2 that died in a row")
        with open_executor("processes", protocol.folded, workers=1) as execute, refused:
            list(execute(next_units(protocol, [])))
    finally:
        over.set()
        killer.join()


def test_units_travel_as_json_and_return_as_records(node_run, tmp_path, capsys):
    _, records, _ = node_run
    protocol = open_protocol(NODES, tmp_path)
    assert prepared.write_prepared(protocol, search_only=True) == 6
    prepared.main([str(protocol.folder)])
    assert "6 of 6 records" in capsys.readouterr().out
    assert prepared.run_prepared(protocol.folder) == 0
    assert prepared.write_prepared(protocol, search_only=True) == 0
    assert prepared.write_prepared(protocol) == 4
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(protocol.folder, elsewhere)
    assert prepared.run_prepared(elsewhere, workers=2) == 4
    shutil.copytree(elsewhere / "records", protocol.folder / "records", dirs_exist_ok=True)
    assert untimed(run_protocol(protocol)) == untimed(records)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("units.json", "[" * 100_000),
        ("units.json", "[1]"),
        ("request.json", "[]"),
        ("request.json", '{"data_hashes": {}}'),
    ],
)
def test_work_that_makes_no_sense_is_one_sentence(tmp_path, capsys, file, content):
    protocol = open_protocol(NODES | {"models": ["RGCN"]}, tmp_path)
    prepared.write_prepared(protocol, search_only=True)
    (protocol.folder / file).write_text(content)
    with pytest.raises(SystemExit, match="2"):
        prepared.main([str(protocol.folder)])
    error = capsys.readouterr().err
    assert file in error
    assert error.count("\n") == 1


def test_a_machine_with_optuna_alone_goes_on_to_the_end(node_run, tmp_path, capsys):
    _, records, _ = node_run
    protocol = open_protocol(NODES, tmp_path)
    prepared.write_prepared(protocol)
    prepared.main([str(protocol.folder), "--all", "--search-only"])
    assert "6 of 6 records" in capsys.readouterr().out
    prepared.main([str(protocol.folder), "--all"])
    assert untimed(run_protocol(protocol)) == untimed(records)
    with pytest.raises(SystemExit, match="2"):
        prepared.main([str(tmp_path / "nowhere")])
    assert "must hold request.json and data.safetensors" in capsys.readouterr().err


def test_a_search_alone_never_looks_at_the_test_part(tmp_path, monkeypatch):
    protocol = open_protocol(NODES | {"models": ["RGCN"], "trials": 1}, tmp_path)
    monkeypatch.setattr(type(protocol.folded), "split", None)
    counts = []
    records = run_protocol(protocol, search_only=True, on_progress=lambda *c: counts.append(c))
    assert [record["kind"] for record in records] == ["trial"]
    assert counts[-1][:2] == (1, 1)


def test_a_failed_or_diverged_unit_is_recorded_and_the_others_go_on(node_run):
    protocol, records, _ = node_run
    first, second, third = next_units(protocol, [])[:3]
    first["config"] |= {"hidden_channels": 0}
    second["config"] |= {"learning_rate": 1e30, "batch_norm": False}
    new_records = list(train_units([first, second, third], protocol.folded))
    assert [record["status"] for record in new_records] == ["failed", "diverged", "done"]
    assert "ValueError: `hidden_channels` must be" in new_records[0]["error"]
    assert new_records[0]["objective"] is None
    run = next(record for record in records if record["kind"] == "run")
    (broken,) = train_units(
        [run | {"config": run["config"] | {"learning_rate": 1e30, "max_epochs": 4}}], protocol.folded
    )
    assert broken["status"] == "diverged"
    assert broken["scores"] is None


def test_a_search_whose_trials_all_fail_ends_and_says_why(tmp_path, monkeypatch):
    protocol = open_protocol(NODES | {"models": ["RGCN"], "trials": 12}, tmp_path)
    monkeypatch.setattr("rgat.experiments.units.build_variant", None)
    with pytest.raises(ValueError, match="at least one trial of RGCN must finish, got 10 that failed"):
        run_protocol(protocol)


def test_damaged_records_and_other_experiments_are_named_and_nothing_is_lost(node_run, tmp_path):
    protocol, records, _ = node_run
    shutil.copytree(protocol.folder, tmp_path / "institute")
    with pytest.raises(ValueError, match="with other seeds; give another folder"):
        open_protocol(NODES | {"seeds": 5}, tmp_path)
    path = tmp_path / "institute/records/rgcn/run-0000.json"
    path.write_text(path.read_text()[:40])
    again = open_protocol(NODES, tmp_path)
    with pytest.raises(ValueError, match=r"got 1 damaged: records/rgcn/run-0000.json .* delete the damaged files"):
        run_protocol(again)
    path.unlink()
    assert untimed(run_protocol(again)) == untimed(records)


def test_a_setting_stands_beside_the_faithful_rows_and_keeps_its_options(tmp_path):
    asked = NODES | {"models": ["RGCN"], "trials": 1, "seeds": 1, "setting": "wide"}
    records = run_protocol(open_protocol(asked | {"fixed": {"hidden_channels": 24}}, tmp_path))
    assert {record["config"]["hidden_channels"] for record in records} == {24}
    assert (tmp_path / "institute/records/rgcn+wide/run-0000.json").exists()
    with pytest.raises(ValueError, match=r"all records of the setting wide .* must have hidden_channels = 32, got 24"):
        run_protocol(open_protocol(asked | {"fixed": {"hidden_channels": 32}}, tmp_path))
    with pytest.raises(ValueError, match="the options given for RGCN must make a model, got an error"):
        open_protocol(asked | {"fixed": {"hidden_channels": -1}}, tmp_path)


def test_runs_of_another_configuration_are_not_taken_for_those_asked_for(tmp_path):
    asked = NODES | {"models": ["RGCN"], "seeds": 1, "selected_on": "nothing"}
    config = {"hidden_channels": 4, "max_epochs": 2, "learning_rate": 0.01}
    run_protocol(open_protocol(asked | {"selected": config}, tmp_path))
    other = open_protocol(asked | {"selected": config | {"learning_rate": 0.1}}, tmp_path)
    with pytest.raises(
        ValueError, match=r"must have the requested configuration, .* learning_rate = 0.01 instead of 0.1"
    ):
        run_protocol(other)
    with pytest.raises(ValueError, match=r'`device` must be "cpu" or "cuda", got "tpu"'):
        run_protocol(other, device="tpu")


def test_selected_settings_are_written_and_run_again(node_run, tmp_path):
    _, records, _ = node_run
    paths = write_configs(records, tmp_path / "configs", "rgat reproduce institute")
    assert [path.name for path in paths] == ["rgcn.toml", "multiplicative-argat.toml"]
    for path, row in zip(paths, summarise(records), strict=True):
        again = run_protocol(open_protocol(read_request(path), tmp_path / path.stem))
        assert [record["kind"] for record in again] == ["run", "run"]
        assert summarise(again) == [row]
    assert "[paper]" not in paths[0].read_text()


def test_the_papers_numbers_stand_beside_ours():
    names = [*VARIANTS, *(constant_row(model) for model in VARIANTS if model != "RGCN")]
    assert [sum(name in rows for name in names) for rows in PUBLISHED.values()] == [9, 9, 9, 9]
    run = {"kind": "run", "data": "aifb", "model": "additive WIRGAT", "seed": 0, "config": {}, "selected_on": ""}
    scores = {"scores": {"test": 0.9}, "constant_scores": {"test": 0.8}}
    (row,) = summarise([run | {"status": "done"} | scores, run | {"status": "failed"} | dict.fromkeys(scores)])
    assert (row.runs, row.lost, row.test.mean, row.constant.mean, row.paper.mean) == (
        1,
        1,
        0.9,
        0.8,
        pytest.approx(0.9683, rel=1e-15),
    )
    assert (row.paper_constant.mean, row.paper_constant.spread) == (pytest.approx(0.9686), pytest.approx(0.0094))
    (row,) = summarise([run | {"status": "diverged"} | dict.fromkeys(scores)])
    assert row.test is None


def test_no_name_in_a_record_leads_out_of_the_folder_of_settings(tmp_path):
    scores = {"status": "done", "scores": {"test": 0.9}, "constant_scores": None, "selected_on": ""}
    config = {"heads": 2, 'x = 1\n[paper]\ny"': 3}
    for data in ("../../x", str(tmp_path / "x")):
        run = {"kind": "run", "data": data, "model": "../y", "seed": 0, "config": config} | scores
        (path,) = write_configs([run], tmp_path / "a" / "configs", "rgat")
        assert path.is_relative_to(tmp_path / "a" / "configs")
        assert ".." not in path.parts
        assert tomllib.loads(path.read_text())["config"] == config
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_flat_configuration_is_options_and_settings():
    options, settings = split_config({"heads": 2, "kernel_l2_1": 0.5, "learning_rate": 0.1, "patience": None})
    assert options == {"heads": 2}
    assert settings.kernel_l2 == (0.5, 0.0)
    assert (settings.learning_rate, settings.patience) == (0.1, None)


def test_who_works_and_where_is_checked(node_run, tmp_path):
    protocol, _, _ = node_run
    folded = protocol.folded
    for arguments, message in (
        ({"executor": "slurm"}, '`executor` must be "local", "processes" or "ray"'),
        ({"executor": "processes", "workers": 0}, "`workers` must be an integer of at least 1"),
        ({"executor": "local", "address": "x:1"}, '`address` must be left out with the executor "local"'),
    ):
        with pytest.raises(ValueError, match=message), open_executor(data=folded, **arguments):
            pass
    with pytest.raises(ValueError, match="`data` must name a data set"):
        open_protocol({}, tmp_path)
    assert make_request("graph", {"data": "molecules"}).task == "graph"


def test_seeds_that_share_a_stack_have_the_same_records_whoever_is_missing(node_run, tmp_path):
    protocol, records, _ = node_run
    runs = [record for record in records if record["kind"] == "run" and record["model"] == "RGCN"]
    assert [run["stack"] for run in runs] == [[0, 1]] * 2
    units = next_units(protocol, [record for record in records if record is not runs[1]])
    assert [unit["seed"] for unit in units] == [1]
    (again,) = train_units(units, protocol.folded)
    assert untimed([json.loads(write_record(tmp_path, again).read_bytes())]) == untimed(runs[1:])


def test_outputs_of_a_record_are_computed_in_batches():
    data, seen = large_graphs(), []
    model = build_model(data, hidden_channels=2, dense_channels=2, layer="rgcn").eval()
    whole = model(*data.graphs.batch(data.test)).detach()
    model.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[1].num_graphs))
    with torch.no_grad():
        logits = unit_files._part_logits(model, data, False)
    assert {part: len(values) for part, values in logits.items()} == {"train": 5, "valid": 4, "test": 3}
    torch.testing.assert_close(logits["test"], whole)
    outputs = unit_files.score_entries(data, logits, {})["outputs"]["test"]
    torch.testing.assert_close(torch.from_numpy(unpack_array(outputs)), whole, rtol=1e-3, atol=1e-3)  # packed in half
    assert max(seen) == 2


def test_a_prepared_experiment_needs_only_torch_numpy_and_safetensors():
    blocked = "typer rich numba pyoxigraph rdkit optuna scipy sklearn matplotlib pandas ray"
    code = (
        "import sys\n"
        f"blocked = {blocked!r}.split()\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import rgat.experiments.prepared\n"
        "print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr
