"""Validation inside the training part chooses input and model; the report says what was compared."""

import dataclasses

import pytest
import torch
from helpers_literals import EX, PREDICATE, write_people

import rgat
from rgat.data import from_rdf, load
from rgat.predictor import choice, trainer
from rgat.predictor.choice import candidates, choose
from rgat.predictor.files import read_features
from rgat.predictor.text import choice_table, contribution_table, verdicts
from rgat.training.configuration import VARIANTS

QUICK = {"max_epochs": 3, "patience": 3, "hidden_channels": 8}


@pytest.fixture(scope="module")
def open_data(tmp_path_factory):
    graph, labels = write_people(tmp_path_factory.mktemp("people"), "number", count=60)
    return from_rdf(graph, labels, shares=(0.75, 0.0))


@pytest.fixture(scope="module")
def chosen(open_data):
    """A fit whose candidates have these scores, whatever they learn."""
    scores = {("both", "RGCN"): 0.9, ("both", "additive ARGAT"): 0.95}

    def cross_validate(self, config, stages):
        kind = "both" if config.get("identity") else "identity" if self.data.x is None else "features"
        points, logits = original(self, config, stages)
        score = scores.get((kind, config["model"]), 0.8)
        return [dataclasses.replace(point, valid_metric=score) for point in points], logits

    original = trainer.Trainer.cross_validate
    trainer.Trainer.cross_validate = cross_validate
    try:
        return rgat.fit(open_data, **QUICK)
    finally:
        trainer.Trainer.cross_validate = original


def test_the_best_input_and_then_the_best_model_are_chosen(chosen):
    assert (chosen.config["model"], chosen.config["identity"]) == ("additive ARGAT", True)
    assert chosen.data.x is not None
    assert not any(name[0] == '"' for name in chosen.data.node_names)
    report = chosen.report["choice"]
    assert (report["input"], report["model"]) == ("both", "additive ARGAT")
    assert report["on"] == "in cross-validation inside the training part"
    tried = [(row["input"], row["model"]) for row in report["candidates"]]
    assert tried[:3] == [("identity", "RGCN"), ("features", "RGCN"), ("both", "RGCN")]
    assert tried[3:] == [("both", model) for model in VARIANTS if model != "RGCN"]
    assert "selection" not in chosen.report
    ((title, _, rows, _),) = choice_table(chosen)
    assert title == (
        "compared by accuracy in cross-validation inside the training part; chosen is the first within one standard "
        "error of the best:"
    )
    assert [row for row in rows if "chosen" in row] == [("both", "additive ARGAT", "chosen", "95.0 ± 0.0")]


def test_a_chosen_model_is_saved_and_loaded_and_predicts_new_nodes(chosen, tmp_path):
    chosen.save(tmp_path / "model")
    loaded = rgat.load(tmp_path / "model")
    assert torch.equal(loaded.logits, chosen.logits)
    assert loaded.report == chosen.report
    new = tmp_path / "new.nt"
    new.write_text(
        f'<{EX}person/new> <{EX}weight> "7"^^<http://www.w3.org/2001/XMLSchema#decimal> .\n'
        f"<{EX}person/new> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <{EX}Person> .\n"
    )
    assert loaded.predict(rdf=new).names == (f"<{EX}person/new>",)


def test_options_and_large_graphs_leave_no_choice(open_data, monkeypatch):
    default = ["additive WIRGAT"]
    assert candidates(open_data, {}, 5, True) == (["identity", "features", "both"], list(VARIANTS))
    assert candidates(open_data, {"model": "RGCN"}, 5, True) == (["identity", "features", "both"], ["RGCN"])
    assert candidates(open_data, {"identity": True}, 5, True)[0] == ["both"]
    assert candidates(open_data, {"identity": False}, 5, True)[0] == ["features"]
    assert candidates(open_data, {"embedding_channels": 8}, 5, True)[0] == ["identity"]
    assert candidates(open_data, {"fanouts": [2, 2]}, 0, True) == (["identity"], default)
    assert candidates(open_data, {}, 5, False) == (["both"], default)
    assert candidates(load("institute"), {}, 0, True) == (["identity"], list(VARIANTS))
    assert candidates(load("molecules"), {}, 0, True)[1] == ["multiplicative WIRGAT"]
    monkeypatch.setattr(choice, "MOST_EDGES", 5 * open_data.graph.num_edges - 1)
    assert candidates(open_data, {}, 5, True) == (["identity"], default)


def test_a_candidate_that_diverges_is_left_out(open_data):
    def score_of(kind, config, number):
        if config["model"] == "RGCN":
            raise ValueError("diverged")
        return [0.5], 1.0

    found = choose({"identity": open_data}, {"heads": 2}, list(VARIANTS), score_of)
    assert found.config["model"] == "additive WIRGAT"
    assert found.config["heads"] == 2
    assert found.rows[0] == {"input": "identity", "model": "RGCN", "score": None, "loss": None}
    with pytest.raises(ValueError, match="diverged"):
        choose({"identity": open_data}, {}, ["RGCN"], score_of)


def test_equal_scores_are_decided_by_the_loss(open_data):
    losses = {"RGCN": 0.5, "additive ARGAT": 0.4}
    found = choose(
        {"identity": open_data}, {}, list(losses), lambda kind, config, number: ([0.9], losses[config["model"]])
    )
    assert found.config["model"] == "additive ARGAT"


def test_the_first_within_one_standard_error_of_the_best_is_chosen(open_data):
    models = ["RGCN", "additive WIRGAT", "additive ARGAT"]

    def chosen(*by_fold):
        scores = dict(zip(models, by_fold, strict=True))
        found = choose({"identity": open_data}, {}, models, lambda kind, config, number: (scores[config["model"]], 1.0))
        errors = [row["error"] for row in found.rows]
        return found.config["model"], errors

    # The best is 0.9, with a standard error of 0.1 / sqrt(3).
    assert chosen([0.85] * 3, [0.1] * 3, [0.8, 0.9, 1.0]) == ("RGCN", pytest.approx([0, 0, 0.1 / 3**0.5]))
    assert chosen([0.84] * 3, [0.845] * 3, [0.8, 0.9, 1.0])[0] == "additive WIRGAT"
    assert chosen([0.84] * 3, [0.84] * 3, [0.8, 0.9, 1.0])[0] == "additive ARGAT"
    assert chosen([0.9, float("nan")] * 2, [0.95, float("nan")] * 2, [0.9] * 4)[0] == "additive WIRGAT"


def test_words_of_the_features_option():
    assert read_features(None, True) == read_features("auto", True) == ("auto", False)
    assert read_features(None, False) == read_features("identity", True) == ((), False)
    assert read_features("types,literals", True) == (("types", "literals"), False)
    assert read_features("identity,literals", True) == (("literals",), True)
    with pytest.raises(ValueError, match='--features must be auto alone or a list of features, got "auto,types"'):
        read_features("auto,types", True)
    with pytest.raises(ValueError, match=r'`features` must be .* got "numbers"'):
        read_features("numbers", True)


def test_a_fit_that_was_interrupted_between_candidates_repeats_none(open_data, tmp_path):
    def crash(step):
        if step.text.startswith("3 of 3"):
            raise KeyboardInterrupt

    options = {"model": "RGCN", **QUICK}
    whole = rgat.fit(open_data, **options)
    with pytest.raises(KeyboardInterrupt):
        rgat.fit(open_data, checkpoint=tmp_path, progress=crash, **options)
    steps = []
    resumed = rgat.fit(open_data, checkpoint=tmp_path, progress=steps.append, **options)
    told = [step.text for step in steps if step.stage == "choice"]
    assert [text for text in told if "epoch" in text]
    assert all(text.startswith("3 of 3") for text in told if "epoch" in text)
    assert resumed.report == whole.report
    assert torch.equal(resumed.logits, whole.logits)


@pytest.mark.parametrize("kind", ["number", "date", "word", "both"])
def test_a_class_that_follows_from_a_literal_is_learned_and_the_predicate_named(tmp_path, kind):
    """Without any option but the model, which saves time: the input is chosen, and reaches 95 % of all."""
    graph, labels = write_people(tmp_path, kind)
    predictor = rgat.fit(from_rdf(graph, labels, shares=(0.8, 0.0)), model="RGCN")
    assert predictor.report["scores"]["test"] >= 0.95
    assert predictor.report["choice"]["input"] in (("both",) if kind == "both" else ("features", "both"))
    found = predictor.report["contributions"]
    names = [row["predicate"] for row in found["predicates"][:2]]
    assert f"<{EX}{PREDICATE[kind]}>" in names
    if kind != "both":
        assert names[0] == f"<{EX}{PREDICATE[kind]}>"
        assert f"rests most on {PREDICATE[kind]} (" in verdicts(predictor)[0]
    assert len(contribution_table(predictor)[0][2]) == len(found["predicates"])
    (reason, *_) = predictor.explain(f"{EX}person/3").literals
    assert (reason.predicate, reason.node) == (f"<{EX}{PREDICATE[kind]}>", f"<{EX}person/3>") or kind == "both"
    assert reason.value


@pytest.mark.parametrize(("held_out", "epochs"), [(1.0, 5), (0.0, 1)])
def test_a_model_that_knows_its_training_nodes_less_than_held_out_ones_learns_longer(
    open_data, monkeypatch, held_out, epochs
):
    def cross_validate(self, config, stages):
        points, logits = original(self, config, stages)
        taken = [1, 1, 1, 2, 5]  # epochs of the folds
        return [
            dataclasses.replace(p, epoch=e, valid_metric=held_out) for p, e in zip(points, taken, strict=True)
        ], logits

    original = trainer.Trainer.cross_validate
    monkeypatch.setattr(trainer.Trainer, "cross_validate", cross_validate)
    predictor = rgat.fit(open_data, model="RGCN", identity=False, comparison=False, **QUICK)
    assert 0 < predictor.report["scores"]["train"] < 1
    assert predictor.report["training"][0]["epochs"] == epochs
