import json

import numpy as np
import pytest

from rgat.data import load
from rgat.experiments import compare as module
from rgat.experiments import units
from rgat.experiments.compare import SETUPS, compare
from rgat.experiments.records import describe_data, read_experiment, unpack_array
from rgat.training import Result
from rgat.training.configuration import VARIANTS


@pytest.fixture
def _short_runs(monkeypatch):
    monkeypatch.setitem(SETUPS, "institute", SETUPS["institute"] | {"max_epochs": 10})
    monkeypatch.setenv("RGAT_BACKEND", "torch")  # workers have nothing to compile


@pytest.mark.usefixtures("_short_runs")
def test_runs_come_in_order_and_do_not_depend_on_the_number_of_workers(tmp_path):
    seen = []
    runs = {}
    for workers in (1, 2):
        found = compare(["institute"], ["RGCN"], seeds=2, workers=workers, out=tmp_path, on_run=seen.append)
        runs[workers] = [run | {"seconds": 0.0} for run in found]
    assert runs[1] == runs[2]
    assert [(run["data"], run["model"], run["seed"]) for run in runs[1]] == [("institute", "RGCN", s) for s in (0, 1)]
    assert len(seen) == 4
    experiment = read_experiment(tmp_path / "institute")  # the second call replaced what the first had written
    assert [record["seed"] for record in experiment.records] == [0, 1]
    assert experiment.description["seeds"] == 2


@pytest.mark.usefixtures("_short_runs")
def test_a_record_holds_what_the_model_says_about_the_test_part(tmp_path):
    (node,) = compare(["institute"], ["additive WIRGAT"], seeds=1, workers=1, out=tmp_path)
    described = read_experiment(tmp_path / "institute").description
    labels = np.array(described["test_labels"][""])
    for prefix in ("", "constant_"):
        named = unpack_array(node[f"{prefix}outputs"]["test"]).argmax(-1)
        assert np.mean(named == labels) == node[f"{prefix}scores"]["test"]
    assert 0 < described["majority"] < 1
    graph = module._train(module._unit("molecules", "RGCN", 0))
    assert np.mean(list(graph["task_scores"]["test"].values())) == pytest.approx(graph["scores"]["test"])
    assert graph["constant_scores"] is None
    assert describe_data({None: load("molecules")})["tasks"] == list(graph["task_scores"]["test"])


def test_what_is_not_a_demos_is_never_replaced(tmp_path):
    (tmp_path / "institute").mkdir()
    (tmp_path / "institute" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="must be new, empty or from an earlier `rgat demo`, got something else"):
        compare(["institute"], seeds=1, out=tmp_path)
    other = {"format": 1, "data": "institute", "command": "rgat reproduce institute"}
    (tmp_path / "institute" / "experiment.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="give another folder with --out"):
        compare(["institute"], seeds=1, out=tmp_path)
    assert (tmp_path / "institute" / "thesis.txt").exists()


def test_a_run_that_diverges_at_once_is_recorded_as_such(monkeypatch):
    nothing = dict.fromkeys(("train", "valid", "test"), float("nan"))
    diverged = Result("accuracy", 0, nothing, nothing, [], 0.0)
    monkeypatch.setattr(units, "fit_many", lambda *job: [diverged])
    record = module._train(module._unit("institute", "RGCN", 0))
    assert (record["status"], record["scores"]) == ("diverged", None)
    assert record["error"] == "no finite loss after epoch 0"


def test_a_run_that_fails_ends_the_comparison_with_its_reason(monkeypatch):
    monkeypatch.setattr(units, "build_variant", None)
    with pytest.raises(RuntimeError, match="RGCN on institute, seed 0: TypeError"):
        module._train(module._unit("institute", "RGCN", 0))


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
        (kind, model): module._train(module._unit(f"planted-{kind}", model, 0))
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
        assert attention["scores"]["test"] > results[kind, "RGCN"]["scores"]["test"] + 0.15
        assert attention["constant_scores"]["test"] < attention["scores"]["test"] - 0.15
    wrong = results["rivals", "additive WIRGAT"]  # a softmax over single edges is no attention
    assert wrong["scores"] == wrong["constant_scores"]


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
