"""Successive halving: what goes on and what is proposed follows from the records alone."""

import json

import pytest

from rgat.training import halving
from rgat.training.configuration import LogUniform, OneOf
from rgat.training.halving import finalists, merge, promotions, propose_step
from rgat.training.space import EXTENDED, applies, choose, input_space, to_config

SPACE = {"layer": OneOf(("rgat", "rgcn")), "heads": OneOf((1, 2)), "learning_rate": LogUniform(1e-3, 1e-1)}


def record(trial, rung, *metrics, status="done", options=None, loss=1.0):
    folds = [{"valid_metric": metric, "valid_loss": loss, "best_epoch": 3} for metric in metrics]
    about = {"trial": trial, "rung": rung, "model": "selected model", "options": options or {}, "config": {}}
    return about | {"status": status, "error": None if status == "done" else "NaN", "folds": folds}


def test_a_trial_has_the_folds_of_all_its_rungs():
    first, second = merge([record(1, 1, 0.5, 0.9), record(0, 0, 0.4), record(1, 0, 0.7, 0.5)])
    assert (first["trial"], first["rung"], first["objective"]) == (0, 0, 0.4)
    assert [fold["valid_metric"] for fold in second["folds"]] == [0.7, 0.5, 0.5, 0.9]
    assert second["objective"] == pytest.approx(0.65)
    assert [score for score, _ in second["by_rung"]] == pytest.approx([0.6, 0.65])


def test_a_trial_that_diverges_at_any_rung_has_no_objective():
    (trial,) = merge([record(0, 0, 0.9), record(0, 1, status="diverged")])
    assert (trial["status"], trial["objective"], trial["error"]) == ("diverged", None, "NaN")
    assert finalists([trial]) == []


def test_a_rehearsal_counts_alone():
    rehearsed = record(0, 2, 0.6, 0.4, loss=0.7) | {"rehearsal": True, "config": {"max_epochs": 5}}
    (trial,) = merge([record(0, 0, 0.9), record(0, 1, 0.7), rehearsed])
    assert (trial["objective"], trial["tie_breaker"], len(trial["folds"])) == (0.5, 0.7, 2)
    assert [score for score, _ in trial["by_rung"]] == pytest.approx([0.9, 0.8, 0.5])
    assert trial["config"] == {"max_epochs": 5}


def test_a_third_of_the_trials_goes_on_once():
    trials = [record(number, 0, score) for number, score in enumerate((0.1, 0.9, 0.5, 0.8, 0.9, 0.2))]
    trials[4]["folds"][0]["valid_loss"] = 0.5  # decides between equals
    assert [(trial["trial"], rung) for trial, rung in promotions(merge(trials), 3)] == [(4, 1), (1, 1)]
    trials += [record(4, 1, 0.3), record(1, 1, 0.95)]
    assert promotions(merge(trials), 3) == []
    trials += [record(number, 0, 0.0, status="failed") for number in (6, 7, 8)]
    assert [(trial["trial"], rung) for trial, rung in promotions(merge(trials), 3)] == [(3, 1)]
    trials.append(record(3, 1, 0.99))
    assert [(trial["trial"], rung) for trial, rung in promotions(merge(trials), 3)] == [(1, 2)]
    assert promotions(merge(trials), 2) == []
    assert sorted(trial["trial"] for trial in finalists(merge(trials))) == [1, 3, 4]


def searched(count):
    """Trials whose score grows with the learning rate; one in three is on the second rung."""
    options = propose_step(SPACE, 0, 0, [], count)
    records = [record(n, 0, 0.5 + each["learning_rate"], options=each) for n, each in enumerate(options)]
    return merge([*records, *(record(r["trial"], 1, 0.5 + r["options"]["learning_rate"]) for r in records[::3])])


def test_a_step_depends_on_seed_number_and_earlier_trials_alone():
    trials = searched(12)
    first = propose_step(SPACE, 0, 1, trials, 6)
    assert propose_step(SPACE, 0, 1, json.loads(json.dumps(trials)), 6) == first
    assert propose_step(SPACE, 1, 1, trials, 6) != first
    assert propose_step(SPACE, 0, 2, trials, 6) != first
    assert len({json.dumps(options) for options in first}) == 6


def test_options_of_attention_are_proposed_with_attention_alone():
    proposed = [*propose_step(SPACE, 0, 0, [], 20), *propose_step(SPACE, 0, 1, searched(12), 20)]
    layers = [options["layer"] for options in proposed]
    assert {*layers} == {"rgat", "rgcn"}
    assert all(("heads" in options) == (options["layer"] == "rgat") for options in proposed)


def test_proposals_go_where_the_folds_score_well():
    rates = [options["learning_rate"] for options in propose_step(SPACE, 0, 1, searched(60), 30)]
    drawn = [options["learning_rate"] for options in propose_step(SPACE, 0, 0, [], 30)]
    assert sum(rates) > 1.5 * sum(drawn)


def test_failed_and_diverged_trials_do_not_stop_a_step():
    trials = searched(12)
    trials[0] |= {"status": "failed", "by_rung": []}
    trials[1] |= {"status": "diverged", "by_rung": []}
    assert len(propose_step(SPACE, 0, 1, trials, 3)) == 3


def test_only_the_first_step_needs_no_optuna(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    assert len(propose_step(SPACE, 0, 0, [], halving.STEP)) == halving.STEP
    with pytest.raises(ImportError, match=r"pip install 'rgat\[search\]'"):
        propose_step(SPACE, 0, 1, searched(3), 3)


def test_identity_is_chosen_beside_features_alone():
    space = input_space(["types", "literals"])
    assert space["features"].values == ("types,literals", "types", "literals", "none")
    assert applies("identity", {"features": "types"})
    assert not any(applies(name, {"features": "none"}) for name in ("identity", "neighbours", "wide", "wide_l1"))
    assert applies("wide_l1", {"features": "types", "wide": True})
    assert not applies("wide_l1", {"features": "types", "wide": False})
    assert input_space([]) == {}


@pytest.mark.parametrize("task", EXTENDED)
def test_a_configuration_has_an_l2_coefficient_for_each_layer(task):
    options = choose(EXTENDED[task], lambda name, prior: getattr(prior, "values", [getattr(prior, "low", 0)])[-1])
    assert options["layer"] == "rgcn"
    options |= {"layer": "rgat", "scope": "mixed", "heads": 1, "attention_l2": 0.1, "num_layers": 4}
    options |= {"batch_norm": True, "layer_norm": True, "kernel_l2_1": 0.1, "kernel_l2_2": 0.2}
    config = to_config(options)
    assert config["heads"] == 2
    assert not config["layer_norm"]
    assert "attention_l2" not in config
    coefficients = [config.get(f"kernel_l2_{layer}") for layer in range(1, 5)]
    assert coefficients == [0.1, 0.2, 0.2, 0.2]
    assert config["attention_l2_2"] == 0.1
