"""A search within minutes: what it tries, when it ends, and what it selects."""

import dataclasses
import statistics
import time

import pytest
import torch

import rgat
from rgat.data import load
from rgat.predictor import searching
from rgat.predictor.fold_results import CURVE
from rgat.predictor.searching import OutOfTimeError, TimedSearch, check_minutes, searched_space
from rgat.predictor.stages import CROSS_VALIDATION, SEARCH
from rgat.predictor.trainer import Trainer
from rgat.predictor.validation import make_folds
from rgat.progress import Stages
from rgat.training.configuration import configure, split_config
from rgat.training.run import Epoch


class Clock:
    """Time that passes only in trainings, a second for each fold."""

    def __init__(self, monkeypatch, metric):
        self.now, self.metric, self.calls, self.done = 100.0, metric, [], set()
        monkeypatch.setattr(searching.time, "monotonic", lambda: self.now)

    def cross_validate(self, config, step, folds, until):
        new = [fold for fold in folds if (str(config), fold) not in self.done]
        for _ in new:
            self.now += 1.0
            if until is not None and self.now >= until:
                raise OutOfTimeError
        self.done |= {(str(config), fold) for fold in new}
        self.calls.append((config, new))
        return [Epoch(1, 0.0, 1.0, self.metric(config)) for _ in folds]


def run(clock, minutes=2.0, given=None, num_folds=5, share=0.4, task="node"):
    given = given or {}
    search = TimedSearch(task, configure(task, given), given, num_folds, 0, share)
    return search, search.run(clock.cross_validate, minutes, clock.now)


def test_it_ends_in_time_for_what_follows(monkeypatch):
    clock = Clock(monkeypatch, lambda config: 0.5)
    search, _ = run(clock)
    # Five folds take five seconds, and models of 0.4 times as many folds follow.
    reserve = searching.FINAL_MARGIN * 0.4 * 5
    assert 100 + 120 - reserve <= clock.now <= 100 + 120 - reserve + 1
    assert len(clock.calls) > 20
    assert search.records[0]["config"] == search.config


def test_the_first_configuration_is_the_given_one_and_wins_ties(monkeypatch):
    clock = Clock(monkeypatch, lambda config: 0.5)
    search, (config, sentence) = run(clock)
    assert config == search.config == clock.calls[0][0]
    assert [folds for _, folds in clock.calls[:3]] == [[0, 1], [2, 3, 4], [0, 1]]
    assert "number 1 was selected by its accuracy there, 0.5000" in sentence
    assert "on 5 folds of the training part" in sentence


def test_the_best_on_all_folds_is_selected(monkeypatch):
    clock = Clock(monkeypatch, lambda config: min(1.0, config["hidden_channels"] / 100))
    _, (config, _) = run(clock)
    complete = [tried for tried, folds in clock.calls if folds == [2, 3, 4]]
    assert config["hidden_channels"] == max(tried["hidden_channels"] for tried in complete) > 16


def test_diverged_configurations_are_left_out(monkeypatch):
    def metric(config):
        if config["model"] != "RGCN":
            raise ValueError("diverged")
        return 0.5

    clock = Clock(monkeypatch, metric)
    _, (config, sentence) = run(clock)
    assert config["model"] == "RGCN"
    assert "heads" not in config
    assert "(0 diverged)" not in sentence


def test_a_first_configuration_that_diverges_is_not_tried_on_more_folds(monkeypatch):
    first = configure("node", {})

    def metric(config):
        if config == first:
            raise ValueError("diverged")
        return 0.5

    search, (config, sentence) = run(Clock(monkeypatch, metric))
    assert [record["rung"] for record in search.records if record["trial"] == 0] == [0]
    assert config != first
    assert "(1 diverged)" in sentence


def test_a_validation_part_is_the_only_fold(monkeypatch):
    clock = Clock(monkeypatch, lambda config: 0.5)
    search, (_, sentence) = run(clock, num_folds=1, task="graph")
    assert search.rungs == [[0]]
    assert "on the validation part" in sentence


def test_given_options_are_not_searched(monkeypatch):
    given = {"hidden_channels": 12, "heads": 2}
    assert not {"hidden_channels", "heads"} & searched_space("node", given).keys()
    assert "RGCN" not in searched_space("node", given)["model"].values
    assert not {"model", "heads", "attention_l2"} & searched_space("node", {"model": "RGCN"}).keys()
    assert "num_layers" not in searched_space("node", {"fanouts": [5, 5]})
    clock = Clock(monkeypatch, lambda config: 0.5)
    run(clock, given=given)
    assert {(config["hidden_channels"], config["heads"]) for config, _ in clock.calls} == {(12, 2)}


@pytest.mark.parametrize(
    ("minutes", "search", "message"),
    [(0, 0, "above 0"), (float("inf"), 0, "above 0"), (True, 0, "above 0"), (1, 5, "`search` must be left out")],
)
def test_minutes_that_do_not_fit_are_refused(minutes, search, message):
    with pytest.raises(ValueError, match=message):
        check_minutes(minutes, search)


def test_fit_reports_the_search():
    data = load("institute")
    steps = set()
    predictor = rgat.fit(
        data, minutes=0.01, comparison=False, max_epochs=2, progress=lambda step: steps.add(step.stage)
    )
    assert predictor.report["searched"].startswith("search: ")
    assert "search" in steps
    assert "searched" not in rgat.fit(data, comparison=False, max_epochs=2).report


def test_layers_beyond_the_second_have_the_penalty_of_the_second_unless_one_was_given(monkeypatch):
    for given in ({"num_layers": 3}, {"num_layers": 4, "kernel_l2_3": 0.25}):
        clock = Clock(monkeypatch, lambda config: 0.5)
        run(clock, given=given, task="graph")
        assert len(clock.calls) > 20
        for config, _ in clock.calls[2:]:
            expected = given.get("kernel_l2_3", config["kernel_l2_2"])
            assert (config["num_layers"], config["kernel_l2_3"]) == (given["num_layers"], expected)
            assert any(name.startswith("attention_l2") for name in config) == (config["model"] != "RGCN")


def compared(points):
    """What configurations are compared by; the other numbers of a point are not kept."""
    return [(point.epoch, point.valid_loss, point.valid_metric) for point in points]


def _trainer(folder=None):
    data = load("institute")
    data = dataclasses.replace(data, valid=data.valid[:0])  # so that there are folds
    stages = Stages(lambda step: None, [SEARCH])
    return Trainer(data, make_folds(data, 0), torch.device("cpu"), 0, stages, folder)


def test_configurations_are_compared_at_the_epoch_where_the_final_training_ends(tmp_path):
    config = configure("node", {"model": "RGCN", "max_epochs": 20, "patience": 20, "hidden_channels": 4})
    trainer = _trainer(tmp_path)
    points = trainer.try_config(config, 0, 1)
    best, _ = trainer.cross_validate(config, Stages(lambda step: None, [CROSS_VALIDATION]))
    assert len(points) == 5
    end = statistics.median_high([point.epoch for point in best])
    assert len({point.epoch for point in best}) > 1  # or all folds would end there anyhow
    _, results = trainer.run(trainer.folds, config, split_config(config)[1], [1000, 1001, 1002, 1003, 1004], print)
    assert compared(points) == compared(result.curve[end - 1] for result in results)
    again = _trainer(tmp_path)
    again.run = None  # the folder alone has them
    assert compared(again.try_config(config, 0, 1)) == compared(points)


def test_a_search_in_time_compares_all_folds_at_one_epoch(monkeypatch):
    """Folds end at epochs 10 and 50, then 20, 20 and 20: the final training at 50 after the first two, then at 20."""
    trainer, ends, seen = _trainer(), [10, 50, 20, 20, 20], []

    def train_folds(datas, chosen, config, show):
        for fold in chosen:
            curve = [Epoch(epoch, 0.0, 1.0 / epoch, epoch / 1000) for epoch in range(1, 61)]
            trainer.fold_results.add(config, fold, curve[ends[fold] - 1], curve, None)

    class Watched(searching.TimedSearch):
        def _try(self, *arguments):
            kept = super()._try(*arguments)
            seen.append(searching.merge(self.records)[0])
            return kept

    monkeypatch.setattr(trainer, "_train_folds", train_folds)
    monkeypatch.setattr("rgat.predictor.trainer.TimedSearch", Watched)
    config = configure("node", {"model": "RGCN"})
    trainer.search(config, {}, 0.001, time.monotonic(), 1)
    two, five = seen[:2]
    assert [[fold["valid_metric"] for fold in trial["folds"]] for trial in (two, five)] == [[0.05] * 2, [0.02] * 5]
    assert [trial["objective"] for trial in (two, five)] == pytest.approx([0.05, 0.02])


def test_folds_without_a_metric_do_not_decide():
    config, nan = configure("node", {"model": "RGCN"}), float("nan")
    scores = [[0.5, nan], [0.7, nan], [nan, 0.6]]

    def points_of(trial):
        return [Epoch(1, 0.0, 1.0, score) for score in scores[trial]]

    tried = []
    chosen = searching.search_trials(
        lambda tried_config, trial, _: tried.append(tried_config) or points_of(trial), "node", config, {}, 3, 0
    )
    assert chosen == tried[1]
    search = TimedSearch("node", config, {}, 2, 0, 0.4)
    search._try({"trial": 0, "config": config}, 0, lambda *_: points_of(0), None)
    assert searching.merge(search.records)[0]["objective"] == 0.5


def test_a_point_of_a_curve_is_the_last_validated_one():
    results, nan = _trainer().fold_results, float("nan")
    curve = [Epoch(1, 1.0, 0.9, 0.5), Epoch(2, 1.0, nan, nan), Epoch(3, 1.0, 0.7, 0.6), Epoch(4, 1.0, 0.8, 0.4)]
    results.add({"a": 1}, 0, curve[2], curve, None)
    assert [results.points_at(end, {"a": 1}, [0])[0].epoch for end in (1, 2, 3, 4, 9)] == [1, 1, 3, 4, 4]
    for key in [key for key in results.tensors if key.endswith(CURVE)]:
        del results.tensors[key]  # as in a folder of an earlier version
    assert results.points_at(9, {"a": 1}, [0]) == [curve[2]]
