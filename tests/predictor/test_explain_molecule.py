import json

import pytest


def test_atoms_and_bonds_of_a_molecule_are_explained_and_drawn(tmp_path, graph_model):
    explanation = graph_model.explain("c1ccccc1C(=O)NC", "amide")
    assert (len(explanation.atoms), len(explanation.bonds)) == (10, 10)
    assert sum(explanation.atom_attention) == pytest.approx(1)
    assert explanation.probability == pytest.approx(graph_model.predict_proba("c1ccccc1C(=O)NC")[0, 0], abs=1e-6)
    broken = graph_model.predict_proba("c1ccccc1C(=O)NC")[0, 0] + explanation.bond_effect[6]
    assert 0 <= broken <= 1
    for name in ("m.svg", "m.html", "m.json"):
        explanation.save(tmp_path / name)
    page = (tmp_path / "m.html").read_text()
    assert page.count("<svg") == 2
    assert page.count("<tr><td>") == 20
    assert "<!--rows-->" not in page
    assert (tmp_path / "m.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "m.json").read_text())["task"] == "amide"
    assert explanation.svg("attention") != explanation.svg("effect")
    single = graph_model.explain("C")
    assert (single.bonds, single.bond_effect) == ([], [])
    assert "<svg" in single.svg()
    for smiles, task, message in (("C(C", None, "cannot be read as SMILES"), ("C", "amid", 'did you mean "amide"')):
        with pytest.raises(ValueError, match=message):
            graph_model.explain(smiles, task)
    with pytest.raises(ValueError, match="`shade` must be"):
        explanation.svg("colour")
