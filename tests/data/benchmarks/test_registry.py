"""The paper's three benchmarks, from the real files."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from rgat.data import load, statistics

pytestmark = pytest.mark.skipif("RGAT_DATA" not in os.environ, reason="RGAT_DATA is not set: no benchmark files")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


COUNTS = {
    "aifb": {"nodes": 8285, "edges": 29043, "relations": 45, "labelled": 176, "classes": 4, "train": 140, "test": 36}
    | {"valid": 0, "model_edges": 66371, "model_relations": 91},
    "aifb-literals": {"nodes": 2835, "edges": 20338, "relations": 22, "labelled": 176, "train": 140, "test": 36},
    "mutag": {"nodes": 23644, "edges": 74227, "relations": 23, "labelled": 340, "classes": 2, "train": 272, "test": 68},
    "mutag-literals": {"nodes": 22540, "edges": 63382, "relations": 9, "labelled": 340, "train": 272, "test": 68},
    "tox21": {"graphs": 8014, "nodes": 148350, "edges": 154110, "relations": 4, "tasks": 12, "labelled": 79573}
    | {"train": 6411, "valid": 801, "test": 802, "model_relations": 5},
    "tox21-distinct": {"graphs": 7831, "nodes": 145459, "edges": 151095, "relations": 4, "tasks": 12}
    | {"train": 6264, "valid": 783, "test": 784},
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_paper(name):
    numbers = statistics(load(name))
    assert {key: numbers[key] for key in COUNTS[name]} == COUNTS[name]


def test_the_command_prints_them():
    for name in ("aifb", "mutag"):
        command = [sys.executable, "-m", "rgat", "data", "stats", name, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        numbers = json.loads(done.stdout)
        assert {key: numbers[key] for key in COUNTS[name]} == COUNTS[name]


def test_aifb_leaks_classes_as_neighbours_and_mutag_does_not():
    assert statistics(load("aifb"))["leaks"] == {"train": 63, "valid": 0, "test": 15}
    assert statistics(load("mutag"))["leaks"] == {"train": 0, "valid": 0, "test": 0}


INDICES = ("f23080e74f727102", "02bf6ec258270b56", "a745d6a6ff4909b9")
SMILES = ("738f6308c7f6020c", "0b3c9ac9317af069", "ba77817f5ac1f807")
ALL_SMILES = ("d2a9651cd9df3b6d", "8137ceb6ccb78100", "d982dcd5761f3a0e")


def short(content):
    return hashlib.sha256(content).hexdigest()[:16]


def names(data):
    return short("\n".join(data.graph_names[place] for place in data.test.tolist()).encode())


def test_tox21_splits_are_the_published_ones():
    for seed, indices, smiles, all_smiles in zip((122, 123, 124), INDICES, SMILES, ALL_SMILES, strict=True):
        data = load("tox21-distinct", split=seed)
        assert short(data.test.numpy().astype("<i8").tobytes()) == indices
        assert names(data) == smiles
        assert names(load("tox21", split=seed)) == all_smiles


def test_two_labels_of_the_distinct_molecules_follow_the_public_file():
    data = load("tox21-distinct")
    assert data.labels[781, data.tasks.index("SR-MMP")] == 0
    assert data.labels[2119, data.tasks.index("SR-p53")] == -1
