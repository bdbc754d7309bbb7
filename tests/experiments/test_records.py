"""Records appear whole or not at all, once, and say what is damaged."""

import gzip
import json
import multiprocessing

import numpy as np
import pytest

from rgat.experiments import records

TRIAL = {"kind": "trial", "model": "additive WIRGAT", "trial": 3, "objective": 0.5}
RUN = {"kind": "run", "model": "Weave", "split": 122, "seed": 1, "scores": {"test": float("nan")}}


def write(folder):
    for seed in range(20):
        records.write_record(folder, RUN | {"seed": seed})


def test_a_record_is_there_once_whoever_writes_it(tmp_path):
    records.open_experiment(tmp_path, {"data": "tox21"})
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(tmp_path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    experiment = records.read_experiment(tmp_path)
    assert [record["seed"] for record in experiment.records] == list(range(20))
    assert experiment.records[0]["scores"]["test"] is None
    assert not list(tmp_path.rglob("*.part"))


def test_the_first_record_stays(tmp_path):
    path = records.write_record(tmp_path, TRIAL)
    records.write_record(tmp_path, TRIAL | {"objective": 0.9})
    assert path.name == "trial-0003.json"
    assert json.loads(path.read_text())["objective"] == 0.5
    assert records.has_record(tmp_path, TRIAL)
    assert not records.has_record(tmp_path, TRIAL | {"setting": "literals"})


def test_a_folder_of_another_experiment_is_refused(tmp_path):
    records.open_experiment(tmp_path, {"data": "aifb", "seeds": 3})
    records.open_experiment(tmp_path, {"data": "aifb", "seeds": 3})
    with pytest.raises(ValueError, match="with other seeds; give another folder"):
        records.open_experiment(tmp_path, {"data": "aifb", "seeds": 4})


def test_packed_records_are_the_same_records(tmp_path):
    folder = tmp_path / "tox21"
    records.open_experiment(folder, {"data": "tox21"})
    write(folder)
    packed = [tmp_path / f"{name}{records.PACKED}" for name in "ab"]
    for path in packed:
        records.pack(folder, path)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    assert records.read_experiment(packed[0]) == records.read_experiment(folder)
    assert records.find_experiments(tmp_path) == sorted([folder, *packed])


def test_damage_is_named_and_skipped(tmp_path):
    records.open_experiment(tmp_path, {"data": "tox21"})
    paths = [records.write_record(tmp_path, RUN | {"seed": seed}) for seed in range(4)]
    paths[0].write_text(paths[0].read_text()[:10])
    paths[1].write_text('{"format": 2}')
    paths[2].write_text('{"format": 1, "kind": "run"}')
    experiment = records.read_experiment(tmp_path)
    assert len(experiment.records) == 1
    reasons = dict(experiment.damaged)
    assert "must be JSON" in reasons["records/weave/run-122-0000.json"]
    assert "must be a record of format 1" in reasons["records/weave/run-122-0001.json"]
    assert "no 'model'" in reasons["records/weave/run-122-0002.json"]
    with pytest.raises(ValueError, match="no damaged record"):
        records.pack(tmp_path, tmp_path / f"x{records.PACKED}")


def test_places_without_records_are_refused(tmp_path):
    with pytest.raises(ValueError, match="got nothing there"):
        records.find_experiments(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="must hold an experiment"):
        records.read_experiment(tmp_path)
    broken = tmp_path / f"x{records.PACKED}"
    broken.write_bytes(gzip.compress(b"1" * 99)[:20])
    with pytest.raises(ValueError, match="cannot be decompressed"):
        records.read_experiment(broken)


def test_outputs_survive_in_16_bits():
    array = np.linspace(-3, 3, 24).reshape(2, 3, 4)
    found = records.unpack_array(json.loads(json.dumps(records.pack_array(array))))
    assert found.shape == array.shape
    assert np.abs(found - array).max() < 2e-3
