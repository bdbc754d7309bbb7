"""ECFP4 fingerprints: the circular neighbourhoods of a molecule's atoms, up to four bonds across, hashed to bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.data import GraphData
from rgat.data.cache import Arrays, cached
from rgat.data.molecules.smiles import parse_smiles

NUM_BITS, RADIUS = 1024, 2


def fingerprints(data: GraphData, num_bits: int = NUM_BITS, radius: int = RADIUS) -> Tensor:
    """Return the bits of each molecule, ``[G, bits]`` float32; chirality is ignored."""

    def build(molecules: list[Any]) -> Arrays:
        from rdkit.Chem import rdFingerprintGenerator

        generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=num_bits)
        bits = [generator.GetFingerprintAsNumPy(molecule) for molecule in molecules]
        return {"bits": np.packbits(np.stack(bits), axis=1)}

    stored = cached_of_molecules("ecfp", data, build, num_bits=num_bits, radius=radius)
    return torch.from_numpy(np.unpackbits(stored["bits"], axis=1, count=num_bits)).float()


def cached_of_molecules(name: str, data: GraphData, build: Callable[[list[Any]], Arrays], **options: Any) -> Arrays:
    """Return arrays that ``build`` computes from all molecules of a data set; they are computed once and cached.

    The graphs of the data set must be named by SMILES.
    """
    content = hashlib.sha256("\n".join(data.graph_names).encode()).hexdigest()

    def parse_and_build() -> Arrays:
        molecules = []
        for smiles in data.graph_names:
            molecules.append(parse_smiles(smiles, relaxed=True))
            if molecules[-1] is None:
                raise ValueError(f'graphs of {data.name} must be named by SMILES, got "{smiles}"')
        return build(molecules)

    return cached(name, content, options, parse_and_build)
