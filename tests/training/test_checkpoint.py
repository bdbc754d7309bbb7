import copy
import dataclasses
import enum
import errno
import functools
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from helpers import with_edge_attr
from torch import nn

from rgat import RelationalGraph
from rgat.data import GraphData, load
from rgat.data.splits import stratified_folds
from rgat.models import NodeClassifier
from rgat.training import (
    Settings,
    build_model,
    checkpoint,
    fit,
    has_checkpoint,
    load_checkpoint,
    resuming,
    save_checkpoint,
)
from rgat.training.checkpoint import identify

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7)}
OPTIONS = {"hidden_channels": 8, "heads": 2, "batch_norm": True, "feature_dropout": 0.3, "edge_dropout": 0.3}


def assert_same_tensors(actual, expected):
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_a_checkpoint_comes_back_as_it_was_and_replaces_the_one_before(tmp_path):
    folder = tmp_path / "new" / "folder"
    assert not has_checkpoint(folder)
    save_checkpoint(folder, {"a": torch.zeros(1)}, {"epoch": 1})
    save_checkpoint(folder, {"a": TENSORS["a"].t(), "b": TENSORS["b"]}, {"epoch": 2})
    tensors, record = load_checkpoint(folder)
    assert_same_tensors(tensors, {"a": TENSORS["a"].t(), "b": TENSORS["b"]})
    assert record["epoch"] == 2
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors"]


@pytest.mark.parametrize(("seconds", "written"), [(0, 10), (0.5, 2)])
def test_checkpoints_take_a_small_part_of_the_time(tmp_path, monkeypatch, seconds, written):
    clock, epochs = itertools.count(), []
    monkeypatch.setattr(resuming.time, "monotonic", lambda: float(next(clock)))  # writing one takes a second
    save = resuming.save_checkpoint
    monkeypatch.setattr(resuming, "save_checkpoint", lambda *given: epochs.append(given[2]["epoch"]) or save(*given))
    data = load("institute")
    fit(build_model(data), data, Settings(max_epochs=10), checkpoint=tmp_path, checkpoint_seconds=seconds)
    assert len(epochs) == written
    assert epochs[-1] == 10


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, name):
    data, settings = load(name), Settings(max_epochs=6, batch_size=32, kernel_l2=(1e-4, 0.0))

    def run(folder, stop_after=None):
        def stop(epoch):
            if epoch.epoch == stop_after:
                raise KeyboardInterrupt

        model = build_model(data, 3, **OPTIONS)
        return model, fit(model, data, settings, 3, stop, checkpoint=folder, checkpoint_seconds=0)

    model, whole = run(None)
    for stop_after in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, stop_after)
    again, resumed = run(tmp_path)
    assert dataclasses.replace(resumed, seconds=0) == dataclasses.replace(whole, seconds=0)
    assert_same_tensors(again.state_dict(), model.state_dict())
    finished, same = run(tmp_path)  # nothing is left to do
    assert dataclasses.replace(same, seconds=0) == dataclasses.replace(whole, seconds=0)
    assert_same_tensors(finished.state_dict(), model.state_dict())


CHILD = """
    import sys, time, torch
    from rgat.data import load
    from rgat.training.configuration import build_model
    from rgat.training import Settings, fit
    torch.set_num_threads(1)
    data = load("institute")
    model = build_model(data, 3, hidden_channels=8, heads=2, batch_norm=True, feature_dropout=0.3, edge_dropout=0.3)
    fit(model, data, Settings(max_epochs=40, patience=None), 3, lambda epoch: print(epoch.epoch, flush=True),
        checkpoint=sys.argv[1], checkpoint_seconds=0)
"""


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    for epochs in (4, 9):
        command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for _ in range(epochs):
                assert child.stdout.readline()
            os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    seen = len(load_checkpoint(tmp_path)[1]["curve"])
    assert 11 <= seen < 40
    data, results, states = load("institute"), [], []
    for folder in (tmp_path, None):
        model = build_model(data, 3, **OPTIONS)
        results.append(fit(model, data, Settings(max_epochs=40, patience=None), 3, checkpoint=folder))
        states.append(model.state_dict())
    assert [dataclasses.astuple(e)[:2] for e in results[0].curve] == [
        dataclasses.astuple(e)[:2] for e in results[1].curve
    ]
    assert results[0].scores == results[1].scores
    assert_same_tensors(*states)


def test_a_run_may_be_made_longer_but_not_another_one(tmp_path):
    data = load("institute")

    def run(epochs, seed=0, data=data, **options):
        return fit(build_model(data, 0, **options), data, Settings(max_epochs=epochs), seed, checkpoint=tmp_path)

    assert len(run(2).curve) == 2
    assert len(run(4).curve) == 4
    with pytest.raises(ValueError, match="its `seed` is 0, not 1; choose another folder"):
        run(4, seed=1)
    with pytest.raises(ValueError, match=r"its `model` is .*not.*feature_dropout=0.5"):
        run(4, feature_dropout=0.5)
    with pytest.raises(ValueError, match="its `data` is 'institute"):
        run(4, data=load("planted-needle"))


def swap_parts(data):
    return dataclasses.replace(data, train=data.valid, valid=data.train)


def invert_labels(data):
    return dataclasses.replace(data, labels=torch.where(data.labels < 0, data.labels, (data.labels == 0).long()))


def reverse_edges(data):
    if isinstance(data, GraphData):
        return with_store(data, edge_index=data.graphs.edge_index.flip(0))
    graph = data.graph
    sizes = {"num_nodes": graph.num_nodes, "num_relations": graph.num_relations}
    return dataclasses.replace(data, graph=RelationalGraph(graph.edge_index.flip(0), graph.edge_type, **sizes))


def with_store(data, **changes):
    return dataclasses.replace(data, graphs=dataclasses.replace(data.graphs, **changes))


def other_features(data):
    if isinstance(data, GraphData):
        return with_store(data, x=data.graphs.x + 1)
    return dataclasses.replace(data, x=data.x + 1)


def mask_seed(model):
    model.conv1.dropout_state[0] += 1


def one_parameter(model):
    with torch.no_grad():
        model.conv2.bias[0] += 1e-6


def frozen(model):
    model.conv2.bias.requires_grad_(False)


def other_slope(model):
    model.conv2.negative_slope = 0.3


OTHER_RUNS = [  # what differs, the change of the data, and that of the model
    ("splits", swap_parts, None),
    ("labels", invert_labels, None),
    ("edges", reverse_edges, None),
    ("features", other_features, None),
    ("initial buffers", None, mask_seed),
    ("initial parameters", None, one_parameter),
    ("initial parameters", None, frozen),
    ("layer options", None, other_slope),
]


def equal_parts(data):
    """Parts of the same size, so that no description tells them apart."""
    size = min(len(data.train), len(data.valid))
    return dataclasses.replace(data, train=data.train[:size], valid=data.valid[:size])


@pytest.mark.parametrize("name", ["planted-needle", "molecules"])
@pytest.mark.parametrize(("what", "change_data", "change_model"), OTHER_RUNS)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, name, what, change_data, change_model):
    def run(change_data=None, change_model=None):
        data = equal_parts(load(name))
        varied = data if change_data is None else change_data(data)
        assert str(varied) == str(data)
        model = build_model(data, 0, batch_norm=True, hidden_channels=4, feature_dropout=0.1)
        if change_model is not None:
            change_model(model)
        return fit(model, varied, Settings(max_epochs=1), checkpoint=tmp_path)

    first = run()
    with pytest.raises(ValueError, match=f"must be of this run, but it had other {what}; choose another folder"):
        run(change_data, change_model)
    assert run().curve == first.curve


def test_a_checkpoint_of_another_fold_seed_or_slope_is_refused(tmp_path):
    data = load("institute")
    parts = stratified_folds(data.labels[data.train].tolist(), 2, seed=0)
    folds = [dataclasses.replace(data, train=data.train[a], valid=data.train[b]) for a, b in (parts, parts[::-1])]
    assert str(folds[0]) == str(folds[1])

    def run(data=folds[0], seed=0, **options):
        return fit(build_model(data, seed, **options), data, Settings(max_epochs=1), checkpoint=tmp_path)

    run()
    for what, other in (
        ("splits", {"data": folds[1]}),
        ("initial parameters and initial buffers", {"seed": 1}),
        ("layer options", {"negative_slope": 0.3}),
    ):
        with pytest.raises(ValueError, match=f"it had other {what}; choose another folder"):
            run(**other)


def test_edge_features_are_part_of_a_run(tmp_path):
    data = load("institute")
    for value in (0.0, 1.0):
        edge_attr = torch.full((data.graph.num_edges, 1), value)
        varied = dataclasses.replace(data, graph=with_edge_attr(data.graph, edge_attr))
        folder = tmp_path / str(value)
        fit(build_model(data, edge_dim=1), varied, Settings(max_epochs=1), checkpoint=folder)
    with pytest.raises(ValueError, match="it had other edges; choose another folder"):
        fit(build_model(data, edge_dim=1), varied, Settings(max_epochs=1), checkpoint=tmp_path / "0.0")


def test_sparse_features_are_part_of_a_run(tmp_path):
    data = load("institute")
    rows = torch.eye(data.graph.num_nodes)
    sparse = [dataclasses.replace(data, x=one.to_sparse()) for one in (rows, rows.flip(0))]

    def run(data):
        model = NodeClassifier(data.in_channels, len(data.classes), data.graph.num_relations, hidden_channels=4)
        return fit(model, data, Settings(max_epochs=1), checkpoint=tmp_path)

    torch.manual_seed(0)
    first = run(sparse[0])
    torch.manual_seed(0)
    assert run(sparse[0]).curve == first.curve
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="it had other features; choose another folder"):
        run(sparse[1])


def test_a_checkpoint_that_does_not_say_which_run_it_is_of_is_refused(tmp_path):
    data = load("institute")
    fit(build_model(data), data, Settings(max_epochs=1), checkpoint=tmp_path)
    tensors, record = load_checkpoint(tmp_path)
    del record["digests"]
    save_checkpoint(tmp_path, tensors, record)
    with pytest.raises(ValueError, match=r"but it does not say which labels, .* it had; choose another folder"):
        fit(build_model(data), data, Settings(max_epochs=1), checkpoint=tmp_path)


def test_numbers_that_json_does_not_know_survive(tmp_path):
    data, settings = load("institute"), Settings(max_epochs=4, patience=2, learning_rate=1e30)
    first = fit(build_model(data), data, settings, checkpoint=tmp_path)
    again = fit(build_model(data), data, settings, checkpoint=tmp_path)
    assert repr(again.curve) == repr(first.curve)
    assert "nan" in repr(first.curve)


def test_a_full_disk_is_an_error_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, TENSORS, {"epoch": 1})

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="failed: No space left on device; the last checkpoint there is intact"):
        save_checkpoint(tmp_path, {"a": torch.zeros(3)}, {"epoch": 2})
    monkeypatch.undo()
    assert load_checkpoint(tmp_path)[1]["epoch"] == 1
    assert len(list(tmp_path.iterdir())) == 2, "no half file is left"
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: full(0) if str(b).endswith("json") else replace(a, b))
    with pytest.raises(ValueError, match="No space left on device"):
        save_checkpoint(tmp_path, {"a": torch.zeros(3)}, {"epoch": 2})
    monkeypatch.undo()
    tensors, record = load_checkpoint(tmp_path)
    assert record["epoch"] == 1
    assert_same_tensors(tensors, TENSORS)


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"must be written to .*file, which failed: .*; make room or choose another"):
        save_checkpoint(tmp_path / "file", TENSORS, {})


def break_checkpoint(folder, how):
    record, tensors = folder / "checkpoint.json", next(folder.glob("*.safetensors"))
    body = json.loads(record.read_text())
    if how == "truncated record":
        record.write_text(record.read_text()[:-20])
    elif how == "endless record":
        record.write_text("[" * 200_000)
    elif how == "truncated tensors":
        tensors.write_bytes(tensors.read_bytes()[:-4])
    elif how == "tampered tensors":
        data = bytearray(tensors.read_bytes())
        data[-1] ^= 1
        tensors.write_bytes(bytes(data))
    elif how == "tampered record":
        record.write_text(json.dumps(body | {"epoch": 99}))
    elif how == "foreign record":
        record.write_text('{"epoch": 3}')
    elif how == "other format":
        record.write_text(json.dumps(body | {"format": 99}))
    elif how == "missing tensors":
        tensors.unlink()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated record", "it is not JSON"),
        ("endless record", "it is not JSON"),
        ("truncated tensors", "it was cut off or changed since it was written"),
        ("tampered tensors", "it was cut off or changed since it was written"),
        ("tampered record", "it was changed since it was written"),
        ("foreign record", "it is not a checkpoint of rgat"),
        ("other format", "it has format 99, and this rgat reads 1"),
        ("missing tensors", "No such file"),
    ],
)
def test_what_is_not_a_whole_checkpoint_is_refused(tmp_path, how, message):
    save_checkpoint(tmp_path, TENSORS, {"epoch": 1})
    break_checkpoint(tmp_path, how)
    with pytest.raises(ValueError, match=f"must be part of a complete checkpoint, but {message}.*; train again"):
        load_checkpoint(tmp_path)


class Trap:
    def __reduce__(self):
        return (os.system, ("echo never > never",))


def test_a_pickle_is_never_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tmp_path, TENSORS, {"epoch": 1})
    payload, path = pickle.dumps(Trap()), tmp_path / "checkpoint.json"
    path.write_bytes(payload)
    with pytest.raises(ValueError, match="it is not JSON"):
        load_checkpoint(tmp_path)
    # Even one that somebody has signed with the right hash.
    import hashlib

    next(tmp_path.glob("*.safetensors")).write_bytes(payload)
    file = next(tmp_path.glob("*.safetensors")).name
    body = {"format": 1, "tensors": file, "tensors_sha256": hashlib.sha256(payload).hexdigest()}
    path.write_text(json.dumps(body | {"sha256": checkpoint._hash(body)}))
    with pytest.raises(ValueError, match="it is not a safetensors file"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "never").exists()


def test_a_missing_library_is_one_sentence(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, TENSORS, {})
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match="checkpoints need safetensors; install it with `pip install safetensors`"):
        load_checkpoint(tmp_path)


class Kind(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


@dataclasses.dataclass
class Option:
    size: float


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functools.partial(pow, 2), functools.partial(pow, 3)),
        (lambda x: x + 1.0, lambda x: x + 5.0),
        (Kind.SUM, Kind.MEAN),
        (Option(1.0), Option(5.0)),
        (np.arange(3), np.arange(1, 4)),
        (np.float32(1), np.float32(5)),
        (frozenset("ab"), frozenset("ac")),
        (b"ab", b"ac"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_option_of_any_kind_is_part_of_a_run(one, other):
    model, data = nn.Linear(2, 2), load("institute")
    found = []
    for value in (one, copy.deepcopy(one), other):
        model.option = value
        found.append(identify(model, data, Settings(), 0)["digests"]["layer options"])
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_options_that_refer_to_each_other_have_a_digest():
    model, option = nn.Linear(2, 2), Option(1.0)
    option.size = [option, lambda: option]
    model.option = option
    assert identify(model, load("institute"), Settings(), 0)
