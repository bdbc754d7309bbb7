"""Every kind of target, for nodes and for molecules, from files to explanations, by Python and by the command line."""

import csv
import json
import math
import random
import sys
from functools import partial

import numpy as np
import pytest
from helpers_institute import write_institute
from rich.console import Console

import rgat
from rgat import cli
from rgat.baselines.targets import random_forest
from rgat.data import from_rdf, from_smiles
from rgat.predictor.streaming import predict_file
from rgat.predictor.target_text import target_tables
from rgat.predictor.text import comparison_rows, explanation_table, performance
from rgat.predictor.uncertainty_text import warning_sentences

QUICK = {"max_epochs": 2, "comparison": False, "model": "RGCN"}
COLUMNS = ("income (k)", "group", "senior", "skills")
KINDS = ["regression", "multi-class", "binary", "multi-label"]


def cells(number, group, generator):
    """Return a number, a class, a 0 or 1 and labels; a few are missing."""
    value = f"{group * 10 + generator.gauss(0, 1):.3f}" if number % 11 else ""
    labels = "|".join([f"s{group % 2}", *(["lead"] if number % 3 == 0 else [])])
    return [value, "abc"[group % 3] if number % 13 else "", str(int(number % 3 == 0)), labels if number % 17 else ""]


@pytest.fixture(scope="module")
def node_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    graph, labels = write_institute(folder)
    rows = [line.split("\t") for line in labels.read_text().splitlines()[1:]]
    groups, generator = sorted({group for _, group in rows}), random.Random(0)
    lines = [[node, *cells(n, groups.index(group), generator)] for n, (node, group) in enumerate(rows, 1)]
    (folder / "targets.tsv").write_text("\n".join("\t".join(row) for row in [["person", *COLUMNS], *lines]) + "\n")
    return graph, folder / "targets.tsv"


@pytest.fixture(scope="module")
def molecule_file(tmp_path_factory):
    path, generator = tmp_path_factory.mktemp("molecules") / "m.csv", random.Random(0)
    rows = []
    for number in range(1, 121):
        group = generator.randrange(4)
        rows.append(["C" * (1 + number // 4) + "NOFS"[group], *cells(number, group, generator)])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["smiles", *COLUMNS], *rows])
    return path


@pytest.fixture(scope="module")
def node_model(node_files, tmp_path_factory):
    data = from_rdf(*node_files, label_column=COLUMNS, features=(), shares=(0.75, 0.0))
    assert [target.kind for target in data.targets] == KINDS
    folder = tmp_path_factory.mktemp("model")
    rgat.fit(data, **QUICK | {"model": "additive WIRGAT"}, ensemble=2).save(folder)
    return rgat.load(folder)


@pytest.fixture(scope="module")
def molecule_model(molecule_file, tmp_path_factory):
    data = from_smiles(molecule_file, tasks=COLUMNS)
    assert [target.kind for target in data.targets] == KINDS
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rgat.predictor.evaluation.random_forest", partial(random_forest, num_trees=3))
        rgat.fit(data, max_epochs=2, hidden_channels=16, ensemble=2, class_weights="auto", descriptors="none").save(
            folder
        )
    return rgat.load(folder)


def check_report(model):
    report = model.report
    assert report["metric"] == "mean score"
    assert set(report["targets"]) == set(COLUMNS)
    numbers, group, senior, skills = (report["targets"][name] for name in COLUMNS)
    assert numbers["rmse"] >= numbers["mae"] > 0
    assert {"macro_f1", "balanced_accuracy", "average_precision"} <= group.keys() & senior.keys() & skills.keys()
    assert set(skills["labels"]) == {"lead", "s0", "s1"}
    assert [table[0].split()[0] for table in target_tables(model)] == ["regression", "multi-class", "binary"]
    assert "RMSE" in performance(model)[1]
    assert "mean absolute error" in performance(model)[1]
    json.dumps(report, allow_nan=False)


def check_predictions(predictions, count):
    assert predictions.of("income (k)").shape == (count,)
    assert set(predictions.of("group")) <= set("abc")
    assert set(predictions.of("senior")) <= {0, 1}
    assert predictions.of("skills").shape == (count, 3)
    places = [predictions.columns.index(f"group={name}") for name in "abc"]
    assert np.allclose(predictions.probabilities[:, places].sum(1), 1)
    assert len(predictions.header()) == len(predictions.rows()[0])
    assert {"group", "income (k)", "p(group=a)", "skills=lead", "income (k) spread"} <= set(predictions.header())


def test_nodes_of_all_kinds(node_model, tmp_path):
    check_report(node_model)
    predictions = node_model.predict()
    assert len(predictions) == 12
    check_predictions(predictions, 12)
    predictions.save(tmp_path / "p.csv")
    with pytest.raises(ValueError, match="must be of one target, got several"):
        predictions.save(tmp_path / "p.nt")
    node = predictions.names[0]
    number = node_model.explain(node, task="income (k)")
    assert (number.kind, number.unit, number.label) == ("regression", "k", None)
    assert number.probability == pytest.approx(predictions.of("income (k)")[0])
    assert number.reasons[0].effect == pytest.approx(number.reasons[0].log_odds * node_model.targets[0].scale, abs=1e-3)
    sentences, columns, rows, _ = explanation_table(number, 5, wide=True)
    assert "income (k) is" in sentences[0]
    assert {"effect, k", "deviations"} <= set(columns)
    assert rows
    assert node_model.explain(node, task="group").predicted.startswith("group=")
    assert node_model.explain(node, task="skills=lead").predicted == "skills=lead"
    labelled = "http://institute.example/person/3"
    assert node_model.explain(labelled, task="senior").label in ("yes", "no")
    assert node_model.explain(labelled, task="group").label in "abc"
    with pytest.raises(ValueError, match='must be "income'):
        node_model.explain(node, task="salary")
    ranked = node_model.explain()
    assert (ranked.target, ranked.unit) == ("income (k)", "k")
    assert all(effect >= 0 for effect in ranked.effect.values())  # absolute changes of a number
    assert "mean absolute change of income (k)" in explanation_table(ranked, 3, wide=True)[0][0]
    assert node_model.explain(task="senior").kind == "binary"
    assert node_model.explain(task="group").kind == "multi-class"


def test_molecules_of_all_kinds(molecule_model, tmp_path):
    check_report(molecule_model)
    weights = molecule_model.report["class_weights"]
    assert weights["chosen"] == molecule_model.config["class_weights"]
    assert weights["average_precision"][weights["chosen"]] == max(weights["average_precision"].values())
    names = [row[0] for row in comparison_rows(molecule_model)[0]]
    assert {"constant prediction", "random forest"} <= set(names)
    assert any("Class weights were chosen" in line for line in comparison_rows(molecule_model)[1])
    check_predictions(molecule_model.predict(["CCN", "CCCO"]), 2)
    invalid = molecule_model.predict(["C(C"])
    assert math.isnan(invalid.of("income (k)")[0])
    assert (invalid.of("group")[0], invalid.of("senior")[0]) == ("", -1)
    assert dict(zip(invalid.header(), invalid.rows()[0], strict=True))["problem"] == "cannot be read as SMILES"
    explanation = molecule_model.explain("CCO")
    assert (explanation.task, explanation.kind, explanation.unit) == ("income (k)", "regression", "k")
    assert explanation.probability == pytest.approx(molecule_model.predict("CCO").of("income (k)")[0], rel=1e-4)
    assert explanation_table(explanation, 3, wide=True)[1][-1] == "effect, k"
    assert molecule_model.explain("CCO", "group").kind == "multi-class"
    explanation.save(tmp_path / "m.html")
    page = (tmp_path / "m.html").read_text()
    assert "raises the value" in page
    assert "change of the value without it, in k" in page


def test_models_of_targets_are_served(node_model, molecule_model):
    from rgat.serve import Limits
    from rgat.serve.answers import make_answers

    for model in (node_model, molecule_model):
        columns = make_answers(model, Limits()).describe()["columns"]
        assert list(dict.fromkeys(column["kind"] for column in columns)) == [target.kind for target in model.targets]
    (row,) = make_answers(node_model, Limits()).predict([node_model.data.node_names[0]])["predictions"]
    assert row["probabilities"] == node_model.predict([row["node"]]).probabilities[0].tolist()


def test_models_of_targets_are_exported(molecule_model, tmp_path):
    molecule_model.export(tmp_path / "m.pt2")  # compares its outputs with the model's
    assert (tmp_path / "m.pt2").stat().st_size > 1000
    table = molecule_model.predict(["CCO"]).to_pandas()
    assert table["income (k)"].dtype == float


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs the command line in this process."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rgat", *map(str, arguments)])
        monkeypatch.setattr("rgat.cli.printing.console", Console(width=120))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), " ".join(out.split()), err

    return run


TRAIN = ("--epochs", 2, "--no-comparison")
OF_KIND = {
    "regression": ("income (k)", (), "regression targets on the test part"),
    "multi-class": ("group", (), "accuracy"),
    "binary": ("senior", ("--task", "senior=binary"), "ROC-AUC"),
    "multi-label": ("skills", ("--task", "multi-label"), "mean ROC-AUC"),
}


@pytest.mark.parametrize("kind", OF_KIND)
def test_nodes_by_the_command_line(node_files, tmp_path, run, kind):
    column, options, words = OF_KIND[kind]
    (graph, labels), model = node_files, tmp_path / "model"
    given = ("--rdf", graph, "--labels", labels, "--label-column", column, "--features", "identity", "--model", "RGCN")
    code, out, err = run("train", *given, *options, *TRAIN, "--out", model)
    assert code == 0, err
    assert words in out
    node = "http://institute.example/person/59"
    code, out, err = run("predict", model, "--node", node)
    assert code == 0, err
    assert out.count("person/59") >= 1
    assert run("predict", model, "--out", tmp_path / "p.nt")[0] == 0
    code, out, err = run("explain", model, "--node", node, "--html", tmp_path / "e.html")
    assert code == 0, err
    assert "person/59" in out
    page = (tmp_path / "e.html").read_text()
    assert ('"is_number": true' in page) == (kind == "regression")


@pytest.mark.parametrize("kind", ["regression", "multi-class", "multi-label"])
def test_molecules_by_the_command_line(molecule_file, tmp_path, run, kind):
    column, options, words = OF_KIND[kind]
    model = tmp_path / "model"
    given = ("--smiles", molecule_file, "--tasks", column, *options, "--hidden", 16, "--option", "heads=2")
    code, out, err = run("train", *given, *TRAIN, "--out", model)
    assert code == 0, err
    assert words in out
    assert f"target {column} ({kind})" in out
    new = "CCO"
    if kind == "multi-class":
        new = tmp_path / "new.smi"
        new.write_text("CCO\n")
    workers = ("--workers", 1) if kind == "multi-class" else ()
    code, _, err = run("predict", model, "--smiles", new, "--out", tmp_path / "p.csv", *workers)
    assert code == 0, err
    header = (tmp_path / "p.csv").read_text().splitlines()[0]
    assert {"regression": "income (k)", "multi-class": "group,p(a)", "multi-label": "lead,s0"}[kind] in header
    code, out, err = run("explain", model, "--smiles", "CCO", "--html", tmp_path / "e.html")
    assert code == 0, err
    assert "CCO:" in out


BAD = {
    "text among numbers": (["1.5", "2.5", "n/a?", "3"], r"line 4: y must be a number"),
    "constant": (["3.2"] * 12, "y must have different values to learn from in the training part, got only 3.2"),
    "one example": (["3.2"], "must have"),
    "all missing": ([""] * 12, "column y must hold some values to learn, got none"),
    "comma": (["1.5", '"1,5"', "3"], "with a decimal point"),
    "thousands": (["1.5", '"1,000"', "3"], "1,000 as 1000"),
    "unit": (["1.5", "3.2 mg", "3"], "y must be a number alone"),
    "infinite": (["1.5", "inf", "3"], "y must be a number that is finite"),
    "bound": (["1.5", ">10", "3"], "--censored"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused_in_one_sentence(tmp_path, run, name):
    column, words = BAD[name]
    graph, labels, table = tmp_path / "g.nt", tmp_path / "l.csv", tmp_path / "m.csv"
    graph.write_text("".join(f"<http://x/{n}> <http://x/p> <http://x/{n + 1}> .\n" for n in range(12)))
    labels.write_text("node,y\n" + "".join(f"http://x/{n},{cell}\n" for n, cell in enumerate(column)))
    table.write_text("smiles,y\n" + "".join(f"{'C' * (n + 1)},{cell}\n" for n, cell in enumerate(column)))
    commands = {
        "smiles": ("--smiles", table, "--tasks", "y", "--task", "regression"),
        "rdf": ("--rdf", graph, "--labels", labels, "--task", "regression"),
    }
    for kind, given in commands.items():
        code, _, err = run("train", *given, *TRAIN, "--out", tmp_path / kind)
        assert code == 2, kind
        assert words in err
        assert err.startswith("rgat: ")
        assert err.count("\n") == 1
        assert not (tmp_path / kind).exists()


def test_numbers_of_nodes_are_written_as_triples_and_bounds_are_learned(node_files, tmp_path, run):
    graph, labels = node_files
    bounded = tmp_path / "b.tsv"
    rows = [line.split("\t")[:2] for line in labels.read_text().splitlines()]
    sign = {3: ">", 5: "<"}
    bounded.write_text("".join(f"{a}\t{sign.get(n, '')}{b}\n" for n, (a, b) in enumerate(rows) if b))
    data = from_rdf(graph, bounded, features=(), shares=(0.75, 0.0), censored=True)
    assert (data.bounds != 0).sum() == 2
    model = rgat.fit(data, **QUICK)
    model.predict().save(tmp_path / "p.nt")
    first = (tmp_path / "p.nt").read_text().splitlines()[0]
    assert first.endswith("^^<http://www.w3.org/2001/XMLSchema#double> .")
    code, out, _ = run("train", "--rdf", graph, "--labels", bounded, "--censored", *TRAIN, "--out", tmp_path / "m")
    assert code == 0
    assert "2 bounds" in out


@pytest.mark.parametrize(("kind", "cell"), [("multi-class", "red"), ("multi-label", "a|b")])
def test_one_class_alone_is_refused(tmp_path, kind, cell):
    path = tmp_path / "m.csv"
    path.write_text("smiles,y\n" + "".join(f"{'C' * n},{cell}\n" for n in range(1, 20)))
    with pytest.raises(
        ValueError, match=r"y must have .* to learn from among the 15 known values .*, got the same in all"
    ):
        rgat.fit(from_smiles(path, tasks=["y"], task=kind))


def test_task_options_are_checked(tmp_path, run):
    for given, words in [
        (("--task", "a=regression", "--task", "binary"), 'COLUMN=KIND once for each column, got "binary"'),
        (("--task", "regresion"), 'did you mean "regression"?'),
    ]:
        code, _, err = run("train", "--smiles", tmp_path / "m.csv", *given, "--out", tmp_path / "m")
        assert (code, words in err) == (2, True)
    numbers = rgat.data.from_smiles(_numbers(tmp_path))
    with pytest.raises(ValueError, match="`class_weights` must be left out for numbers"):
        rgat.fit(numbers, class_weights="auto")


def _numbers(folder):
    path = folder / "n.csv"
    path.write_text("smiles,y\n" + "".join(f"{'C' * n},{n / 3:.2f}\n" for n in range(1, 30)))
    return path


def test_a_small_table_has_unbounded_intervals_and_is_saved(tmp_path):
    rows = [f"{'C' * (1 + n // 3)}{'NOF'[n % 3]},{n + 0.5}" for n in range(40)]
    (tmp_path / "m.csv").write_text("\n".join(["smiles,y", *rows]) + "\n")
    model = rgat.fit(from_smiles(tmp_path / "m.csv"), **QUICK)
    assert model.report["intervals"]["y"] == {"covered": 1.0, "width": None, "labels": 4}
    sentence = "of a coverage of 90% are unbounded: they need 9 held-out values, and there are fewer"
    assert f"intervals of y {sentence}" in performance(model)
    model.save(tmp_path / "model")
    predictions = rgat.load(tmp_path / "model").predict(["CCO"])
    assert predictions.intervals["y"].tolist() == [[-math.inf, math.inf]]
    assert warning_sentences(predictions)[0] == f"intervals {sentence}"
    assert warning_sentences(model.predict(["CCO"], coverage=0.5))[:1] != [f"intervals {sentence}"]
    for coverage, expected in ((None, (f"intervals {sentence}",)), (0.5, ())):
        done = predict_file(model, tmp_path / "m.csv", tmp_path / "p.csv", workers=1, coverage=coverage)
        assert done.unbounded == expected


def test_bounds_alone_are_not_enough(tmp_path):
    rows = [f"{'C' * (1 + n)}O,>{n + 0.5}" for n in range(30)]
    (tmp_path / "m.csv").write_text("\n".join(["smiles,y", *rows]) + "\n")
    with pytest.raises(ValueError, match="y must have 2 different values or more that are no bounds in the training"):
        rgat.fit(from_smiles(tmp_path / "m.csv", censored=True), **QUICK)


def test_the_command_line_chooses_class_weights_and_cross_validates_targets(molecule_file, tmp_path, rgat_here):
    quick = ["--epochs", 1, "--hidden", 8, "--no-comparison"]
    done = rgat_here(
        *("train", "--smiles", molecule_file, "--tasks", "senior", "--option", "class_weights=auto"),
        *("--out", tmp_path / "weights", *quick),
    )
    assert done.returncode == 0, done.stderr
    assert "Class weights were chosen by average precision on held-out examples" in done.stdout
    line = ["train", "--smiles", molecule_file, "--tasks", "group", "--folds", 2, *quick, "--out"]
    done = rgat_here(*line, tmp_path / "folds")
    assert done.returncode == 0, done.stderr
    assert "(mean and standard deviation over 2 folds:" in " ".join(done.stdout.split())
    refused = rgat_here(*line, tmp_path / "time", "--split", "time", "--split-column", "income (k)", "--skip-invalid")
    assert (refused.returncode, (tmp_path / "time" / "fitted.json").exists()) == (2, False)
