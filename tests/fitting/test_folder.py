import json
import pickle
import shutil
import subprocess
import sys

import pytest

import rgat
from rgat.training import load_checkpoint, save_checkpoint


@pytest.fixture
def saved(tmp_path, node_model):
    node_model.save(tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder, **changes):
    """Write the model anew, whole, with another record."""
    tensors, record = load_checkpoint(folder, "fitted")
    record = {key: value for key, value in record.items() if key not in ("format", "tensors", "tensors_sha256")}
    save_checkpoint(folder, tensors, {**record, **changes}, "fitted")


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
        (lambda folder: shutil.rmtree(folder), "must be the folder of a fitted model"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "No such file"),
        (lambda folder: cut(next(folder.glob("*.safetensors"))), "cut off or changed"),
        (lambda folder: cut(folder / "fitted.json"), "no JSON"),
        (lambda folder: swap(folder / "fitted.json", '"climate"', '"weather"'), "changed since it was written"),
        (lambda folder: next(folder.glob("*.safetensors")).write_bytes(pickle.dumps(Bomb())), "cut off or changed"),
        (lambda folder: (folder / "fitted.json").write_bytes(pickle.dumps(Bomb())), "no JSON"),
        (lambda folder: rewrite(folder, model_format=2, version="9.0"), "got format 2, written by rgat 9.0"),
        (lambda folder: rewrite(folder, members=3), "its parts do not fit"),
        (lambda folder: rewrite(folder, classes=["one"]), "its parts do not fit"),
        (lambda folder: rewrite(folder, node_names=["one"]), "its parts do not fit"),
        (lambda folder: rewrite(folder, config={"model": "RGCN"}), "its parts do not fit"),
    ],
)
def test_a_damaged_or_strange_folder_is_refused(saved, damage, message):
    damage(saved)
    with pytest.raises(ValueError, match=message):
        rgat.load(saved)


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def swap(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
