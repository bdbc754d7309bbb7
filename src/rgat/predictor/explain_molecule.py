"""Which atoms and bonds the judgement of a molecule rests on: attention, and what happens without each."""

from __future__ import annotations

import dataclasses
import html
import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.checks import check_word
from rgat.data.files import write_atomically
from rgat.data.molecules.smiles import parse_smiles, rdkit, store_molecules
from rgat.graph import RelationalGraph
from rgat.predictor.attention import flow, layer_attention
from rgat.predictor.predictor import GraphModel

SHADES = ("effect", "attention")
# Purple lowers, green raises; these two stay apart for colour-blind eyes.
LOWERS, RAISES, ATTENDS = (0.48, 0.2, 0.58), (0.0, 0.53, 0.22), (0.85, 0.45, 0.0)


@dataclasses.dataclass(frozen=True)
class MoleculeExplanation:
    """Shares of attention and effects of atoms and bonds, in RDKit's order.

    Attributes:
        smiles: as given.
        task: what was judged.
        probability: of a positive result.
        atoms: their symbols.
        atom_attention: share of the information that starts at each atom.
        atom_effect: change of the probability when the atom loses its features and its bonds.
        bonds: first atom, second atom and type of each.
        bond_attention: share of the information that starts with each bond.
        bond_effect: change of the probability when the bond is taken away.
    """

    smiles: str
    task: str
    probability: float
    atoms: list[str]
    atom_attention: list[float]
    atom_effect: list[float]
    bonds: list[tuple[int, int, str]]
    bond_attention: list[float]
    bond_effect: list[float]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write JSON, an SVG drawing of the effects, or a page with both drawings, by the name of the file."""
        kind = Path(path).suffix
        if kind == ".svg":
            text = self.svg()
        elif kind == ".html":
            text = self.page()
        else:
            text = json.dumps(self.as_json(), indent=1)
        write_atomically(path, text.encode())

    def svg(self, shade: str = "effect", width: int = 460, height: int = 360) -> str:
        """The structure, atoms and bonds shaded by "effect" or "attention"."""
        check_word("shade", shade, SHADES)
        rdkit()
        from rdkit.Chem.Draw import rdMolDraw2D

        molecule = parse_smiles(self.smiles, relaxed=True)
        drawing = rdMolDraw2D.MolDraw2DSVG(width, height)
        options: Any = drawing.drawOptions()
        options.clearBackground = False
        options.fillHighlights = True
        values = (self.atom_effect, self.bond_effect)
        if shade == "attention":
            values = (self.atom_attention, self.bond_attention)
        atoms, bonds = (_colours(numbers, shade) for numbers in values)
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
        """Name, attention and effect of each atom and bond, the strongest effects first; atoms count from 1."""
        rows = [
            (f"{symbol}{place + 1}", attention, effect)
            for place, (symbol, attention, effect) in enumerate(
                zip(self.atoms, self.atom_attention, self.atom_effect, strict=True)
            )
        ]
        rows += [
            (f"{self.atoms[a]}{a + 1} - {self.atoms[b]}{b + 1}, {kind}", attention, effect)
            for (a, b, kind), attention, effect in zip(self.bonds, self.bond_attention, self.bond_effect, strict=True)
        ]
        return sorted(rows, key=lambda row: -abs(row[2]))

    def page(self) -> str:
        """One self-contained HTML page: both drawings and the tables behind them."""
        template = Path(__file__).with_name("molecule.html").read_text()
        cells = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{attention:.1%}</td><td>{100 * effect:+.1f}</td></tr>"
            for name, attention, effect in self.named()
        )
        for key, value in {
            "smiles": html.escape(self.smiles),
            "task": html.escape(self.task),
            "probability": f"{self.probability:.1%}",
            "effect": self.svg("effect"),
            "attention": self.svg("attention"),
            "rows": cells,
        }.items():
            template = template.replace(f"<!--{key}-->", value)
        return template


def _colours(values: list[float], shade: str) -> dict[int, tuple[float, float, float]]:
    """A colour for each place that matters, from white to full."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest == 0:
        return {}
    colours = {}
    for place, value in enumerate(values):
        # What raises the probability is what lowers it when taken away.
        full = ATTENDS if shade == "attention" else RAISES if value < 0 else LOWERS
        strength = 0.85 * abs(value) / largest
        if strength > 0.03:
            colours[place] = tuple(1 - strength * (1 - part) for part in full)
    return colours  # type: ignore[return-value]


def explain_molecule(fitted: GraphModel, smiles: str, task: str | None = None) -> MoleculeExplanation:
    """Attention and effects of all atoms and bonds; by default for the task with the highest probability."""
    if task is not None:
        check_word("task", task, fitted.tasks)
    molecule = parse_smiles(smiles, relaxed=True) if smiles.strip() else None
    if molecule is None:
        raise ValueError(f'"{smiles}" cannot be read as SMILES')
    store = store_molecules([molecule], fitted.self_loops)
    x, graph = (
        store.x,
        RelationalGraph(store.edge_index, store.edge_type, num_nodes=len(store.x), num_relations=store.num_relations),
    )
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), str(bond.GetBondType()).lower()) for bond in molecule.GetBonds()
    ]
    chances = fitted.judge(*_variants(x, graph, bonds))[0]
    number = int(np.argmax(chances[0])) if task is None else fitted.tasks.index(task)
    effects = chances[1:, number] - chances[0, number]
    attentions = layer_attention(fitted.members, x, graph)
    shares = flow(attentions, graph, torch.arange(len(x)))
    bond_attention = (
        torch.stack([_of_bond(shares.edges, graph, a, b) for a, b, _ in bonds]) if bonds else torch.zeros(0)
    )
    return MoleculeExplanation(
        smiles=smiles,
        task=fitted.tasks[number],
        probability=float(chances[0, number]),
        atoms=[atom.GetSymbol() for atom in molecule.GetAtoms()],
        atom_attention=_of_atoms(attentions, graph).tolist(),
        atom_effect=effects[: len(x)].tolist(),
        bonds=bonds,
        bond_attention=bond_attention.tolist(),
        bond_effect=effects[len(x) :].tolist(),
    )


def _variants(x: Tensor, graph: RelationalGraph, bonds: list[tuple[int, int, str]]) -> tuple[Tensor, RelationalGraph]:
    """One batch: the molecule; without each atom's features and bonds; without each bond."""
    source, target = graph.edge_index
    features, graphs = [x], [graph]
    for atom in range(len(x)):
        kept = ((source != atom) & (target != atom)) | (source == target)
        features.append(x.index_fill(0, torch.tensor([atom]), 0.0))
        graphs.append(graph.with_edges(kept.nonzero().squeeze(1)))
    for a, b, _ in bonds:
        kept = ~(((source == a) & (target == b)) | ((source == b) & (target == a)))
        features.append(x)
        graphs.append(graph.with_edges(kept.nonzero().squeeze(1)))
    return torch.cat(features), RelationalGraph.collate(graphs)


def _of_bond(shares: Tensor, graph: RelationalGraph, a: int, b: int) -> Tensor:
    source, target = graph.edge_index
    return shares[((source == a) & (target == b)) | ((source == b) & (target == a))].sum()


def _of_atoms(attentions: list[tuple[Tensor, Tensor]], graph: RelationalGraph) -> Tensor:
    """Share of the walks that start at each atom."""
    source, target = graph.edge_index
    total = torch.zeros(graph.num_nodes, dtype=torch.float64)
    for first, second in attentions:
        reach = torch.zeros_like(total).index_add_(0, source, second.double())
        total.index_add_(0, source, first.double() * reach[target])
    return total / total.sum().clamp(min=1e-300)
