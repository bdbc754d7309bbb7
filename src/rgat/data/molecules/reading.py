"""Parse the molecules of a table in chunks into one flat store, and note salts, stereo marks and repeated molecules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rgat.data.graph_store import GraphStore, concatenate
from rgat.data.molecules.smiles import largest_fragment, parse_smiles, rdkit
from rgat.data.tables import Table

FRAGMENTS = ("keep", "largest")
CHUNK = 4096  # RDKit molecules in memory at a time; they take several times the memory of their graphs


@dataclass
class Molecules:
    """The valid molecules of a table, in the order of their rows."""

    store: GraphStore
    rows: list[int] = field(default_factory=list)  # of the table
    names: list[str] = field(default_factory=list)  # SMILES as written or, where fragments were removed, canonical
    canonical: list[str] = field(default_factory=list)  # SMILES with stereo marks
    flat: list[str] = field(default_factory=list)  # SMILES without stereo marks: what the model tells apart
    num_mixtures: int = 0  # molecules of several fragments

    def repeats(self, labels: Tensor) -> dict[str, int]:
        """Count molecules in several rows and stereoisomers, and those among them with contradictory labels."""
        repeated, contradictory = count_repeats(self.canonical, labels)
        first = {name: row for row, name in reversed(list(enumerate(self.canonical)))}
        rows = sorted(first.values())  # one of each molecule
        isomers, of_isomers = count_repeats([self.flat[row] for row in rows], labels[rows])
        marked = sum(one != other for one, other in zip(self.canonical, self.flat, strict=True))
        counts = {"repeated_molecules": repeated, "contradictory_molecules": contradictory} if repeated else {}
        if marked:
            counts |= {"stereo_molecules": marked, "stereoisomers": isomers, "contradictory_isomers": of_isomers}
        return counts


def count_repeats(names: Sequence[str], labels: Tensor) -> tuple[int, int]:
    """Count the names of several rows, and those among them with a 0 and a 1 for the same task."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    repeated = [labels[group] for group in rows.values() if len(group) > 1]
    return len(repeated), sum(bool(((group == 0).any(0) & (group == 1).any(0)).any()) for group in repeated)


def read_molecules(
    table: Table, smiles: Sequence[str], store: Callable[[list[Any]], GraphStore], fragments: str, **options: bool
) -> Molecules:
    """Parse all rows; ``store`` makes graphs of molecules. Raise at an invalid SMILES unless ``skip_invalid``."""
    relaxed, skip_invalid = options.get("relaxed", False), options.get("skip_invalid", False)
    stores, found, invalid = [], Molecules(store([])), []
    for start in range(0, len(smiles), CHUNK):
        chunk = []
        for row, text in enumerate(smiles[start : start + CHUNK], start=start):
            molecule = parse_smiles(text, relaxed) if text else None
            if molecule is None:
                invalid.append(row)
                continue
            chunk.append(_note(found, row, text, molecule, fragments))
        stores.append(_compact(store(chunk)))
    if invalid and not skip_invalid:
        raise ValueError(
            f'{table.path}, line {table.lines[invalid[0]]}: "{smiles[invalid[0]]}" cannot be read as SMILES '
            f"({len(invalid)} of {len(smiles)} rows); pass `skip_invalid` (--skip-invalid) to leave them out, or "
            "`relaxed` (--relaxed) to accept unusual valences"
        )
    found.store = concatenate(stores) if stores else found.store
    return found


def _compact(store: GraphStore) -> GraphStore:
    """Return the store with atom features as int8, a quarter of the memory, if all are small integers."""
    small = store.x.to(torch.int8)
    return replace(store, x=small) if torch.equal(small.float(), store.x) else store


def _note(found: Molecules, row: int, text: str, molecule: Any, fragments: str) -> Any:
    """Add what is known of a molecule, and return it, or its largest fragment."""
    chem = rdkit()
    if "." in text and len(chem.GetMolFrags(molecule)) > 1:
        found.num_mixtures += 1
        if fragments == "largest":
            molecule = largest_fragment(molecule)
            text = chem.MolToSmiles(molecule)
    canonical = chem.MolToSmiles(molecule)
    has_stereo = any(sign in canonical for sign in "@/\\")
    found.rows.append(row)
    found.names.append(text)
    found.canonical.append(canonical)
    found.flat.append(chem.MolToSmiles(molecule, isomericSmiles=False) if has_stereo else canonical)
    return molecule
