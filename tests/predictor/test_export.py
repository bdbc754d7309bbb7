"""Export fitted models and run the programs: with onnxruntime, and with torch alone."""

import dataclasses
import sys

import numpy as np
import pytest
import torch

import rgat
from rgat.predictor.export import make_program
from rgat.predictor.predictor import parse_molecules

SMILES = ["CCO", "c1ccccc1C(=O)N", "C", "CC(=O)NC"]


def molecule_inputs(smiles):
    batch = parse_molecules(smiles, self_loops=True)
    edges, sizes = batch.edges.astype(np.int64), batch.sizes.astype(np.int64)
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    return {"x": batch.x.astype(np.float32), "edge_index": edges[:2], "edge_type": edges[2], "batch": numbers}


@pytest.fixture(scope="module")
def molecules():
    pytest.importorskip("rdkit", reason="molecules need rdkit")
    return rgat.fit("molecules", ensemble=2, hidden_channels=8, max_epochs=1, comparison=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_gives_the_predictions_of_molecules_in_batches_of_any_size(molecules, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    assert molecules.export(tmp_path / "model.onnx") <= 1e-5
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    assert session.get_modelmeta().custom_metadata_map["rgat.columns"].startswith('["amide", "acid"')
    for smiles in (SMILES, SMILES[2:3], SMILES * 5):
        probabilities, spread = session.run(["probabilities", "spread"], molecule_inputs(smiles))
        expected = molecules.predict(smiles)
        np.testing.assert_allclose(probabilities, expected.probabilities, atol=1e-5)
        np.testing.assert_allclose(spread, expected.spread, atol=1e-5)
        assert expected.spread.max() > 0
    given = molecule_inputs(SMILES[2:3])  # an atom without self-loops has no edges
    given |= {"edge_index": given["edge_index"][:, :0], "edge_type": given["edge_type"][:0]}
    edges = torch.from_numpy(given["edge_index"]), torch.from_numpy(given["edge_type"])
    alone = rgat.RelationalGraph(*edges, num_nodes=1, num_relations=5, batch=torch.zeros(1, dtype=torch.long))
    expected = molecules.probabilities(molecules.member_logits(torch.from_numpy(given["x"]), alone))
    np.testing.assert_allclose(session.run(["probabilities"], given)[0], expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_gives_the_predictions_of_nodes_with_other_edges(tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    model = rgat.fit("institute", hidden_channels=4, max_epochs=1, comparison=False)
    model.export(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    graph = model.data.graph
    for edges in (torch.arange(graph.num_edges), torch.arange(0, graph.num_edges, 3)):
        few = graph.with_edges(edges)
        given = {"edge_index": few.edge_index.numpy(), "edge_type": few.edge_type.numpy()}
        expected = model.probabilities(model.member_logits(None, few))
        np.testing.assert_allclose(session.run(["probabilities"], given)[0], expected, atol=1e-5)


@pytest.fixture(scope="module")
def one_member(molecules):
    return dataclasses.replace(molecules, members=molecules.members[:1])


def test_a_program_of_torch_export_needs_torch_alone(one_member, tmp_path):
    one_member.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert len(operators) > 10
    assert not [name for name in operators if "rgat" in name]
    given = [torch.from_numpy(array) for array in molecule_inputs(SMILES).values()]
    expected = one_member.predict(SMILES).probabilities
    np.testing.assert_allclose(program.module()(*given)[0].detach().numpy(), expected, atol=1e-5)


def test_numbers_classes_and_labels_are_exported(tmp_path):
    """The program is run as it is traced, which takes less time than tracing it."""
    pytest.importorskip("rdkit", reason="molecules need rdkit")
    rows = "".join(f"{'C' * n}O,{100.5 * n},{'abc'[n % 3]},{n % 2}\n" for n in range(1, 25))
    (tmp_path / "table.csv").write_text("smiles,solubility,phase,toxic\n" + rows)
    kinds = {"solubility": "regression", "phase": "multi-class", "toxic": "binary"}
    data = rgat.data.from_smiles(tmp_path / "table.csv", tasks=list(kinds), task=kinds)
    model = rgat.fit(data, ensemble=2, hidden_channels=4, max_epochs=1, comparison=False)
    assert model.targets
    program = make_program(model, model.vocabulary)
    smiles = ["CCO", "CCCCCO"]
    with torch.no_grad():
        found = program(*(torch.from_numpy(array) for array in molecule_inputs(smiles).values()))
    expected = model.predict(smiles)
    np.testing.assert_allclose(found[0], expected.probabilities, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], expected.spread, rtol=1e-4, atol=1e-4)


def test_models_with_descriptors_are_exported():
    pytest.importorskip("rdkit", reason="molecules need rdkit")
    model = rgat.fit("molecules", hidden_channels=4, max_epochs=1, comparison=False, descriptors="both")
    program, smiles = make_program(model, model.vocabulary), SMILES[:2]
    columns = parse_molecules(smiles, *model.vocabulary.reading).columns
    given = [torch.from_numpy(array) for array in (*molecule_inputs(smiles).values(), columns)]
    with torch.no_grad():
        found = program(*given)[0]
    np.testing.assert_allclose(found, model.predict(smiles).probabilities, atol=1e-5)


def test_what_cannot_be_exported_leaves_no_file(one_member, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"must be exported to a file that ends in \.onnx or \.pt2"):
        one_member.export(tmp_path / "model.bin")
    monkeypatch.setattr("rgat.predictor.export.LARGEST_DIFFERENCE", -1.0)
    with pytest.raises(ValueError, match=r"got a difference of .*; nothing was written"):
        one_member.export(tmp_path / "model.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'rgat\[onnx\]'"):
        one_member.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
