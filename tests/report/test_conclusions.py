"""Conclusions and verdicts on synthetic records whose differences are known."""

import made_up
import numpy as np
import pytest

from rgat.experiments.published import PUBLISHED
from rgat.report.claims import CLAIMS, HOLDS, OPEN, check_claim, claims_table, listed
from rgat.report.page import summarise
from rgat.report.records import load_studies

TOX21 = {
    "RGCN": (0.835, None, 0.004),
    "additive WIRGAT": (0.835, 0.835, 0.004),
    "additive ARGAT": (0.835, 0.835, 0.004),
    "multiplicative WIRGAT": (0.8365, 0.811, 0.004),
    "multiplicative ARGAT": (0.8365, 0.802, 0.004),
}


def study_of(folder, truth=made_up.PAPER_LIKE, **options):
    made_up.write_study(folder, truth, **({"seeds": 25, "trials": 0} | options))
    studies, _ = load_studies([folder])
    return studies[0]


def test_an_order_that_is_there_is_told_as_the_paper_tells_it(tmp_path):
    truth = {m: (0.95 - 0.05 * i, None if m == "RGCN" else 0.95 - 0.05 * i, 0.01) for i, m in enumerate(made_up.EQUAL)}
    study = study_of(tmp_path, truth)
    text = " ".join(summarise(study))
    names = [row.name for row, _ in study.ranking]
    assert names == list(made_up.EQUAL)
    assert "Best to worst by mean test accuracy, in %: 1) RGCN (" in text
    assert "5) multiplicative ARGAT (" in text
    assert "Each step is significant (one-sided, p ≤ 0.05)." in text
    assert (
        "additive WIRGAT, additive ARGAT, multiplicative WIRGAT and multiplicative ARGAT are worse than RGCN." in text
    )


def test_where_nothing_differs_there_is_no_conclusion(tmp_path):
    text = " ".join(summarise(study_of(tmp_path, made_up.EQUAL, seed=3)))
    assert "No conclusion against RGCN: none of the 4 attention models differs significantly from it" in text
    assert "attention raises" not in text
    assert "with constant attention: nothing can be concluded for additive WIRGAT, additive ARGAT" in text
    assert "tied with" in text


def test_a_single_model_that_does_not_differ_is_named(tmp_path):
    equal = {name: made_up.EQUAL[name] for name in ("RGCN", "additive WIRGAT")}
    text = " ".join(summarise(study_of(tmp_path, equal, seed=3)))
    assert "No conclusion against RGCN: additive WIRGAT does not differ significantly from it" in text


def test_known_differences_are_found_in_their_direction(tmp_path):
    study = study_of(tmp_path)
    verdicts = {c.first.name: c.verdict for c in study.against_rgcn}
    assert verdicts["additive WIRGAT"] == "better"
    assert verdicts["multiplicative WIRGAT"] == "worse"
    verdicts = {c.first.name: c.verdict for c in study.against_constant}
    assert verdicts["additive ARGAT"] == "better"
    assert verdicts["multiplicative WIRGAT"] == "worse"
    assert verdicts["additive WIRGAT"] == "no conclusion"
    text = " ".join(summarise(study))
    assert "additive WIRGAT is better than RGCN" in text
    assert "attention raises the mean of additive ARGAT by " in text
    assert "attention lowers the mean of multiplicative WIRGAT by " in text


def test_three_runs_are_too_few_and_one_allows_no_test(tmp_path):
    text = " ".join(summarise(study_of(tmp_path / "three", seeds=3)))
    assert (
        "too few runs for a conclusion (at least 5 per row are needed); differences of means: additive WIRGAT +" in text
    )
    assert "tied" not in text
    study = study_of(tmp_path / "one", seeds=1)
    assert {c.verdict for c in study.against_rgcn} == {"no test: too few runs"}
    text = " ".join(summarise(study))
    assert "no test with a single run; differences of means: additive WIRGAT +" in text
    assert "the order of the means only" in text


def test_runs_that_never_differ_allow_no_test(tmp_path):
    still = {model: (mean, constant, 0.0) for model, (mean, constant, _) in made_up.EQUAL.items()}
    study = study_of(tmp_path, still, seeds=5)
    assert {c.verdict for c in study.against_rgcn} == {"no test: no spread"}
    assert "all runs of each row score the same" in " ".join(summarise(study))


def test_a_small_test_set_and_a_memorised_training_set_are_pointed_out(tmp_path):
    truth = made_up.EQUAL | {"RGCN": (1.0, None, 0.001)}
    text = " ".join(summarise(study_of(tmp_path / "a", truth)))
    assert "RGCN fits the training set perfectly" in text
    assert "no result here contradicts that" in text
    text = " ".join(summarise(study_of(tmp_path / "b", made_up.EQUAL)))
    assert "The test set has 36 nodes: one of them is worth 2.78 points, more than the" in text


def test_missing_models_and_searches_without_runs_are_said(tmp_path):
    text = " ".join(summarise(study_of(tmp_path / "a", {"RGCN": (0.9, None, 0.01)})))
    assert "There are no finished runs of additive WIRGAT, additive ARGAT" in text
    text = summarise(study_of(tmp_path / "b", seeds=0, trials=5))
    assert text == ["AIFB has search trials but no finished runs, so it has no test scores."]


def test_test_examples_widen_every_interval(tmp_path):
    study = study_of(tmp_path, seeds=6)
    for row in study.nine:
        seeds, examples = study.half_widths(row)
        assert 0 <= seeds < examples
    for comparison in (*study.against_rgcn, *study.against_constant):
        assert comparison.seeds < comparison.examples
        assert comparison.above + comparison.tie + comparison.below == pytest.approx(1)


def test_graphs_have_intervals_over_examples_of_all_splits(tmp_path):
    study = study_of(tmp_path, TOX21, data="tox21", task="graph", seeds=2)
    seeds, examples = study.half_widths(study.row("RGCN"))
    assert examples > seeds
    assert np.isfinite(study.replicates["RGCN"]).all()
    assert len(study.row("RGCN").scores()) == 6


def test_outputs_that_do_not_fit_the_labels_give_no_interval(tmp_path):
    made_up.write_study(tmp_path, seeds=2, trials=0)
    studies, _ = load_studies([tmp_path])
    studies[0].description["test_labels"] = {"": [0, 1, 2]}
    study = studies[0]
    assert study.replicates == {}
    assert study.half_widths(study.nine[0])[1] is None


def verdicts(studies):
    found = {f"{claim.data[0]}: {claim.text}": check_claim(claim, studies) for claim in CLAIMS}
    assert len(found) == len(CLAIMS)
    return found


def test_the_papers_own_means_make_its_claims_hold(tmp_path):
    """Runs drawn around the published means of three data sets agree with the claims about them."""
    studies = []
    for data, spread in (("aifb", 0.002), ("mutag", 0.001)):
        truth = {}
        for model in made_up.EQUAL:
            constant = PUBLISHED[data].get(model.replace(" ", " C-"))
            mean = PUBLISHED[data][model]["test"].mean
            truth[model] = (mean, constant["test"].mean if constant and model != "RGCN" else None, spread)
        made_up.write_study(tmp_path / data, truth, seeds=50, trials=0, data=data, exact=True)
    made_up.write_study(tmp_path / "tox21", TOX21, seeds=10, trials=0, data="tox21", task="graph")
    studies = load_studies([tmp_path])[0]
    found = verdicts(studies)
    for text in (
        "aifb: With additive attention, WIRGAT is above ARGAT.",
        "aifb: With multiplicative attention, ARGAT is above WIRGAT.",
        "aifb: From best to worst: additive WIRGAT, multiplicative ARGAT, RGCN, additive ARGAT, multiplicative WIRGAT.",
        "aifb: Attention helps additive ARGAT.",
        "aifb: Attention helps multiplicative ARGAT.",
        "aifb: Attention hurts multiplicative WIRGAT.",
        "aifb: RGCN does not fit the training set perfectly.",
        "mutag: Attention helps additive WIRGAT.",
        "mutag: Attention helps additive ARGAT.",
        "mutag: Attention hurts multiplicative ARGAT.",
        "mutag: The Weisfeiler-Lehman kernel is above all relational networks.",
        "mutag: RGCN is above every attention model.",
        "tox21: Tuned, RGCN is above the published RGCN by degree.",
        "tox21: Attention helps multiplicative WIRGAT and ARGAT.",
        "aifb: No variant is above RGCN everywhere.",
    ):
        assert found[text].word == HOLDS, (text, found[text].evidence)
    table = claims_table(studies)
    assert len(table.lines) == len(CLAIMS)
    assert len(CLAIMS) >= 20


def test_the_opposite_of_a_claim_makes_it_fail(tmp_path):
    truth = made_up.PAPER_LIKE | {"additive WIRGAT": (0.85, 0.85, 0.01), "additive ARGAT": (0.90, 0.95, 0.01)}
    study = study_of(tmp_path, truth)
    found = verdicts([study])
    assert found["aifb: Attention helps additive ARGAT."].word == "does not hold"
    assert found["aifb: Additive WIRGAT has the best result of all systems."].word == "does not hold"
    assert found["mutag: Attention helps additive WIRGAT."].evidence == "no records of MUTAG"
    assert {found[text].word for text in found if found[text].evidence.startswith("no records")} == {OPEN}


def test_claims_about_the_search_are_read_off_the_draws_from_the_prior(tmp_path):
    poor = {model: (0.95 if model in ("RGCN", "multiplicative WIRGAT") else 0.6, None, 0.01) for model in made_up.EQUAL}
    study = study_of(tmp_path, poor, seeds=2, trials=30)
    text = "Over most of the search space ARGAT does worse than RGCN and multiplicative WIRGAT."
    assert verdicts([study])[f"aifb: {text}"].word == HOLDS
    assert check_claim(next(c for c in CLAIMS if c.text == text), [study_of(tmp_path / "none", seeds=2)]).word == OPEN


def test_a_claim_without_runs_or_tests_is_open(tmp_path):
    found = verdicts([study_of(tmp_path / "a", {"RGCN": (0.9, None, 0.01)})])
    assert found["aifb: Attention helps additive ARGAT."].evidence == "no runs of additive ARGAT"
    found = verdicts([study_of(tmp_path / "b", seeds=1)])
    assert "no test possible" in found["aifb: Attention helps additive ARGAT."].evidence
    assert "no test possible" in found["aifb: Attention makes no difference to additive WIRGAT."].evidence


def test_few_runs_prove_no_equality_and_an_unmet_condition_nothing(tmp_path):
    far = {
        model: (0.7 if model == "RGCN" else 0.85, None if model == "RGCN" else 0.85, 0.01) for model in made_up.EQUAL
    }
    studies = [study_of(tmp_path / data, far, data=data, seeds=2) for data in ("aifb", "mutag")]
    studies.append(study_of(tmp_path / "tox21", made_up.EQUAL, data="tox21", task="graph", seeds=2))
    found = verdicts(studies)
    assert found["aifb: No variant is above RGCN everywhere."].word == "cannot tell"
    condition = found["mutag: Where RGCN fits the training set perfectly, no attention model is above it."]
    assert condition.word == "cannot tell"
    assert "condition not met" in condition.evidence
    equal = found["tox21: Attention makes no difference to the additive models."]
    assert equal.word == "cannot tell"
    assert "only 6 runs" in equal.evidence


def test_attention_and_its_absence_are_compared_seed_by_seed(tmp_path):
    study = study_of(tmp_path, seeds=6)
    c = study.against_constant[0]
    pairs = c.first.scores() - c.second.scores()
    assert c.seeds == pytest.approx(2.5706 * pairs.std(ddof=1) / 6**0.5, rel=1e-3)


def test_lists_read_as_people_write_them():
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
