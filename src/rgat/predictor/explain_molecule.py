"""Explain a molecule's prediction by the attention and the effect of each atom and bond, and draw them."""

from __future__ import annotations

import dataclasses
import html
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data import Target
from rgat.data.files import write_atomically
from rgat.data.molecules.descriptors import describe
from rgat.data.molecules.smiles import parse_smiles, rdkit, store_molecules
from rgat.graph import RelationalGraph
from rgat.predictor.attention_flow import flow, layer_attention
from rgat.predictor.ensemble import Ensemble, MoleculeVocabulary
from rgat.predictor.explain_node import Explanation

SHADES = ("effect", "attention")
# RGB: purple and green can be told apart with colour-blindness.
LOWERS, RAISES, ATTENTION = (0.48, 0.2, 0.58), (0.0, 0.53, 0.22), (0.85, 0.45, 0.0)


@dataclasses.dataclass(frozen=True)
class MoleculeExplanation(Explanation):
    """Attention and effects of atoms and bonds, in RDKit's order."""

    smiles: str
    task: str
    probability: float  # of a positive result or a class; the number of a regression
    atoms: list[str]  # their symbols
    atom_attention: list[float]  # share of the attention that starts at each atom
    atom_effect: list[float]  # change of the probability when the atom loses its features and its bonds
    bonds: list[tuple[int, int, str]]  # first atom, second atom and type of each
    bond_attention: list[float]  # share of the attention that starts with each bond
    bond_effect: list[float]  # change of the probability when the bond is removed
    kind: str = "binary"  # of the target
    unit: str = ""  # of a number
    descriptor_effect: float | None = None  # change when all descriptors are replaced by their training means

    def amount(self, value: float, change: bool = False) -> str:
        """Return a prediction, or a change of it, as text: in percent, or as a number."""
        if self.kind == "regression":
            return f"{value:+.4g}" if change else f"{value:.4g}{f' {self.unit}' if self.unit else ''}"
        return f"{100 * value:+.1f}" if change else f"{value:.1%}"

    @property
    def meaning(self) -> str:
        """What the prediction is."""
        words = {"regression": "predicted value", "multi-class": "probability", "multi-label": "probability"}
        return words.get(self.kind, "probability of a positive result")

    def save(self, path: str | PathLike[str]) -> None:
        """Write a page with both drawings (.html), a drawing of the effects (.svg) or, to any other file, JSON."""
        suffix = Path(path).suffix
        if suffix in (".svg", ".html"):
            write_atomically(path, (self.svg() if suffix == ".svg" else self.page()).encode())
        else:
            super().save(path)

    def svg(self, shade: str = "effect", width: int = 460, height: int = 360) -> str:
        """Draw the structure with atoms and bonds shaded by "effect" or "attention"."""
        check_word("shade", shade, SHADES)
        rdkit()
        from rdkit.Chem.Draw import rdMolDraw2D

        molecule = parse_smiles(self.smiles, relaxed=True)
        drawing = rdMolDraw2D.MolDraw2DSVG(width, height)
        options: Any = drawing.drawOptions()
        options.clearBackground, options.fillHighlights = False, True
        atoms, bonds = (_colours(getattr(self, f"{part}_{shade}"), shade) for part in ("atom", "bond"))
        prepared = rdMolDraw2D.PrepareMolForDrawing(molecule, kekulize=False)
        drawing.DrawMolecule(
            prepared,
            highlightAtoms=list(atoms),
            highlightAtomColors=atoms,
            highlightBonds=list(bonds),
            highlightBondColors=bonds,
        )
        drawing.FinishDrawing()
        text: str = drawing.GetDrawingText()
        return text[text.index("<svg") :]

    def named(self) -> list[tuple[str, float, float]]:
        """Return name, attention and effect of each atom and bond, largest effects first; atoms are numbered from 1."""
        atoms = [f"{symbol}{number}" for number, symbol in enumerate(self.atoms, 1)]
        names = [*atoms, *(f"{atoms[a]} - {atoms[b]}, {bond}" for a, b, bond in self.bonds)]
        attention, effect = self.atom_attention + self.bond_attention, self.atom_effect + self.bond_effect
        return sorted(zip(names, attention, effect, strict=True), key=lambda row: -abs(row[2]))

    def page(self) -> str:
        """Return a self-contained HTML page with both drawings and a table of their values."""
        template = Path(__file__).with_name("molecule.html").read_text()
        cells = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{attention:.1%}</td><td>{self.amount(effect, change=True)}</td></tr>"
            for name, attention, effect in self.named()
        )
        if self.descriptor_effect is not None:
            name = "all descriptors, if they were the means of the training molecules"
            cells += f"<tr><td>{name}</td><td>-</td><td>{self.amount(self.descriptor_effect, change=True)}</td></tr>"
        values = {key: html.escape(getattr(self, key)) for key in ("smiles", "task")}
        is_number = self.kind == "regression"
        scale = html.escape(f"in {self.unit}" if self.unit else "in its unit") if is_number else "points"
        values |= {"probability": html.escape(self.amount(self.probability)), "rows": cells, "meaning": self.meaning}
        values |= {"what": "value" if is_number else "probability", "scale": scale}
        values["for"] = "raises the value" if is_number else "evidence for it"
        values["against"] = "lowers the value" if is_number else "evidence against it"
        for key, value in (values | {shade: self.svg(shade) for shade in SHADES}).items():
            template = template.replace(f"<!--{key}-->", value)  # some occur twice
        return template


def _colours(values: list[float], shade: str) -> dict[int, tuple[float, float, float]]:
    """Return the colour of each atom or bond with a visible value, paler for smaller values."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest == 0:
        return {}
    colours = {}
    for number, value in enumerate(values):
        # An atom that raises the probability lowers it when it is removed.
        full = ATTENTION if shade == "attention" else RAISES if value < 0 else LOWERS
        strength = 0.85 * abs(value) / largest
        if strength > 0.03:
            colours[number] = tuple(1 - strength * (1 - part) for part in full)
    return colours  # type: ignore[return-value]


def explain_molecule(
    ensemble: Ensemble, vocabulary: MoleculeVocabulary, smiles: str, task: str | None = None
) -> MoleculeExplanation:
    """Return attention and effects of all atoms and bonds; by default for the task with the highest probability.

    With targets, the default is the first one; the name of a multi-class target stands for its most probable class.
    """
    if task is not None and not ensemble.targets:
        check_word("task", task, vocabulary.tasks)
    molecule = parse_smiles(smiles, relaxed=True, largest=vocabulary.keeps_largest) if smiles.strip() else None
    if molecule is None:
        raise ValueError(f'"{smiles}" cannot be read as SMILES')
    if vocabulary.keeps_largest and "." in smiles:  # drawings show what the model reads
        smiles = rdkit().MolToSmiles(molecule)
        molecule = parse_smiles(smiles, relaxed=True)
    store = store_molecules([molecule], vocabulary.self_loops)
    num_atoms, num_relations = len(store.x), store.num_relations
    graph = RelationalGraph(store.edge_index, store.edge_type, num_nodes=num_atoms, num_relations=num_relations)
    described = vocabulary.descriptors
    if described is not None:
        graph.graph_attr = described.standardise(describe([molecule], described.kind, described.properties)).float()
    source, target = graph.edge_index
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), str(bond.GetBondType()).lower()) for bond in molecule.GetBonds()
    ]
    bond_edges = [((source == a) & (target == b)) | ((source == b) & (target == a)) for a, b, _ in bonds]
    x, batch = _occlusions(store.x, graph, bond_edges)
    probabilities = ensemble.probabilities(ensemble.member_logits(x, batch))  # [1 + atoms + bonds, tasks]
    number = ensemble.output_of(probabilities[0], vocabulary.tasks, task)
    target = ensemble.target_of(number) or Target(vocabulary.tasks[number], "binary")
    effects = (probabilities[1:, number] - probabilities[0, number]).tolist()
    of_descriptors = None
    if graph.graph_attr is not None:
        plain = graph.with_edges(torch.arange(graph.num_edges))
        plain.graph_attr = torch.zeros_like(graph.graph_attr)  # the means, as they are standardised
        without = ensemble.probabilities(ensemble.member_logits(store.x, plain))[0, number]
        of_descriptors = float(without - probabilities[0, number])
    attention = flow(layer_attention(ensemble, store.x, graph), graph, torch.arange(num_atoms))
    return MoleculeExplanation(
        smiles=smiles,
        task=vocabulary.tasks[number],
        probability=float(probabilities[0, number]),
        atoms=[atom.GetSymbol() for atom in molecule.GetAtoms()],
        atom_attention=attention.own.index_add(0, source, attention.edges).tolist(),
        atom_effect=effects[:num_atoms],
        bonds=bonds,
        bond_attention=[float(attention.edges[edges].sum()) for edges in bond_edges],
        bond_effect=effects[num_atoms:],
        kind=target.kind,
        unit=target.unit,
        descriptor_effect=of_descriptors,
    )


def _occlusions(x: Tensor, graph: RelationalGraph, bond_edges: list[Tensor]) -> tuple[Tensor, RelationalGraph]:
    """Return a batch of the molecule, then without each atom's features and bonds, then without each bond."""
    source, target = graph.edge_index
    features, graphs = [x], [graph]
    for atom in range(len(x)):
        features.append(x.index_fill(0, torch.tensor([atom]), 0.0))
        graphs.append(graph.with_edges(((source != atom) & (target != atom)) | (source == target)))
    features += [x] * len(bond_edges)
    graphs += [graph.with_edges(~edges) for edges in bond_edges]
    return torch.cat(features), RelationalGraph.collate(graphs)
