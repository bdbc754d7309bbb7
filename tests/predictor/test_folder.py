import json
import os
import pickle
import re
import shutil
import subprocess
import sys

import pytest
import torch
from helpers import rewrite

import rgat
from rgat import cli
from rgat.predictor.explorer import write_explorer
from rgat.training import load_checkpoint


@pytest.fixture
def saved(tmp_path, node_model):
    node_model.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_copied_model_predicts_the_same_in_a_fresh_process(tmp_path, saved, node_model, graph_model):
    graph_model.save(tmp_path / "molecules")
    shutil.move(saved, tmp_path / "moved")
    code = (
        "import json, sys, rgat\n"
        "nodes, graphs = rgat.load(sys.argv[1]), rgat.load(sys.argv[2])\n"
        "print(json.dumps([nodes.predict().probabilities.tolist(), graphs.predict_proba(['CCO', 'CCN']).tolist()]))"
    )
    command = [sys.executable, "-c", code, tmp_path / "moved", tmp_path / "molecules"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    nodes, graphs = json.loads(done.stdout)
    assert nodes == pytest.approx(node_model.predict().probabilities, abs=1e-6)
    assert graphs == pytest.approx(graph_model.predict_proba(["CCO", "CCN"]), abs=1e-6)


def test_names_settings_and_hashes_travel_with_the_model(saved, node_model):
    loaded = rgat.load(saved)
    assert (loaded.config, loaded.report) == (node_model.config, node_model.report)
    assert loaded.data.node_names == node_model.data.node_names
    assert loaded.data.classes == node_model.data.classes
    assert loaded.data.provenance == node_model.data.provenance
    assert repr(loaded) == repr(node_model)
    assert sorted(path.suffix for path in saved.iterdir()) == [".json", ".safetensors"]


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "must be a model folder"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "No such file"),
        (lambda folder: cut(next(folder.glob("*.safetensors"))), "cut off or changed"),
        (lambda folder: cut(folder / "fitted.json"), "not JSON"),
        (lambda folder: swap(folder / "fitted.json", '"climate"', '"weather"'), "changed since it was written"),
        (lambda folder: next(folder.glob("*.safetensors")).write_bytes(pickle.dumps(Bomb())), "cut off or changed"),
        (lambda folder: (folder / "fitted.json").write_bytes(pickle.dumps(Bomb())), "not JSON"),
        (lambda folder: rewrite(folder, model_format=2, version="9.0"), "got format 2, written by rgat 9.0"),
        (lambda folder: rewrite(folder, members=3), "its parts do not fit"),
        (lambda folder: rewrite(folder, classes=["one"]), "its parts do not fit"),
        (lambda folder: rewrite(folder, node_names=["one"]), "its parts do not fit"),
        (lambda folder: rewrite(folder, config={"model": "RGCN"}), "its parts do not fit"),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused(saved, damage, message):
    damage(saved)
    with pytest.raises(ValueError, match=message):
        rgat.load(saved)


def link(path, target):
    path.unlink()
    path.symlink_to(target)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: rewrite(folder, {"slope": torch.ones(3)}), "`slope` must be floating-point numbers of shape"),
        (lambda folder: rewrite(folder, {"intercept": torch.ones(9)}), "`intercept` must be floating-point numbers"),
        (lambda folder: rewrite(folder, {"labels": torch.full((1,), 0)}), "`labels` must be int64 of shape"),
        (lambda folder: rewrite(folder, {"test": torch.tensor([10**9])}), "`test` must lie between 0 and nodes - 1"),
        (lambda folder: rename(folder, ["a list"]), "`node_names` must be a list of names"),
        (lambda folder: rename(folder, None), "`node_names` must be a list of names"),
        (lambda folder: rename(folder, "\ud800"), "surrogates not allowed"),
        (lambda folder: rewrite(folder, classes="abcd"), "`classes` must be a list of names"),
        (lambda folder: rewrite(folder, report=3), "`report` must be a table"),
        (lambda folder: enlarge(folder, hidden_channels=12_000), "must have the shape .* by the configuration"),
        (lambda folder: pipe(folder / "fitted.json"), "it must be a regular file, got a pipe"),
        (lambda folder: pipe(next(folder.glob("*.safetensors"))), "it must be a regular file, got a pipe"),
        (lambda folder: link(folder / "fitted.json", "/dev/zero"), "it must be a regular file, got a pipe, a device"),
        (lambda folder: link(next(folder.glob("*.safetensors")), "/dev/zero"), "it must be a regular file"),
    ],
)
def test_a_tampered_folder_is_refused_in_one_sentence(saved, damage, message, monkeypatch, capsys):
    damage(saved)
    monkeypatch.setattr("sys.argv", ["rgat", "predict", str(saved)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n")) == (2, 1)
    assert re.search(message, error)


def rename(folder, name):
    names = load_checkpoint(folder, "fitted")[1]["node_names"]
    rewrite(folder, node_names=[*names[:-1], name])


def enlarge(folder, **options):
    rewrite(folder, config=load_checkpoint(folder, "fitted")[1]["config"] | options)


def test_a_model_of_other_sizes_is_refused_before_it_takes_memory(saved, monkeypatch):
    enlarge(saved, hidden_channels=3_000)
    built = torch.nn.Parameter
    largest = max(tensor.numel() for tensor in load_checkpoint(saved, "fitted")[0].values())

    def parameter(tensor, *arguments, **options):
        assert tensor.is_meta or tensor.numel() <= largest, f"{tensor.numel():,} numbers were allocated"
        return built(tensor, *arguments, **options)

    monkeypatch.setattr("torch.nn.Parameter", parameter)
    with pytest.raises(ValueError, match="by the configuration"):
        rgat.load(saved)


def test_a_graph_without_labels_can_be_explored(saved, tmp_path):
    rewrite(saved, {"labels": torch.full_like(load_checkpoint(saved, "fitted")[0]["labels"], -1)})
    write_explorer(rgat.load(saved), tmp_path / "page.html")
    assert (tmp_path / "page.html").is_file()


def test_a_record_that_is_too_large_is_not_parsed(saved, monkeypatch):
    monkeypatch.setattr("rgat.training.checkpoint.LARGEST_RECORD", 1000)
    with pytest.raises(ValueError, match="it must have at most 1,000 bytes, got more"):
        rgat.load(saved)


@pytest.mark.parametrize(
    "line",
    ["predict {model} --out {out}/p.csv", "predict {model} --out {out}/p.nt", "explain {model} --html {out}/e.html"],
)
def test_a_full_disk_is_one_sentence(saved, tmp_path, line, monkeypatch, capsys, full_disk):
    (tmp_path / "out").mkdir()
    words = line.format(model=saved, out=tmp_path / "out").split()
    monkeypatch.setattr("sys.argv", ["rgat", *words])
    with full_disk(), pytest.raises(SystemExit) as stopped:
        cli.main()
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n")) == (2, 1)
    assert f"{words[-1]}: cannot be written: File too large; make room, or choose another place" in error
    assert list((tmp_path / "out").iterdir()) == []


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def swap(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
