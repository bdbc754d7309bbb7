import contextlib
import json
import os
import pty
import re
import subprocess
import sys

import pytest
from helpers_rdf import EX, TRIPLES, table, write

from rgat.data import convert, from_rdf, open_store, statistics
from rgat.data.store.statistics import store_statistics

LABELS = f"node class\n{EX}a x\n{EX}b y\n{EX}c x"


def test_a_dump_is_converted_counted_and_verified(tmp_path, rgat_here):
    dump, other = write(tmp_path), write(tmp_path, f"<{EX}d> <{EX}knows> <{EX}a> .", "other.ttl")
    labels, store = table(tmp_path, LABELS), tmp_path / "store"
    parts = ("--labels", labels, "--valid-labels", table(tmp_path, f"node class\n{EX}d x", "valid.tsv"))
    done = rgat_here("data", "convert", dump, other, store, *parts, "--drop", f"{EX}note")
    assert done.returncode == 0, done.stderr
    opened = open_store(store)
    numbers = f"{opened.num_nodes} nodes, 11 triples, {opened.num_edges} edges, 11 relations;"
    assert f"{store}: {numbers}" in done.stdout
    assert sorted(opened.labels.parts.tolist()) == [0, 0, 0, 1]
    counted = rgat_here("data", "stats", store, "--json", "--verify")
    assert json.loads(counted.stdout)["edges"] == 11
    assert "label counts" in rgat_here("data", "stats", store).stdout
    content = bytearray((store / "source.npy").read_bytes())
    content[-1] ^= 1
    (store / "source.npy").write_bytes(content)
    assert rgat_here("data", "stats", store).returncode == 0
    refused = rgat_here("data", "stats", store, "--verify")
    assert refused.returncode == 2
    assert "source.npy: has changed since it was written" in refused.stderr


def test_a_narrow_terminal_gets_bars_and_one_line_per_stage(tmp_path):
    master, terminal = pty.openpty()
    line = [sys.executable, "-m", "rgat", "data", "convert", str(write(tmp_path)), str(tmp_path / "store")]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"COLUMNS": "60"}
    with subprocess.Popen(line, stdout=terminal, stderr=terminal, env=environment | {"TERM": "xterm"}) as process:
        os.close(terminal)
        drawn = b""
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while chunk := os.read(master, 4096):
                drawn += chunk
    os.close(master)
    assert process.returncode == 0
    text = drawn.decode()
    assert "━" in text
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+|\x1b\[2K", text)]
    finished = ["reading, 12 triples", "naming", "sorting"]
    assert [line.partition(", done in ")[0] for line in lines if ", done in " in line] == [
        f"stage {number} of 3: {name}" for number, name in enumerate(finished, 1)
    ]
    assert max(len(line) for line in lines if "stage" in line) <= 60


def test_mistakes_are_one_sentence(tmp_path, rgat_here):
    for arguments, message in (
        (("convert", "missing.nt", tmp_path / "store"), "missing.nt: cannot be read"),
        (("convert", write(tmp_path)), "Missing argument"),
        (("convert", write(tmp_path), tmp_path), "must be a new or empty folder"),
        (("stats", tmp_path), "must be a store, but has no store.json"),
        (("stats", "institute", "--verify"), "`--verify` must come with a store"),
    ):
        done = rgat_here("data", *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("options", [{}, {"self_loops": False, "inverses": False}], ids=str)
def test_statistics_of_a_store_are_those_of_its_data_set(tmp_path, options):
    dump, labels = write(tmp_path, TRIPLES), table(tmp_path, LABELS)
    expected = statistics(from_rdf(dump, labels, shares=(1.0, 0.0), **options))
    numbers = store_statistics(convert(dump, tmp_path / "store", labels, **options))
    same = set(numbers) - {"name", "features", "bytes", "train", "valid", "test"}
    assert len(same) == 13
    assert numbers["label_counts"] == expected["label_counts"]
    same.remove("label_counts")
    assert {key: numbers[key] for key in same} == pytest.approx({key: expected[key] for key in same})
