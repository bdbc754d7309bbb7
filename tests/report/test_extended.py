"""Searches of the extended space have a section of their own, and never change the rows of the paper's protocol."""

import made_up
import pytest

from rgat.experiments.declaration import digest, digest_trials
from rgat.experiments.records import open_experiment, read_record, write_record
from rgat.experiments.request import ENSEMBLE, FOREST, PRUNING, SELECTED
from rgat.report import write_report
from rgat.report.records import load_studies

CONFIG = {"layer": "rgcn", "hidden_channels": 8, "pruned_relations": ["p", "q"]}


def write_extended(folder, seeds=3, trials=6, declare=True, forest=False):
    """An experiment of the extended space: pruning, trials of two rungs, a declaration, and runs of its rows."""
    described = made_up.describe(seeds=seeds, trials=trials, budget="custom", space="extended")
    open_experiment(folder, described)
    extended = {"setting": "extended", "workers": 4}
    written = []
    for model, count, rung in ((PRUNING, 3, None), (SELECTED, trials, 0), (SELECTED, 2, 1)):
        for number in range(count):
            record = made_up.trial_record(model, number, 0.5 + 0.05 * number, described)
            record |= extended | {"seconds": 24.0} | ({} if rung is None else {"rung": rung})
            written.append(record)
    member = {"trial": 1, "config": CONFIG, "objective": 0.9}
    declared = {
        "selected": member,
        "members": [member | {"weight": 0.2}] * 5,
        "ensemble_objective": 0.95,
        "folds": [0, 1, 2, 3, 4],
        "trials": trials,
        "by_rung": [trials, 2],
        "trials_sha256": digest_trials([record for record in written if record["model"] == SELECTED]),
    }
    if forest:
        trial = made_up.trial_record(FOREST, 0, 0.85, described) | extended | {"seconds": 24.0, "rung": 0}
        chosen = [record for record in written if record["model"] == SELECTED]
        declared["forest"] = {"model": FOREST, "trial": 0, "config": {"num_trees": 9}, "objective": 0.85}
        declared["members"][0] = declared["forest"] | {"weight": 0.2}
        declared["trials_sha256"] = digest_trials([*chosen, trial])
        written.append(trial)
    base = {"data": "aifb", "budget": "custom", "config": {}, "model": SELECTED, "status": "done", "seconds": 0.0}
    declaration = base | extended | {"kind": "declaration", "declared": declared, "sha256": digest(declared)}
    if declare:
        written.append(declaration)
        for model, score in ((SELECTED, 0.9), (ENSEMBLE, 0.95), *([(FOREST, 0.8)] if forest else [])):
            for seed in range(seeds):
                run = made_up.run_record(model, seed, score, None, described, setting="extended")
                config = CONFIG if model == SELECTED else {}
                written.append(
                    run | extended | {"config": config, "declaration": declaration["sha256"], "seconds": 60.0}
                )
    for record in written:
        write_record(folder, record)
    return folder


@pytest.fixture
def runs(tmp_path):
    return write_extended(tmp_path / "runs/aifb-extended").parent


def section(path):
    text = path.read_text()
    assert text.count("## Beyond the paper: the extended space") == 1
    return text.partition("## Beyond the paper: the extended space")[2].partition("\n## ")[0]


def test_a_section_says_what_was_selected_on_what_and_at_which_cost(runs, tmp_path):
    write_report([runs], tmp_path / "out")
    text = section(tmp_path / "out/results.md")
    assert "The search tried 6 configurations after 3 trainings" in text
    assert "in 8 trainings on validation folds, of which 0 failed or diverged: 1.1 device minutes." in text
    assert "6, 2 configurations reached the rungs" in text
    assert "is confirmed: it matches the trials found, and all 6 final runs carry its digest." in text
    assert "Looks at the test part: selected model 3, declared ensemble 3; 1.5 device minutes." in text
    assert "| selected model | 90.00 ± 0.00 | 3 |" in text
    assert "| declared ensemble | 95.00 ± 0.00 | 3 |" in text
    assert "| pruned relations | p, q |" in text
    assert "--space extended" in (tmp_path / "out/results.md").read_text()


def test_a_forest_of_descriptors_has_its_row_and_its_place_among_the_members(tmp_path):
    write_extended(tmp_path / "runs", forest=True)
    write_report([tmp_path / "runs"], tmp_path / "out")
    text = section(tmp_path / "out/results.md")
    assert "at the last rung and the descriptor forest the ensemble" in text
    assert "is confirmed: it matches the trials found, and all 9 final runs carry its digest." in text
    assert "The search tried 6 configurations after 3 trainings" in text
    assert "failed or diverged: 1.1 device minutes." in text
    assert "The descriptor forest took 0.4 minutes of one process on the folds." in text
    assert "| descriptor forest | 80.00 ± 0.00 | 3 |" in text
    assert "| Option | forest | trial 1 |" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("forest", 3), ("forest", {"trial": 0}), ("members", [{"model": ["x"], "trial": 0}]), ("kernel", [])],
)
def test_a_declaration_with_a_damaged_member_is_left_out(tmp_path, key, value):
    folder = write_extended(tmp_path / "runs", forest=True)
    path = folder / "records/selected-model+extended/declaration.json"
    record = read_record(path)
    record["declared"][key] = value
    path.unlink()
    write_record(folder, record)
    (study,), notices = load_studies([tmp_path / "runs"])
    assert study.declarations == []
    assert any("declaration.json" in notice for notice in notices)


def test_before_a_declaration_there_are_no_rows(tmp_path):
    write_extended(tmp_path / "runs", declare=False)
    write_report([tmp_path / "runs"], tmp_path / "out")
    assert "Nothing is declared yet" in section(tmp_path / "out/results.md")


def test_the_papers_rows_stay_as_they_are(runs, tmp_path):
    made_up.write_study(tmp_path / "paper", seeds=4, trials=12)
    write_report([tmp_path / "paper"], tmp_path / "alone")
    write_report([tmp_path / "paper", runs], tmp_path / "both")
    alone, both = ((tmp_path / name / "results.md").read_text() for name in ("alone", "both"))
    assert "extended" not in alone
    assert alone.partition("\n## How to read this")[0] == both.partition("\n## Beyond the paper")[0]
    tables = [path.name for path in (tmp_path / "alone/tables").iterdir() if not path.name.startswith("provenance")]
    assert len(tables) > 10
    for name in tables:
        assert (tmp_path / "alone/tables" / name).read_bytes() == (tmp_path / "both/tables" / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("selected-model+extended/declaration", {"sha256": "0" * 64}, "it is not as it was written"),
        ("selected-model+extended/run-0001", {"declaration": "0" * 64}, "some runs do not carry its digest"),
        ("selected-model+extended/trial-0002", {"objective": 0.99}, "from other trials than those found"),
    ],
)
def test_what_does_not_follow_the_declaration_is_named(runs, tmp_path, name, change, problem):
    folder = runs / "aifb-extended"
    path = folder / f"records/{name}.json"
    record = read_record(path) | change
    path.unlink()
    write_record(folder, record)
    write_report([runs], tmp_path / "out")
    text = section(tmp_path / "out/results.md")
    assert "cannot be confirmed" in text
    assert problem in text


@pytest.mark.parametrize("declared", [None, {}, {"selected": 3}, []])
def test_a_damaged_declaration_is_left_out(runs, declared):
    folder = runs / "aifb-extended"
    path = folder / "records/selected-model+extended/declaration.json"
    record = read_record(path) | {"declared": declared}
    path.unlink()
    write_record(folder, record)
    (study,), notices = load_studies([runs])
    assert study.declarations == []
    assert any("declaration.json" in notice for notice in notices)
