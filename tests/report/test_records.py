"""Records become studies, and notices name what is wrong with them."""

import json

import made_up
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from rgat.experiments.records import pack, unpack_array, write_record
from rgat.report import write_report
from rgat.report.records import load_studies
from rgat.report.studies import MODELS, Study


def study(folder, **options):
    return made_up.write_study(folder, **({"seeds": 3, "trials": 3} | options))


def test_the_five_models_are_read_as_an_ensemble_where_all_have_outputs(tmp_path):
    study(tmp_path / "tox21", seeds=2, trials=0, data="tox21", task="graph")
    (found,), _ = load_studies([tmp_path])
    row, description = found.row("ensemble of the five models"), found.description
    labels = np.array(description["test_labels"]["122"])
    chosen = [run for run in found.runs if str(run["split"]) == "122" and run["model"] in MODELS]
    assert len(chosen) == 10
    logits = np.stack([unpack_array(run["outputs"]["test"]) for run in chosen]).astype(float)
    probability = (1 / (1 + np.exp(logits[..., 0] - logits[..., 1]))).mean(0)
    expected = []
    for task in range(labels.shape[1]):
        known = labels[:, task] >= 0
        expected.append(roc_auc_score(labels[known, task], probability[known, task]))
    assert row.scores()[0] == pytest.approx(np.mean(expected))
    assert len(row.scores()) == len(description["test_labels"])
    next(run for run in found.runs if run["model"] == "RGCN" and str(run["split"]) == "122")["outputs"] = None
    assert len(Study("tox21", "paper", found.description, found.runs).row(row.name).scores()) == len(row.scores()) - 1


def test_rows_come_in_the_order_of_the_papers_table(tmp_path):
    study(tmp_path / "aifb", baselines={"WL": 0.8, "FEAT": 0.55, "R-GCN": 0.95})
    (found,), notices = load_studies([tmp_path])
    assert [row.name for row in found.rows] == [
        "FEAT",
        "WL",
        "R-GCN",
        "RGCN",
        "additive C-WIRGAT",
        "additive WIRGAT",
        "additive C-ARGAT",
        "additive ARGAT",
        "multiplicative C-WIRGAT",
        "multiplicative WIRGAT",
        "multiplicative C-ARGAT",
        "multiplicative ARGAT",
    ]
    assert [row.label for row in found.rows][2:6] == ["RGCN (its own paper)", "RGCN (ours)", "C-WIRGAT", "WIRGAT"]
    assert found.searched == list(MODELS)
    assert notices == []


def test_a_packed_file_beside_its_folder_counts_once(tmp_path):
    folder = study(tmp_path / "aifb")
    pack(folder, tmp_path / "aifb.records.gz")
    (found,), notices = load_studies([tmp_path])
    assert len(found.runs) == 15
    assert notices == []


def test_two_results_of_one_unit_are_named_and_the_first_counts(tmp_path):
    one, two = (study(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two")))
    (found,), notices = load_studies([one, two])
    assert len(found.runs) == 15
    assert found.runs == load_studies([one])[0][0].runs
    assert any("occurs twice with different results; the first is used" in notice for notice in notices)


def test_no_records_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="must hold records of runs or trials, got none; `rgat demo`"):
        load_studies([tmp_path])
    (tmp_path / "broken.records.gz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"got none; Left out: .*cannot be decompressed"):
        load_studies([tmp_path])


def test_two_budgets_are_never_pooled_and_it_is_said(tmp_path):
    study(tmp_path / "small", budget="small")
    study(tmp_path / "paper", budget="paper")
    found, notices = load_studies([tmp_path])
    assert [s.title for s in found] == ["AIFB (budget paper)", "AIFB (budget small)"]
    assert [s.key for s in found] == ["aifb-paper", "aifb-small"]
    assert [len(s.runs) for s in found] == [15, 15]
    assert notices == [
        "AIFB has records of 2 budgets (paper, small). They are never pooled: each budget has a section of its own."
    ]


def test_experiments_under_one_budget_but_with_other_seeds_are_put_together_and_it_is_said(tmp_path):
    study(tmp_path / "a", truth={"RGCN": (0.9, None, 0.01)})
    study(tmp_path / "b", truth={"additive ARGAT": (0.9, 0.9, 0.01)}, seeds=4)
    (found,), notices = load_studies([tmp_path])
    assert len(found.rows) == 3
    assert notices == ["AIFB: experiments with different seeds are combined; their models are not fully comparable."]


def test_baselines_join_the_study_of_their_data(tmp_path):
    study(tmp_path / "models", budget="small")
    study(tmp_path / "baselines", budget="custom", truth={}, baselines={"WL": 0.8})
    (found,), notices = load_studies([tmp_path])
    assert (found.title, found.budget) == ("AIFB", "small")
    assert found.row("WL") is not None
    assert notices == []


def test_damage_is_named_and_skipped(tmp_path):
    folder = study(tmp_path / "aifb")
    record = made_up.run_record("RGCN", 0, 0.9, None, made_up.describe())
    bad = {
        90: {"scores": {"train": 1.0}},
        91: {"scores": {"test": None}},
        92: {"status": "finished"},
        93: {"kind": "draw"},
        94: {"scores": {"test": 0.9, "train": "x"}},
        95: {"scores": {"test": True}},
        96: {"scores": {"test": 90.0}},
        97: {"constant_scores": {"train": 0.5}},
        98: {"outputs": {"test": {"shape": [2, 2], "dtype": "float16", "data": "?"}}},
        99: {"curve": {"train_loss": "falling"}},
        89: {"seconds": "x"},
        88: {"versions": "x"},
        87: {"constant_scores": [0.5]},
        86: {"model": 5},
        85: {"kind": None},
        84: {"status": None},
    }
    for seed, change in bad.items():
        path = write_record(folder, record | {"seed": seed})
        path.write_text(json.dumps(record | {"format": 1, "seed": seed} | change))
    (found,), notices = load_studies([tmp_path])
    assert len(found.runs) == 15
    write_report([tmp_path], tmp_path / "report")
    assert len(notices) == len(bad)
    assert all(any(f"run-00{seed}.json" in notice for notice in notices) for seed in bad)
    bad = dict(list(bad.items())[:4])
    notices = [notice for notice in notices if any(f"run-00{seed}" in notice for seed in bad)]
    reasons = (
        "no 'test'",
        "`scores.test` must be a number",
        '`status` must be "done"',
        '`kind` must be "trial", "run" or "declaration"',
    )
    assert len(notices) == 4
    for seed, reason, notice in zip(bad, reasons, notices, strict=True):
        assert notice.startswith(f"Left out, damaged: records/rgcn/run-00{seed}.json (")
        assert reason in notice


def test_a_single_run_and_failed_runs_are_said(tmp_path):
    folder = study(tmp_path / "aifb", seeds=1)
    failed = made_up.run_record("RGCN", 5, 0.9, None, made_up.describe())
    write_record(folder, failed | {"status": "diverged", "scores": None})
    (found,), notices = load_studies([tmp_path])
    assert len(found.row("RGCN").scores()) == 1
    assert "AIFB: 1 of 6 final runs failed or diverged (RGCN)" in notices[0]
    assert "a single run of RGCN, additive C-WIRGAT" in notices[1]
    assert "no standard deviation and allows no test" in notices[1]


def test_a_setting_of_its_own_is_a_row_of_its_own(tmp_path):
    folder = study(tmp_path / "aifb")
    write_record(folder, made_up.run_record("RGCN", 0, 0.9, None, made_up.describe(), setting="literals"))
    (found,), _ = load_studies([tmp_path])
    assert [(row.name, row.group) for row in found.rows][-1] == ("RGCN (literals)", "Beyond the paper")
    assert len(found.row("RGCN").runs) == 3
