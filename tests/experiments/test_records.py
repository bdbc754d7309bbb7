"""Records appear whole or not at all, once, and say what is damaged."""

import gzip
import json
import multiprocessing
import os
import re

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


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda path: path.write_text('{"format": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}"),
            "nested too deeply",
        ),
        (lambda path: path.symlink_to(path.parent / "nowhere"), "No such file"),
        (lambda path: path.mkdir(), "it must be a regular file, got a folder"),
        (lambda path: os.mkfifo(path), "it must be a regular file, got a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "it must be a regular file, got a pipe, a device"),
        (lambda path: path.write_bytes(b" " * (records.LARGEST_RECORD + 1)), "at most 67,108,864 bytes"),
        (lambda path: path.write_text('{"format": 1, "kind": "run", "model": "m", "seed": 1e999}'), "format code"),
    ],
)
def test_one_file_that_cannot_be_read_is_listed_and_the_others_are_read(tmp_path, damage, reason):
    records.open_experiment(tmp_path, {"data": "tox21"})
    damage(records.write_record(tmp_path, RUN).with_name("run-9.json"))
    experiment = records.read_experiment(tmp_path)
    assert len(experiment.records) == 1
    ((where, why),) = experiment.damaged
    assert where == "records/weave/run-9.json"
    assert reason in why


def packed(tmp_path):
    records.open_experiment(tmp_path / "tox21", {"data": "tox21"})
    write(tmp_path / "tox21")
    path = tmp_path / f"x{records.PACKED}"
    records.pack(tmp_path / "tox21", path)
    return path


def test_a_packed_file_with_any_flipped_byte_is_refused_in_one_sentence(tmp_path):
    path = packed(tmp_path)
    content = path.read_bytes()
    visited = 0
    for place in [*range(3), *range(10, len(content), 7)]:  # the bytes between say when and where it was packed
        damaged = bytearray(content)
        damaged[place] ^= 0x20
        path.write_bytes(bytes(damaged))
        with pytest.raises(ValueError, match=re.escape(str(path))):
            records.read_experiment(path)
        visited += 1
    assert visited > 10


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        (b"0" * 2**20, "line 2 must have at most"),
        ((b"0" * 2**18 + b"\n") * 3, "unpack to at most"),
        (b"0\n" * 1001, "at most 1,000 records"),
    ],
)
def test_a_packed_file_that_unpacks_to_too_much_is_refused_before_it_does(tmp_path, monkeypatch, line, limit):
    monkeypatch.setattr(records, "LARGEST_RECORD", 2**19)
    monkeypatch.setattr(records, "LARGEST_PACKED", 2**19)
    monkeypatch.setattr(records, "MOST_PACKED", 1000)
    path = tmp_path / f"x{records.PACKED}"
    path.write_bytes(gzip.compress(b'{"format": 1}\n' + line))
    with pytest.raises(ValueError, match=limit):
        records.read_experiment(path)


def test_no_name_in_a_record_leads_out_of_its_folder(tmp_path):
    folder = tmp_path / "a" / "b"
    records.open_experiment(folder, {"data": "tox21"})
    outside = {path for path in tmp_path.rglob("*") if not path.is_relative_to(folder)}
    hostile = ("../../../x", str(tmp_path / "x"), "", "..", "?", "x/../../y", "\0", "e" * 999)
    written = [
        records.write_record(folder, RUN | {key: name}) for name in hostile for key in ("model", "setting", "split")
    ]
    assert len(set(written)) == 3 * len(hostile)
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(folder)} == outside
    assert all(path.parent.parent == folder / "records" for path in written)


def test_names_in_the_tables_of_the_paper_keep_their_files():
    known = {
        "additive WIRGAT": "additive-wirgat",
        "R-GCN": "r-gcn",
        "RDF2Vec": "rdf2vec",
        "kernel SVM": "kernel-svm",
        "logistic regression": "logistic-regression",
    }
    for model, word in known.items():
        assert records.record_name(RUN | {"model": model}) == f"{word}/run-122-0001.json"
    assert records.record_name(TRIAL | {"setting": "literals"}) == "additive-wirgat+literals/trial-0003.json"


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
