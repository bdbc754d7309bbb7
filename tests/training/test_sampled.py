import dataclasses
import math

import pytest
import torch
from helpers import labelled_graph

from rgat import ops
from rgat.data import load
from rgat.models import NodeClassifier
from rgat.sampling import exact_logits
from rgat.training import Settings, build_model, fit, fit_many, node_logits
from rgat.training.loop import make_task
from rgat.training.run import Epoch, Run
from rgat.training.sampled import SampledTask

DROPOUT = {"feature_dropout": 0.3, "edge_dropout": 0.3}
ALL = {"fanouts": (-1, -1), "batch_size": 1000}
SOME = {"fanouts": (2, 3), "batch_size": 8}


def with_features(data, width=6):
    return dataclasses.replace(data, x=torch.randn(data.graph.num_nodes, width))


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("options", [{}, {"heads": 2, **DROPOUT}, {"layer": "rgcn", "num_bases": 2, **DROPOUT}])
@pytest.mark.parametrize("features", [False, True])
def test_with_all_edges_in_one_batch_training_is_that_of_the_whole_graph(features, options, backend):
    data = with_features(labelled_graph()) if features else labelled_graph()
    data = dataclasses.replace(data, x=None if data.x is None else data.x.double())
    results, states = [], []
    with ops.backend(backend):
        for sampled in ({}, ALL):
            model = build_model(data, 1, hidden_channels=8, **options).double()
            settings = Settings(max_epochs=4, kernel_l2=(1e-3, 1e-4), **sampled)
            results.append(fit(model, data, settings))
            states.append(model.state_dict())
    whole, again = results
    assert again.best_epoch == whole.best_epoch
    for ours, theirs in zip(again.curve, whole.curve, strict=True):
        assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs), abs=1e-10)
    for name, tensor in states[0].items():
        assert (states[1][name] - tensor).abs().max() <= 1e-10, name
    assert again.scores == whole.scores
    assert again.constant_scores == whole.constant_scores


@pytest.mark.parametrize("options", [{}, {"embedding_channels": 8}, {"num_layers": 3}])
def test_sampled_training_learns_and_scores_are_exact(options):
    data = load("institute")
    data = dataclasses.replace(data, valid=data.train)
    model = build_model(data, **options)
    fanouts = (4,) * model.num_layers
    settings = Settings(max_epochs=10, learning_rate=0.03, fanouts=fanouts, batch_size=32)
    result = fit(model, data, settings)
    assert result.scores["train"] > 0.9
    logits = node_logits(model, data)
    for part, score in result.scores.items():
        nodes = getattr(data, part)
        right = logits[nodes].argmax(1) == data.labels[nodes]
        assert score == pytest.approx(right.double().mean().item())
    valid = torch.nn.functional.cross_entropy(logits[data.valid], data.labels[data.valid])
    assert result.curve[result.best_epoch - 1].valid_loss == pytest.approx(float(valid), rel=1e-5)


OPTIONS = [
    {"batch_norm": True, "heads": 2, **DROPOUT},
    {"embedding_channels": 6, "num_layers": 3, **DROPOUT},
    {"embedding_channels": 6, "layer": "rgcn"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_an_interrupted_sampled_run_goes_on_to_the_same_bits(tmp_path, options):
    data = labelled_graph()
    fanouts = (2,) * options.get("num_layers", 2)
    settings = Settings(max_epochs=7, fanouts=fanouts, batch_size=6, validate_every=2)

    def run(folder, stop_after=None):
        def stop(epoch):
            if epoch.epoch == stop_after:
                raise KeyboardInterrupt

        model = build_model(data, 3, hidden_channels=8, **options)
        return model, fit(model, data, settings, 3, stop, checkpoint=folder, checkpoint_seconds=0)

    model, whole = run(None)
    for stop_after in (3, 4):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, stop_after)
    for _ in range(2):  # the second time nothing is left to do
        again, resumed = run(tmp_path)
        assert str(dataclasses.replace(resumed, seconds=0)) == str(dataclasses.replace(whole, seconds=0))
        for ours, theirs in zip(resumed.curve, whole.curve, strict=True):
            assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs), rel=0, abs=0, nan_ok=True)
        for name, tensor in model.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor), name


def test_the_samples_follow_from_the_seed():
    data = labelled_graph()

    def losses(seed, **change):
        result = fit(build_model(data), data, Settings(max_epochs=2, **SOME | change), seed)
        return [epoch.train_loss for epoch in result.curve]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)
    assert losses(1) != losses(1, fanouts=(3, 3))
    assert losses(1) != losses(1, batch_size=9)


def validated(result):
    return [epoch.epoch for epoch in result.curve if not math.isnan(epoch.valid_loss)]


@pytest.mark.parametrize("sampled", [{}, SOME])
@pytest.mark.parametrize(("every", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_validation_is_at_each_interval_and_after_the_last_epoch(every, epochs, sampled):
    data = labelled_graph()
    result = fit(build_model(data), data, Settings(max_epochs=5, validate_every=every, **sampled))
    assert validated(result) == epochs
    assert result.best_epoch in epochs
    assert all(math.isfinite(epoch.train_loss) for epoch in result.curve)


def test_without_patience_nothing_is_validated():
    data = labelled_graph()
    settings = Settings(max_epochs=3, patience=None, validate_every=2, **SOME)
    result = fit(build_model(data), dataclasses.replace(data, valid=data.valid[:0]), settings)
    assert validated(result) == []
    assert result.best_epoch == 3


@pytest.mark.parametrize(("patience", "every", "stops"), [(2, 1, 4), (2, 5, 10), (6, 5, 15), (5, 5, 10), (1, 2, 4)])
def test_training_stops_after_a_validation_without_improvement_for_patience_epochs(patience, every, stops):
    run = Run(Settings(max_epochs=100, patience=patience, validate_every=every))
    best = max(2, every)  # the validation loss rises afterwards
    while not run.is_finished:
        epoch = len(run.curve) + 1
        loss = abs(epoch - best) + 1.0 if epoch % every == 0 else math.nan
        run.record(Epoch(epoch, 1.0, loss, 0.5), (loss, -0.5))
    assert (run.best_epoch, len(run.curve)) == (best, stops)


def test_patience_below_the_interval_waits_for_a_validation():
    data = labelled_graph()
    result = fit(build_model(data), data, Settings(max_epochs=12, patience=2, validate_every=4, **SOME))
    assert result.best_epoch in (4, 8, 12)


def test_models_validated_after_other_epochs_are_not_stacked():
    data = labelled_graph()
    settings = [Settings(max_epochs=m, validate_every=v) for m, v in ((4, 2), (4, 1), (3, 2), (4, 2))]
    models = [build_model(data, k) for k in range(4)]
    results = fit_many(models, data, settings)
    hows = [result.how.split(";")[0] for result in results]
    assert hows[0] == hows[3] == "in a stack of 2"
    assert hows[1] == hows[2] == "alone: others are validated after other epochs"
    for k, result in enumerate(results):
        alone = fit(build_model(data, k), data, settings[k])
        assert validated(result) == validated(alone)
        assert result.best_epoch == alone.best_epoch


def test_sampled_models_are_trained_one_by_one_as_they_would_be_alone():
    data = labelled_graph()
    settings = Settings(max_epochs=2, **SOME)
    models = [build_model(data, seed) for seed in range(2)]
    for seed, result in enumerate(fit_many(models, data, settings)):
        assert result.how.startswith("alone: its batches are sampled")
        alone = fit(build_model(data, seed), data, settings)
        assert result.curve == alone.curve


def test_half_precision_features_and_autocast_train():
    data = with_features(labelled_graph())
    half = dataclasses.replace(data, x=data.x.half())
    for given, change in ((half, {}), (data, {"autocast": True}), (half, {"autocast": True})):
        result = fit(build_model(data, 0), given, Settings(max_epochs=15, **SOME | change))
        assert result.curve[-1].train_loss < result.curve[0].train_loss


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fanouts": (1,)}, r"`fanouts` must be 2 numbers, one for each layer of the model, got \(1,\)"),
        ({"fanouts": (1, 2, 3)}, "`fanouts` must be 2 numbers, one for each layer of the model"),
        ({"fanouts": (1, 0)}, "a fan-out must be a number of at least 1, or -1 for all edges, got 0"),
        ({"fanouts": 5}, "`fanouts` must be 2 numbers"),
        ({"fanouts": (1, {0: 0})}, "a fan-out must be a number of at least 1, or -1 for all edges, got 0"),
        ({"fanouts": (1, {None: 2})}, "a fan-out must be for the number of a relation, got one for None"),
        ({"fanouts": (1, {1000: 2})}, "a fan-out must be for a relation between 0 and .*, got one for 1000"),
    ],
)
def test_bad_fanouts_are_refused_before_training(change, message):
    data = labelled_graph()
    with pytest.raises(ValueError, match=message):
        fit(build_model(data), data, Settings(max_epochs=1, **change))


def test_models_and_data_that_cannot_be_sampled_are_refused():
    with pytest.raises(ValueError, match="`fanouts` must be given for a NodeClassifier alone, got a Linear"):
        fit(torch.nn.Linear(3, 3), labelled_graph(), Settings(max_epochs=1, **SOME))
    molecules = load("molecules")
    with pytest.raises(ValueError, match="`fanouts` must be given for a NodeClassifier alone, got a GraphClassifier"):
        fit(build_model(molecules), molecules, Settings(max_epochs=1, **SOME))
    data = with_features(labelled_graph())
    data.x[7, 2] = torch.nan
    with pytest.raises(ValueError, match="node features of made up must not contain NaN; clean them first"):
        fit(build_model(data), data, Settings(max_epochs=1, **SOME))
    data = labelled_graph()
    with pytest.raises(ValueError, match="got an empty valid part"):
        fit(build_model(data), dataclasses.replace(data, valid=data.valid[:0]), Settings(max_epochs=1, **SOME))


def test_exact_scores_leave_out_nodes_without_a_label():
    data = labelled_graph()
    labels = data.labels.clone()
    labels[data.test[:4]] = -1
    hidden, fewer = dataclasses.replace(data, labels=labels), dataclasses.replace(data, test=data.test[4:])
    results = [fit(build_model(data), each, Settings(max_epochs=2, **SOME)) for each in (hidden, fewer)]
    assert results[0].scores == results[1].scores


def test_logits_of_a_task_are_exact_for_repeated_nodes():
    data = labelled_graph()
    task = make_task([data], Settings(**SOME), torch.device("cpu"))
    assert isinstance(task, SampledTask)
    model, nodes = build_model(data).eval(), torch.tensor([7, 3, 7])
    logits = task.logits(model, nodes)
    torch.testing.assert_close(logits[0], node_logits(model, data)[nodes])
    assert torch.equal(logits[0], exact_logits(model, None, task.loader.sampler, nodes[:2])[[0, 1, 0]])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"embedding_channels": 8},
        {"num_layers": 3, "batch_norm": True, "heads": 2},
        {"identity": True, "residual": True, "jumping_knowledge": True},
        {"identity": True, "num_bases": 3, "layer_norm": True},
    ],
)
def test_sampled_training_on_a_gpu_takes_the_steps_of_the_cpu(options):
    data = with_features(labelled_graph(400)) if "embedding_channels" not in options else labelled_graph(400)
    fanouts = (3,) * options.get("num_layers", 2)
    settings = Settings(max_epochs=4, fanouts=fanouts, batch_size=32, learning_rate=0.003)
    results = [fit(build_model(data, 0, **options).to(device), data, settings) for device in ("cpu", "cuda")]
    for ours, theirs in zip(*(result.curve for result in results), strict=True):
        assert dataclasses.astuple(ours)[:3] == pytest.approx(dataclasses.astuple(theirs)[:3], rel=1e-2)


@pytest.mark.gpu
def test_an_embedding_model_moves_to_the_gpu():
    data = labelled_graph()
    model = NodeClassifier(40, 3, 4, embedding_channels=8)
    expected = model(None, data.graph)
    torch.testing.assert_close(model.to("cuda")(None, data.graph.to("cuda")).cpu(), expected, rtol=1e-4, atol=1e-5)
