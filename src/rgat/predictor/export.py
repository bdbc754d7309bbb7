"""Write a fitted model as a program that runs without this package: ONNX, or a program of `torch.export`."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rgat.data import NodeData
from rgat.data.files import write_atomically
from rgat.graph import RelationalGraph
from rgat.nn.plain import PlainGraph, as_plain
from rgat.predictor.ensemble import Ensemble, MoleculeVocabulary
from rgat.version import __version__

LARGEST_DIFFERENCE = 1e-5  # of a probability that onnxruntime computes
OUTPUTS = ("probabilities", "spread")
OPSET = 20


class _Program(nn.Module):
    """All members of an ensemble and their calibration, from bare tensors to probabilities and their spread."""

    def __init__(self, ensemble: Ensemble, graph: RelationalGraph | None, num_nodes: int | None, one_hot: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList([as_plain(member, graph, not one_hot) for member in ensemble.members])
        self.calibrate, self.has_targets = ensemble.calibration.probabilities, bool(ensemble.targets)
        self.num_nodes, self.num_layers = num_nodes, ensemble.num_layers

    def _finish(self, logits: list[Tensor]) -> tuple[Tensor, Tensor]:
        stacked = torch.stack(logits)
        each = self.calibrate(stacked)
        return self.calibrate(stacked.mean(0)), (each - each.mean(0)).square().mean(0).sqrt()


class _NodeProgram(_Program):
    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> tuple[Tensor, Tensor]:
        graph = PlainGraph(edge_index, edge_type, x.shape[0])
        return self._finish([member(x, (graph,) * self.num_layers) for member in self.members])


class _FeaturelessProgram(_Program):
    def forward(self, edge_index: Tensor, edge_type: Tensor) -> tuple[Tensor, Tensor]:
        assert self.num_nodes is not None
        graph = PlainGraph(edge_index, edge_type, self.num_nodes)
        return self._finish([member(None, (graph,) * self.num_layers) for member in self.members])


class _GraphProgram(_Program):
    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        num_graphs: Any = batch.max().item() + 1  # `int()` would make a tracer fix it
        torch._check(num_graphs >= 1)  # type: ignore[no-untyped-call]
        return self._of_graphs(x, PlainGraph(edge_index, edge_type, x.shape[0], batch, num_graphs))

    def _of_graphs(self, x: Tensor, graph: PlainGraph) -> tuple[Tensor, Tensor]:
        logits = [member(x, graph) for member in self.members]
        return self._finish([each.squeeze(-1) for each in logits] if self.has_targets else logits)


class _DescribedProgram(_GraphProgram):
    standardise: Callable[[Tensor], Tensor]

    def forward(  # type: ignore[override]
        self, x: Tensor, edge_index: Tensor, edge_type: Tensor, batch: Tensor, descriptors: Tensor
    ) -> tuple[Tensor, Tensor]:
        described, size = self.standardise(descriptors).float(), (x.shape[0], descriptors.shape[0])
        return self._of_graphs(x, PlainGraph(edge_index, edge_type, size[0], batch, size[1], described))


def export(ensemble: Ensemble, data: NodeData | MoleculeVocabulary, path: str | PathLike[str]) -> float:
    """Write an ensemble to a file that ends in .onnx or .pt2; return how far its outputs are from ours at most.

    Inputs of the program are ``x`` (not of a model without node features), ``edge_index``, ``edge_type`` and, for
    molecules, ``batch`` and, where the model reads them, RDKit's ``descriptors``. Nothing is written if a probability
    differs by more than 1e-5, or a number by that share of the largest one.
    """
    path = Path(path)
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"{path}: a model must be exported to a file that ends in .onnx or .pt2")
    if path.suffix == ".onnx":
        _check_libraries()
    members = [copy.deepcopy(member).cpu() for member in ensemble.members]
    ensemble = Ensemble(members, ensemble.config, ensemble.calibration, ensemble.report)
    names, inputs, graph = _example(data)
    program = make_program(ensemble, data)
    with _quiet(), torch.no_grad():
        traced = torch.export.export(program, inputs, dynamic_shapes=_dynamic(names, inputs))
        if path.suffix == ".pt2":
            content = io.BytesIO()
            torch.export.save(traced, content)
            written, given = content.getvalue(), [out.numpy() for out in traced.module()(*inputs)]
        else:
            written = _to_onnx(traced, names, _describe(data))
            given = _run_onnx(written, dict(zip(names, inputs, strict=True)))
    x = inputs[0] if names[0] == "x" else None
    logits = ensemble.member_logits(x, graph)
    expected = (ensemble.probabilities(logits), ensemble.spread(logits))
    unit = expected[0].abs().amax(0).clamp(min=1)  # of numbers: relative to the largest one
    difference = max(
        float(((torch.from_numpy(g) - e) / unit).abs().max()) for g, e in zip(given, expected, strict=True)
    )
    if not difference <= LARGEST_DIFFERENCE:
        raise ValueError(
            f"{path}: exported probabilities must be within {LARGEST_DIFFERENCE:g} of this model's, got a difference "
            f"of {difference:.2g}; nothing was written"
        )
    write_atomically(path, written)
    return difference


def _check_libraries() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"exporting to ONNX needs onnx, onnxscript and onnxruntime ({error}); install them with `pip install "
            "'rgat[onnx]'`, or export to .pt2"
        ) from error


def make_program(ensemble: Ensemble, data: NodeData | MoleculeVocabulary) -> nn.Module:
    """Return the ensemble as a module of bare tensors, to be traced."""
    if not isinstance(data, NodeData):
        if data.descriptors is None:
            return _GraphProgram(ensemble, None, None, False)
        program = _DescribedProgram(ensemble, None, None, False)
        program.standardise = data.descriptors.standardise
        return program
    if data.x is not None:
        return _NodeProgram(ensemble, data.graph, None, False)
    one_hot = not hasattr(ensemble.members[0], "embedding")
    return _FeaturelessProgram(ensemble, data.graph, data.graph.num_nodes, one_hot)


def _example(data: NodeData | MoleculeVocabulary) -> tuple[list[str], tuple[Tensor, ...], RelationalGraph]:
    """Return the names of the inputs, inputs to trace and to compare with, and their graph."""
    if isinstance(data, NodeData):
        graph = data.graph
        fields = {"x": data.x, "edge_index": graph.edge_index, "edge_type": graph.edge_type}
        kept = {name: tensor for name, tensor in fields.items() if tensor is not None}
        return list(kept), tuple(kept.values()), graph
    generator = torch.Generator().manual_seed(0)  # made-up molecules: they need no parser
    batch, relations = torch.arange(24) // 6, len(data.relation_names)
    x = torch.randint(2, (len(batch), data.in_channels), generator=generator).float()
    inside = torch.randint(6, (2, 96), generator=generator) + 6 * torch.randint(4, (96,), generator=generator)
    types = torch.randint(relations, (96,), generator=generator)
    graph = RelationalGraph(inside, types, num_nodes=len(batch), num_relations=relations, batch=batch)
    names, inputs = ["x", "edge_index", "edge_type", "batch"], (x, graph.edge_index, graph.edge_type, batch)
    if data.descriptors is None:
        return names, inputs, graph
    about = data.descriptors
    columns = about.mean + about.scale * torch.randn(graph.num_graphs, about.channels, generator=generator)
    columns[0, 0] = torch.nan
    graph.graph_attr = about.standardise(columns).float()
    return [*names, "descriptors"], (*inputs, columns), graph


def _dynamic(names: list[str], inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """Let the numbers of nodes and edges vary where a program does not fix them."""
    return tuple(
        {tensor.dim() - 1 if name == "edge_index" else 0: torch.export.Dim.AUTO}
        for name, tensor in zip(names, inputs, strict=True)
    )


def _describe(data: NodeData | MoleculeVocabulary) -> dict[str, str]:
    """Return what the numbers of inputs and outputs mean."""
    columns = data.classes if isinstance(data, NodeData) else data.tasks
    about: dict[str, Any] = {"columns": list(columns), "relations": list(data.relation_names), "version": __version__}
    if not isinstance(data, NodeData) and data.descriptors is not None:
        about["descriptors"] = {"kind": data.descriptors.kind, "properties": list(data.descriptors.properties)}
    return {f"rgat.{name}": value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}


def _to_onnx(traced: Any, names: list[str], about: dict[str, str]) -> bytes:
    program = torch.onnx.export(
        traced, dynamo=True, input_names=names, output_names=OUTPUTS, opset_version=OPSET, verbose=False
    )
    assert program is not None
    program.model.metadata_props.update(about)
    content: bytes = program.model_proto.SerializeToString()
    return content


def _run_onnx(content: bytes, inputs: dict[str, Tensor]) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(list(OUTPUTS), {name: tensor.numpy() for name, tensor in inputs.items()})
    return outputs


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings of the exporter about itself from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
