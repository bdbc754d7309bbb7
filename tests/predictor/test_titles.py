"""Where the graph has an `rdfs:label`, it stands beside the name in all output."""

import csv

import pytest
from helpers_rdf import EX

import rgat
from rgat.data import from_rdf
from rgat.data.rdf.labels import RDFS_LABEL, choose_titles
from rgat.predictor.explorer import write_explorer
from rgat.predictor.text import class_tables, explanation_table, node_rows, node_sentences, prediction_rows
from rgat.predictor.words import titled


@pytest.fixture(scope="module", params=[(), ("types", "literals")], ids=["nodes", "features"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("titles")
    lines = [f"<{EX}n{i}> <{EX}born> <{EX}city{i % 2}>" for i in range(20)]
    lines += [f'<{EX}n{i}> {RDFS_LABEL} "Person {i}"@en' for i in range(20)]
    lines += [f'<{EX}city{i}> {RDFS_LABEL} "{name}"' for i, name in enumerate(("Rome", "Oslo"))]
    lines += [f'<{EX}born> {RDFS_LABEL} "place of birth"', f'<{EX}red> {RDFS_LABEL} "the red ones"@en']
    (folder / "g.nt").write_text("".join(f"{line} .\n" for line in lines))
    rows = "".join(f"{EX}n{i}\t{EX}{('red', 'blue')[i % 2]}\n" for i in range(16))
    (folder / "l.tsv").write_text("node\tclass\n" + rows)
    data = from_rdf(folder / "g.nt", folder / "l.tsv", shares=(0.75, 0.0), features=request.param)
    fitted = rgat.fit(data, max_epochs=5, comparison=False)
    fitted.save(folder / "model")
    return rgat.load(folder / "model")


def test_titles_stand_beside_names_in_predictions(model, tmp_path):
    predictions = model.predict([f"{EX}n18"])
    row = prediction_rows(predictions)[1][0]
    assert row[0] == 'n18 "Person 18"'
    predictions.save(tmp_path / "p.csv")
    header, cells = csv.reader((tmp_path / "p.csv").read_text().splitlines())
    found = dict(zip(header, cells, strict=True))
    assert found["node label"] == "Person 18"
    assert found["class label"] == ("the red ones" if found["class"].endswith("red") else "")
    assert cells[0] == f"<{EX}n18>", "names stay as they are"


def test_titles_stand_beside_names_in_explanations(model, tmp_path):
    explanation = model.explain(f"{EX}n3")
    assert node_sentences(explanation)[0].startswith('n3 "Person 3" is ')
    rows = node_rows(explanation)[1]
    assert any(row[:2] == ('inverse of born "place of birth"', 'city1 "Oslo"') for row in rows)
    assert explanation.as_json()["titles"][f"<{EX}n3>"] == "Person 3"
    known = {name.removeprefix("inverse of ") for name in explanation.names()}
    assert {name for name in explanation.titles if name not in known} <= {f"<{name}>" for name in known}
    relations = explanation_table(model.explain(), 5, wide=True)[2]
    assert 'born "place of birth"' in [row[0] for row in relations]
    write_explorer(model, tmp_path / "e.html", f"{EX}n3")
    assert r"n3 \"Person 3\"" in (tmp_path / "e.html").read_text()


def test_titles_stand_beside_classes(model):
    assert any('red "the red ones"' in cell for _, _, rows in class_tables(model) for row in rows for cell in row)


def test_a_title_in_english_or_without_language_comes_first():
    of_a = [("<a>", text) for text in ('"Rom"@de', '"Rome"@en', '"Roma"@it')]
    titles = choose_titles([*of_a, ("<b>", '"Wien"@de'), ("<c>", "<d>")])
    assert titles == {"<a>": "Rome", "<b>": "Wien"}
    assert titled("<http://x.org/a>", {"<http://x.org/a>": "a"}) == "a", "a title that says nothing new is left out"


def test_a_graph_without_titles_has_tables_without_their_columns(node_model):
    assert "node label" not in node_model.predict().header()
