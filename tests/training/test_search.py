"""Priors, proposals and selection: what a round proposes follows from the rounds before alone."""

import json
import math
import sys

import numpy as np
import pytest

from rgat.training.configuration import PRIORS, VARIANTS, LogUniform, MultiplesOf, OneOf, Uniform, priors_of
from rgat.training.search import (
    FROM_PRIOR,
    ROUND,
    common_epoch,
    distribution,
    draw_options,
    propose,
    retrain_epochs,
    select,
)

RGAT, RGCN = priors_of("node", "additive WIRGAT"), priors_of("node", "RGCN")


def trial(number, options, objective=0.5, status="done", **more):
    record = {"kind": "trial", "model": "RGCN", "trial": number, "round": number // ROUND, "config": options}
    return record | {"status": status, "objective": objective, "tie_breaker": 1.0, "from_prior": True} | more


def finished(priors, count):
    """Trials whose objective grows with the learning rate."""
    drawn = [draw_options(priors, 0, number) for number in range(count)]
    return [
        trial(number, options, math.log10(options["learning_rate"]) / 5 + 1) for number, options in enumerate(drawn)
    ]


def test_the_tables_are_the_papers():
    node, graph = PRIORS["node"], PRIORS["graph"]
    assert len(node) == 13
    assert len(graph) == 12
    assert str(node["hidden_channels"].prior) == "MultiplesOfFour(4, 20)"
    assert str(graph["dense_channels"].prior) == "MultiplesOfEight(32, 128)"
    assert str(node["num_bases"].prior) == "OneOf(Full, 5, 10, 20, 30)"
    assert str(graph["heads"].prior) == "OneOf(1, 2, 4, 8)"
    assert str(node["bias"].prior) == "OneOf(Yes, No)"
    assert str(node["edge_dropout"].prior) == "Uniform(0.0, 0.8)"
    assert str(graph["learning_rate"].prior) == "LogUniform(1e-5, 1e-1)"
    assert set(RGAT) - set(RGCN) == {"heads", "num_attention_bases", "attention_l2_1", "attention_l2_2"}


@pytest.mark.parametrize(
    ("prior", "values"),
    [
        (MultiplesOf(4, 4, 20), {4, 8, 12, 16, 20}),
        (OneOf((None, 5, 10)), {None, 5, 10}),
        (Uniform(0.0, 0.8), None),
        (LogUniform(1e-5, 1e-1), None),
    ],
)
def test_draws_cover_a_prior_and_stay_within_it(prior, values):
    generator = np.random.default_rng(0)
    drawn = [prior.draw(generator) for _ in range(200)]
    in_optuna = distribution(prior)
    assert all(in_optuna._contains(in_optuna.to_internal_repr(value)) for value in drawn)
    if values is not None:
        assert set(drawn) == values
    else:
        scale = np.log10 if isinstance(prior, LogUniform) else np.asarray
        assert scale(drawn).min() < scale(prior.low) + 0.05 * (scale(prior.high) - scale(prior.low))
        assert scale(drawn).max() > scale(prior.high) - 0.05 * (scale(prior.high) - scale(prior.low))


def test_every_draw_shares_its_units_among_its_heads():
    for task in PRIORS:
        for number in range(100):
            options = draw_options(priors_of(task, "additive ARGAT"), 3, number)
            assert options["hidden_channels"] % options["heads"] == 0


def test_models_share_the_draws_of_what_they_share():
    drawn = draw_options(RGAT, 1, 5)
    assert {name: drawn[name] for name in RGCN} == draw_options(RGCN, 1, 5)
    assert drawn != draw_options(RGAT, 2, 5)
    assert drawn != draw_options(RGAT, 1, 6)


def test_the_first_rounds_come_from_the_prior_without_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    rounds = [propose(RGAT, 7, number, []) for number in range(FROM_PRIOR // ROUND)]
    assert [len(options) for options in rounds] == [10, 10]
    assert rounds[1][3] == draw_options(RGAT, 7, 13)
    with pytest.raises(ImportError, match=r"needs optuna; install it with `pip install 'rgat\[search\]'`"):
        propose(RGAT, 7, FROM_PRIOR // ROUND, finished(RGAT, 20))


def test_a_round_depends_on_seed_number_and_earlier_rounds_alone():
    earlier = finished(RGAT, 20)
    first = propose(RGAT, 0, 2, earlier)
    assert propose(RGAT, 0, 2, json.loads(json.dumps(earlier[::-1]))) == first
    assert len({json.dumps(options) for options in first}) == 10
    assert all(options.keys() == RGAT.keys() for options in first)
    assert propose(RGAT, 1, 2, earlier) != first
    assert propose(RGAT, 0, 3, earlier) != first
    changed = [*earlier[:19], earlier[19] | {"objective": 0.999}]
    assert propose(RGAT, 0, 2, changed) != first


def test_proposals_go_where_the_objective_is_good():
    earlier = finished(RGCN, 20)
    proposed = [math.log10(options["learning_rate"]) for options in propose(RGCN, 0, 2, earlier)]
    drawn = [math.log10(record["config"]["learning_rate"]) for record in earlier]
    assert np.median(proposed) > np.median(drawn) + 0.5


def test_failed_and_diverged_trials_do_not_stop_a_search():
    earlier = finished(RGCN, 20)
    earlier[3] |= {"status": "failed", "objective": None}
    earlier[4] |= {"status": "diverged", "objective": None}
    assert len(propose(RGCN, 0, 2, earlier)) == 10


def test_selection_is_by_objective_then_tie_breaker_then_number():
    a, b, c, d = (trial(number, {}, objective) for number, objective in enumerate((0.8, 0.9, 0.9, 0.9)))
    b["tie_breaker"] = 1.1
    assert select([d, c, b, a])["trial"] == 2
    a |= {"status": "diverged", "objective": None, "error": "no finite loss"}
    with pytest.raises(
        ValueError, match=r"at least one trial of RGCN must finish, got 1 that failed .* \(no finite loss\)"
    ):
        select([a])


@pytest.mark.parametrize(("epochs", "median"), [((3, 1, 9), 3), ((4, 1, 9, 7), 6), ((5, 2), 4), ((7,), 7)])
def test_the_retrain_takes_the_median_of_the_best_epochs_rounded_up(epochs, median):
    assert retrain_epochs({"folds": [{"best_epoch": epoch} for epoch in epochs]}) == median


def test_all_variants_have_priors():
    assert [len(priors_of("graph", model)) for model in VARIANTS] == [9, 12, 12, 12, 12]


def test_the_common_epoch_suits_all_folds():
    assert common_epoch([[3.0, 1.0, 2.0], [3.0, 2.0, 0.5, 9.0]]) == 3
    assert common_epoch([[3.0, 1.0], [9.0, 8.0, 8.0, 7.0]]) == 4, "a fold that stopped counts with its last loss"
    assert common_epoch([[1.0, 1.0]]) == 1
