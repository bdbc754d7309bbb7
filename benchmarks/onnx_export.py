"""Export models to ONNX and compare what onnxruntime computes with the models, on all test examples.

Run with `python benchmarks/onnx_export.py`; it needs `rgat[rdf,molecules,onnx]` and the files of AIFB and Tox21. One
epoch of training is enough: the comparison does not depend on how good a model is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import rgat
from rgat.predictor import MoleculePredictor, NodePredictor
from rgat.predictor.predictor import parse_molecules


def node_difference(predictor: NodePredictor, session: Any) -> tuple[float, int]:
    graph = predictor.data.graph
    given = {"edge_index": graph.edge_index.numpy(), "edge_type": graph.edge_type.numpy()}
    (probabilities,) = session.run(["probabilities"], given)
    return np.abs(probabilities - predictor.probabilities(predictor.logits).numpy()).max(), graph.num_nodes


def molecule_difference(predictor: MoleculePredictor, session: Any, smiles: list[str]) -> float:
    worst = 0.0
    for start in range(0, len(smiles), 256):
        texts = smiles[start : start + 256]
        batch, expected = parse_molecules(texts, predictor.vocabulary.self_loops), predictor.predict(texts)
        edges, numbers = batch.edges.astype(np.int64), np.repeat(np.arange(len(batch.sizes)), batch.sizes)
        given = {"x": batch.x.astype(np.float32), "edge_index": edges[:2], "edge_type": edges[2], "batch": numbers}
        (probabilities,) = session.run(["probabilities"], given)
        worst = max(worst, np.abs(probabilities - expected.probabilities[batch.valid]).max())
    return worst


def main() -> None:
    for name in ("institute", "aifb", "tox21"):
        data = rgat.data.load(name)
        predictor = rgat.fit(data, comparison=False, max_epochs=1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            predictor.export(path)
            session, size = onnxruntime.InferenceSession(path), path.stat().st_size / 1e6
        if isinstance(predictor, NodePredictor):
            difference, count = node_difference(predictor, session)
            things = f"{count:,} nodes"
        else:
            smiles = [data.graph_names[i] for i in data.test.tolist()]
            difference, things = molecule_difference(predictor, session, smiles), f"{len(smiles):,} molecules"
        print(f"{name}: {things}, largest difference {difference:.1e}, {size:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
