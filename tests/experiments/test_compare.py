import dataclasses

import pytest

from rgat.experiments import compare as module
from rgat.experiments.compare import SETUPS, compare
from rgat.experiments.variants import VARIANTS


def test_runs_come_in_order_and_do_not_depend_on_the_number_of_workers():
    seen = []
    runs = {}
    for workers in (1, 2):
        runs[workers] = [
            dataclasses.replace(run, result=dataclasses.replace(run.result, seconds=0.0))
            for run in compare(["institute"], ["RGCN"], seeds=2, workers=workers, on_run=seen.append)
        ]
    assert runs[1] == runs[2]
    assert [(run.data, run.model, run.seed) for run in runs[1]] == [("institute", "RGCN", 0), ("institute", "RGCN", 1)]
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": ["aifbb"]}, "`data set` must be"),
        ({"names": ["institute"], "models": ["RGNC"]}, r'`model` must be .* did you mean "RGCN"\?'),
        ({"names": ["institute"], "seeds": 0}, "`seeds` must be an integer of at least 1, got 0"),
        ({"names": ["institute"], "workers": 0}, "`workers` must be an integer of at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(**arguments)


def test_on_the_planted_sets_the_right_attention_finds_what_a_mean_cannot():
    """One seed each; the whole table, over ten seeds, is in docs/planted.md."""
    results = {
        (kind, model): module._train(f"planted-{kind}", model, 0).result
        for kind, model in (
            ("needle", "RGCN"),
            ("needle", "additive WIRGAT"),
            ("rivals", "RGCN"),
            ("rivals", "additive WIRGAT"),
            ("rivals", "multiplicative ARGAT"),
        )
    }
    for kind, right in (("needle", "additive WIRGAT"), ("rivals", "multiplicative ARGAT")):
        attention = results[kind, right]
        assert attention.scores["test"] > results[kind, "RGCN"].scores["test"] + 0.15
        assert attention.constant_scores["test"] < attention.scores["test"] - 0.15
    wrong = results["rivals", "additive WIRGAT"]  # a softmax over single edges is no attention
    assert wrong.scores == wrong.constant_scores


def test_every_built_in_set_has_a_setup_and_the_variants_are_the_papers():
    from rgat.data import BUILT_IN

    assert SETUPS.keys() == set(BUILT_IN)
    assert list(VARIANTS) == [
        "RGCN",
        "additive WIRGAT",
        "additive ARGAT",
        "multiplicative WIRGAT",
        "multiplicative ARGAT",
    ]
