import csv
import dataclasses
import json
import sys
from typing import NamedTuple

import pytest
from rich.console import Console

from rgat import cli
from rgat.data.synthetic.molecules import PATTERNS, molecule_set
from rgat.predictor import files as own_data
from rgat.predictor import load
from rgat.predictor.inspection import describe
from rgat.predictor.text import comparison_rows, node_rows, node_sentences, performance
from rgat.predictor.words import short


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def rgat(monkeypatch, capsys):
    """Return a function that runs the command line in this process, which saves seconds of start-up."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rgat", *map(str, arguments)])
        monkeypatch.setattr("rgat.cli.printing.console", Console(width=100))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


def unwrapped(text):
    """Return printed text without its line breaks."""
    return " ".join(text.split())


def test_a_knowledge_graph_from_files_to_predictions_and_reasons(tmp_path, files, rgat):
    graph, labels = files
    model = tmp_path / "model"
    person = "http://institute.example/person/59"
    train = ("train", "--rdf", graph, "--labels", labels, "--node-column", "person", "--label-column", "group")
    done = rgat(*train, "--out", model, "--epochs", 15, "--ensemble", 2)
    assert done.returncode == 0, done.stderr
    out = unwrapped(done.stdout)
    for words in (
        "48 nodes of 4 classes",
        "split: 38 train, 10 test",
        "majority vote",
        "FEAT",
        "RGCN",
        "95 % interval",
    ):
        assert words in out
    names = sorted(path.name.partition("-")[0] for path in model.iterdir())
    assert names == ["fit.json", "fitted", "fitted.json"]
    assert set(json.loads((model / "fitted.json").read_text())["provenance"]["sha256"]) == {graph.name, labels.name}
    done = rgat("predict", model, "--out", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert {row["class"] for row in rows} <= {"materials", "vision", "genetics", "climate"}
    done = rgat("predict", model, "--out", tmp_path / "p.nt", "--predicate", "http://x/group", "--node", person)
    assert (tmp_path / "p.nt").read_text().startswith(f"<{person}> <http://x/group> ")
    assert rgat("predict", model, "--node", person).stdout.count("person/59") == 1
    done = rgat("explain", model, "--node", person, "--html", tmp_path / "e.html", "--top", 5)
    assert done.returncode == 0, done.stderr
    assert "person/59 is" in done.stdout
    assert (tmp_path / "e.html").stat().st_size > 10_000
    explanation = json.loads(rgat("explain", model, "--node", person, "--json", "--top", 5).stdout)
    assert len(explanation["reasons"]) == 5
    assert "researches" in rgat("explain", model).stdout


def test_molecules_from_a_file_to_predictions_and_reasons(tmp_path, rgat):
    smiles, _, labels = molecule_set(200)
    table, model = tmp_path / "assays.csv", tmp_path / "model"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "smiles", *PATTERNS, "dose"])
        for number, (text, row) in enumerate(zip(smiles, labels.tolist(), strict=True)):
            writer.writerow([f"m{number}", text, *("" if value < 0 else value for value in row), len(text)])
    done = rgat("train", "--smiles", table, "--out", model)
    assert done.returncode == 2
    assert "column dose holds numbers other than 0 and 1" in done.stderr
    options = ("--epochs", 3, "--hidden", 16, "--tasks", "amide", "nitrogen-ring")
    done = rgat("train", "--smiles", table, "--threshold", "dose=12", *options, "--out", model, "--option", "heads=2")
    assert done.returncode == 0, done.stderr
    out = unwrapped(done.stdout)
    for words in ("task amide:", "task dose:", "ignored columns: name, acid", "logistic regression", "mean PR-AUC"):
        assert words in out
    (tmp_path / "new.smi").write_text("CCO\nnonsense\nCC(=O)NC\n")
    done = rgat("predict", model, "--smiles", tmp_path / "new.smi", "--out", tmp_path / "p.csv", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert "3 molecules written to" in unwrapped(done.stdout)
    assert "invalid SMILES, marked so: 1" in unwrapped(done.stdout)
    assert "0." in rgat("predict", model, "--smiles", "CCO").stdout
    done = rgat("explain", model, "--smiles", "CC(=O)NC", "--task", "amide", "--html", tmp_path / "m.html")
    assert done.returncode == 0, done.stderr
    assert "C2 - O3, double" in done.stdout
    assert (tmp_path / "m.html").read_text().count("<svg") == 2


def test_one_option_takes_several_tasks():
    words = ["--tasks", "A", "B", "--out", "m", "--tasks", "C"]
    assert cli._repeat_option("--tasks", words) == ["--tasks", "A", "--tasks", "B", "--out", "m", "--tasks", "C"]
    assert cli._repeat_option("--tasks", ["--tasks"]) == ["--tasks"]


def test_a_model_of_a_data_set_by_name_can_be_used_too(tmp_path, rgat):
    done = rgat("train", "planted-consensus", "--out", tmp_path / "m", "--epochs", 3)
    assert done.returncode == 0, done.stderr
    done = rgat("predict", tmp_path / "m", "--node", "verdict 3")
    assert "class" in done.stdout
    assert load(tmp_path / "m").config["max_epochs"] == 3


GOOD = "".join(
    f"<http://x/{node}> <http://x/p> <http://x/{end}> .\n" for node, end in zip("abcdef", "oooppp", strict=True)
)
LABELS = "node\tclass\n" + "".join(f"http://x/{node}\t{name}\n" for node, name in zip("abcdef", "rrrsss", strict=True))


@pytest.mark.parametrize(
    ("graph", "labels", "message"),
    [
        (
            GOOD,
            LABELS.replace("x/a", "y/a"),
            "line 2: node http://y/a is not in the graph, which has nodes such as <http://x/p> (1 of 6 labels unknown)",
        ),
        (GOOD, LABELS.replace("s\n", "r\n"), "two classes or more, got one only"),
        (GOOD, LABELS[: -2 * len("http://x/e\ts\n")], "2 labelled nodes or more to learn from, got 1"),
        (GOOD, "node\tclass\n", "some nodes must have labels"),
        (GOOD, LABELS + "http://x/a\ts\n", 'is "s" here but "r" in'),
        ("", LABELS, "the graph must have edges, got none"),
        (b"\x00\xff\xfe rubbish \x80\n", LABELS, "graph.nt"),
        (GOOD, LABELS.replace("\t", ";"), "its fields seem to be separated by semicolons"),
        (GOOD, LABELS.replace("r\n", "r\u00e9\n").encode("latin-1"), "must be UTF-8 text"),
    ],
)
def test_bad_graphs_and_labels_are_one_sentence_and_exit_code_2(tmp_path, rgat, graph, labels, message):
    for name, content in (("graph.nt", graph), ("labels.tsv", labels)):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    words = ("--rdf", tmp_path / "graph.nt", "--labels", tmp_path / "labels.tsv", "--out", tmp_path / "model")
    assert_refused(rgat("train", *words), message, tmp_path)


def assert_refused(done, message, folder):
    """Check for one sentence, exit code 2, and no model folder."""
    assert done.returncode == 2
    assert message in unwrapped(done.stderr)
    assert done.stderr.startswith("rgat: ")
    assert done.stderr.count("\n") == 1
    assert not (folder / "model").exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("smiles,a\n" + "CC,1\n" * 20, "task a must have a 0 and a 1 among"),
        (
            "smiles,a,b\n" + "".join(f"{'C' * n}O,{n % 2},\n" for n in range(1, 20)),
            "column b must hold some values to learn, got none",
        ),
        (
            "smiles;a\nCC;1\n",
            "one column must be called smiles, got smiles;a; name it: `smiles_column`; its fields seem",
        ),
        ("smiles,a\n", "must have rows"),
        ("smiles,a\nCC,1,2\n", "line 2: must have 2 fields as the header has, got 3"),
        ("smiles,a\nCC\u00e9,1\n".encode("latin-1"), "must be UTF-8 text"),
        ("", "must begin with a line of column names"),
    ],
)
def test_bad_tables_of_molecules_are_one_sentence_and_exit_code_2(tmp_path, rgat, table, message):
    path = tmp_path / "m.csv"
    path.write_bytes(table if isinstance(table, bytes) else table.encode())
    assert_refused(rgat("train", "--smiles", path, "--out", tmp_path / "model"), message, tmp_path)


def test_labels_by_a_predicate_leave_the_graph_with_their_inverses(tmp_path):
    path = tmp_path / "g.ttl"
    people = "".join(
        f"x:{node} x:in x:{name}; x:p x:{node}{node} .\n" for node, name in zip("abcd", "rrss", strict=True)
    )
    path.write_text(f"@prefix x: <http://x/> .\n{people}x:r x:has x:a . x:s x:has x:a .\n")
    data = own_data.read(None, rdf=[path], label_predicate="http://x/in")
    assert data.classes == ("<http://x/r>", "<http://x/s>")
    assert [name for name in data.relation_names if "inverse" not in name] == ["<http://x/has>", "<http://x/p>", "self"]
    assert data.provenance["edges"] == 5  # s has a stays: a is not in s
    with pytest.raises(ValueError, match="must be a predicate of the graph, got <http://x/within>"):
        own_data.read(None, rdf=[path], label_predicate="http://x/within")
    path.write_text(path.read_text() + "x:a x:in x:s .\n")
    with pytest.raises(ValueError, match="must have one value of <http://x/in>, got"):
        own_data.read(None, rdf=[path], label_predicate="http://x/in")


def test_questions_that_do_not_fit_are_refused(tmp_path, files, node_model, graph_model):
    graph, labels = files
    for options, message in (
        ({}, "one of a data set's name, --rdf and --smiles must be given"),
        ({"rdf": [graph]}, "classes of some nodes must be given"),
        ({"rdf": [graph], "labels": labels, "label_predicate": "x"}, "got both"),
        ({"rdf": [graph], "labels": labels, "relaxed": True}, "--relaxed must come with --smiles, got --rdf"),
        ({"smiles": labels, "labels": labels}, "--labels must come with --rdf, got --smiles; leave it out"),
        ({"smiles": labels, "drop_predicates": ("x",)}, "--drop must come with --rdf, got --smiles"),
    ):
        with pytest.raises(ValueError, match=message):
            own_data.read(None, **options)
    with pytest.raises(ValueError, match="COLUMN=VALUE"):
        own_data.read_thresholds(["dose"])
    with pytest.raises(ValueError, match="cannot be read"):
        own_data.read_nodes([], tmp_path / "none")
    (tmp_path / "nodes").write_text("a\n\n b\n")
    assert own_data.read_nodes(["c"], tmp_path / "nodes") == ["c", "a", "b"]
    assert own_data.read_nodes([], None) is None
    for model, options, message in (
        (node_model, {"smiles": "CC"}, "this is a model of the nodes of a graph"),
        (node_model, {"resume": True}, "--resume must be left out here: it is for a file of molecules"),
        (node_model, {"node": ["a"], "kind": "b"}, "--type must be left out here: it is for all nodes"),
        (graph_model, {"smiles": "CC", "kind": "b"}, "--type must be left out here"),
        (graph_model, {}, "this is a model of molecules"),
        (graph_model, {"smiles": "none.smi"}, "must be an existing file"),
        (graph_model, {"smiles": "x x"}, "and is neither"),
        (graph_model, {"smiles": str(labels)}, "must go to a file"),
    ):
        with pytest.raises(ValueError, match=message):
            own_data.predict(model, None, **options)
    for model, options, message in (
        (node_model, {"smiles": "CC"}, "this is a model of the nodes of a graph"),
        (graph_model, {}, "this is a model of molecules"),
        (graph_model, {"smiles": "CC", "node": "a"}, "--node must be left out here"),
        (graph_model, {"smiles": "CC", "by": "effect"}, "--by must be left out here"),
        (node_model, {"task": "a"}, r"`task` \(--task\) must be left out: this model predicts one class"),
        (graph_model, {"smiles": "CC", "page": "m.pdf"}, r"ends in \.html"),
    ):
        with pytest.raises(ValueError, match=message):
            own_data.explain(model, **options)
    with pytest.raises(ValueError, match="`by` must be"):
        own_data.explain(node_model, by="size")


def test_a_leak_is_warned_of_before_training(tmp_path, files):
    rows = [line.split("\t") for line in files[1].read_text().splitlines()[1:]]
    graph = tmp_path / "leak.nt"
    leak = "".join(f"<{node}> <http://x/in> <http://x/{name}> .\n" for node, name in rows)
    graph.write_text(files[0].read_text() + leak)
    lines = describe(own_data.read(None, rdf=[graph], labels=files[1]))
    assert [line for line in lines if line.startswith("warning: <http://x/in> alone determines the class of 100%")]
    lines = describe(own_data.read(None, rdf=[graph], labels=files[1], drop_predicates=["http://x/in"]))
    assert not [line for line in lines if line.startswith("warning")]


def test_names_rows_and_sentences_for_a_terminal(node_model):
    assert short("<http://x.org/a/b#Name>") == "Name"
    assert short("<http://x.org/person/3>") == "person/3"
    assert short("inverse of <http://x.org/p>") == "inverse of p"
    assert short('"a / b"^^<http://x/string>') == '"a / b"'
    assert short("case 3") == "case 3"
    rows, notes = comparison_rows(node_model)
    assert rows[0][0] == "additive WIRGAT, 2 members"
    assert all(note.startswith("The model rests most on ") for note in notes)
    assert performance(node_model)[0].startswith("held-out performance: accuracy ")
    person = "http://institute.example/person/3"
    explanation = node_model.explain(person, top=4, by="effect")
    columns, rows = node_rows(explanation)
    sizes = [abs(float(row[columns.index("log-odds")])) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    every = node_model.explain(person, top=1000)  # the largest effects of all that were tried, not of the strongest few
    assert explanation.reasons[0].log_odds == max((r.log_odds for r in every.reasons), key=abs)
    sentences = " ".join(node_sentences(dataclasses.replace(explanation, choice=0.01, agreement=0.9)))
    assert "the model does not choose among edges here" in sentences
    assert "is a good guide" not in sentences
    assert "is a good guide" in " ".join(node_sentences(dataclasses.replace(explanation, choice=0.4, agreement=0.9)))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("learning_rate=abc", "`learning_rate` must be a finite number, got"),
        ("batch_norm=foo", "`batch_norm` must be true or false, got"),
        ("batch_size=foo", "`batch_size` must be an integer of at least 1"),
        ("autocast=foo", "`autocast` must be true or false"),
        ("class_weights=foo", '`class_weights` must be "balanced", "none" or "auto", got "foo"'),
        ("foo=1", "`option` must be"),
    ],
)
def test_options_of_a_wrong_kind_are_refused(tmp_path, rgat, files, option, message):
    own = ("--rdf", files[0], "--labels", files[1])
    for data in (("institute",), own):
        done = rgat("train", *data, "--out", tmp_path / "model", "--option", option)
        assert done.returncode == 2
        assert message in unwrapped(done.stderr)
    assert not (tmp_path / "model").exists()


def test_names_with_brackets_are_printed_as_they_are(tmp_path, rgat, graph_model, files):
    graph_model.save(tmp_path / "model")
    done = rgat("explain", tmp_path / "model", "--smiles", "c1cc[nH]c1")
    assert "c1cc[nH]c1: " in done.stdout
    table = tmp_path / "a.csv"
    table.write_text("smiles\nCC\n")
    done = rgat("predict", tmp_path / "model", "--smiles", table, "--out", table)
    assert done.returncode == 2
    assert "must not overwrite their molecules" in unwrapped(done.stderr)
    assert table.read_text() == "smiles\nCC\n"
    done = rgat("predict", tmp_path / "model", "--smiles", "CC", "--out", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    done = rgat("train", "institute", "--out", table)
    assert done.returncode == 2
    assert "must be a folder that can be written" in unwrapped(done.stderr)


def test_a_data_set_by_name_is_compared_too(tmp_path, rgat):
    done = rgat("train", "institute", "--out", tmp_path / "model", "--epochs", 3, "--model", "additive WIRGAT")
    assert done.returncode == 0, done.stderr
    for words in ("constant attention", "majority vote", "FEAT", "RGCN", "95 % interval"):
        assert words in unwrapped(done.stdout)
    done = rgat("train", "institute", "--out", tmp_path / "other", "--labels", "labels.tsv")
    assert done.returncode == 2
    assert "--labels must come with --rdf, got the name of a data set" in unwrapped(done.stderr)


def test_a_training_on_files_of_ones_own_resumes_on_request_alone(tmp_path, files, rgat):
    line = ("train", "--rdf", files[0], "--labels", files[1], "--out", tmp_path / "m", "--no-comparison", "--epochs")
    done = rgat(*line, 1)
    assert done.returncode == 0, done.stderr
    assert "Best epoch by cross-validation: 1 of 1." in unwrapped(done.stdout)
    done = rgat(*line, 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert "must not hold a model or an unfinished training, but does; continue it with --resume" in unwrapped(
        done.stderr
    )
    assert rgat(*line, 2, "--resume").returncode == 0
    assert load(tmp_path / "m").config["max_epochs"] == 2


def test_labels_of_unknown_nodes_are_counted(tmp_path, files):
    labels = tmp_path / "labels.tsv"
    labels.write_text(files[1].read_text() + "http://x/nobody\tvision\n")
    lines = describe(own_data.read(None, rdf=[files[0]], labels=labels, skip_unknown=True))
    assert "skipped: 1 label of nodes that are not in the graph" in lines


def test_a_file_without_molecules_and_an_impossible_seed_are_refused(tmp_path, files, rgat, graph_model):
    (tmp_path / "none.smi").write_text("")
    with pytest.raises(ValueError, match="must hold at least one molecule, got none"):
        own_data.predict(graph_model, tmp_path / "p.csv", smiles=str(tmp_path / "none.smi"))
    assert not list(tmp_path.glob("p.csv*"))
    graph, labels = files
    for data in (("--rdf", graph, "--labels", labels), ("institute",)):
        done = rgat("train", *data, "--out", tmp_path / "m", "--seed", "-1")
        assert done.returncode == 2
        assert "must be a whole number from 0" in unwrapped(done.stderr)


def test_a_one_hot_model_notes_that_it_does_not_use_new_triples(tmp_path, files, node_model):
    predictions, notes = own_data.predict(node_model, None, rdf=[files[0]])
    assert len(predictions)
    assert any("the triples of the files only select the nodes to predict" in note for note in notes)


def test_a_long_smiles_is_no_file_and_options_that_say_nothing_are_refused(
    tmp_path, files, rgat, node_model, graph_model
):
    predictions, _ = own_data.predict(graph_model, None, smiles="C" * 300)
    assert len(predictions) == 1
    for function, arguments, message in (
        (own_data.read_thresholds, (["a=nan"],), "COLUMN=VALUE with a number"),
        (own_data.read_thresholds, (["a=1", "a=2"],), "must have one threshold, got 1 and 2 for a"),
        (own_data.predict, (node_model, tmp_path / "p.csv"), "--predicate must be left out here"),
    ):
        options = {"predicate": "http://x/p"} if function is own_data.predict else {}
        with pytest.raises(ValueError, match=message):
            function(*arguments, **options)
    with pytest.raises(ValueError, match="--by must be left out here: it is for the edges of a --node"):
        own_data.explain(node_model, by="effect")
    (tmp_path / "nodes").write_text("\n")
    with pytest.raises(ValueError, match="must name at least one node"):
        own_data.read_nodes([], tmp_path / "nodes")
    (tmp_path / "m.smi").write_text("CC\n")
    with pytest.raises(ValueError, match="has no columns"):
        own_data.predict(graph_model, tmp_path / "p.csv", smiles=str(tmp_path / "m.smi"), smiles_column="a")
    _, labels = files
    line = ("--rdf", tmp_path / "missing.nt", "--labels", labels, "--out", tmp_path / "m", "--option", "a=1")
    done = rgat("train", *line)
    assert done.returncode == 2
    assert "`option`" in unwrapped(done.stderr)  # and not that the file is missing: options are looked at first


def test_a_store_trains_the_same_model_as_its_dump(tmp_path, files, rgat):
    graph, labels = files
    assert rgat("data", "convert", graph, tmp_path / "plain").returncode == 0
    assert rgat("data", "convert", graph, tmp_path / "labelled", "--labels", labels).returncode == 0
    quick = ("--epochs", 5, "--no-comparison")
    for name, source in (
        ("dump", ("--rdf", graph, "--labels", labels)),
        ("plain", ("--rdf", tmp_path / "plain", "--labels", labels)),
        ("labelled", ("--rdf", tmp_path / "labelled")),
    ):
        done = rgat("train", *source, *quick, "--out", tmp_path / f"model-{name}")
        assert done.returncode == 0, done.stderr
        assert rgat("predict", tmp_path / f"model-{name}", "--out", tmp_path / f"{name}.csv").returncode == 0
    expected = (tmp_path / "dump.csv").read_text()
    assert expected == (tmp_path / "plain.csv").read_text() == (tmp_path / "labelled.csv").read_text()
    record = json.loads((tmp_path / "model-plain" / "fitted.json").read_text())
    assert set(record["provenance"]["sha256"]) == {"store.json", labels.name}
    for wrong, message in (
        ((), "classes of some nodes must be given"),
        (("--labels", labels, "--drop", "http://x/p"), "give --drop to `rgat data convert`"),
        (("--labels", labels, "--rdf", graph), "a store must be given alone"),
    ):
        done = rgat("train", "--rdf", tmp_path / "plain", *wrong, "--out", tmp_path / "other")
        assert done.returncode == 2
        assert message in done.stderr
