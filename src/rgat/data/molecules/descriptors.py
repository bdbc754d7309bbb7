"""Numbers that describe a whole molecule, for a model to read beside its graph: RDKit descriptors, Morgan fingerprints.

The descriptors are properties that RDKit computes in C++ (`rdkit.Chem.rdMolDescriptors`). The `QUICK` ones, which
`rgat.fit` uses, take a fifth of the time of all. A fingerprint has a bit for each circular neighbourhood of an atom, up
to four bonds across, by hashing; it ignores chirality.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rgat.checks import check_word
from rgat.data.cache import Arrays, cached
from rgat.data.molecules.smiles import parse_smiles, rdkit

KINDS = ("none", "rdkit", "morgan", "both")
NUM_BITS, RADIUS = 1024, 2
# A rare bit divided by its deviation would be a large number. Bits as they are overfit in a few epochs: on validation
# parts of Tox21's tasks, 1,500 training molecules, a quarter of each was better (mean ROC-AUC .891 instead of .873).
BIT_SCALE = 4.0
LARGEST = 10.0  # standard deviations: a descriptor further off says nothing more
# Masses, counts of atoms and rings, surface areas, short paths, logP and refractivity. Models that read all properties
# are about as good, beside a fingerprint perhaps better (docs/molecules.md); without logP and refractivity, worse.
QUICK = (
    *("CrippenClogP", "CrippenMR"),
    *("exactmw", "amw", "lipinskiHBA", "lipinskiHBD", "NumHBD", "NumHeteroatoms", "NumHeavyAtoms", "NumAtoms"),
    *("FractionCSP3", "NumAmideBonds", "tpsa", "labuteASA", "NumRings", "NumAromaticRings", "NumAliphaticRings"),
    *("NumSaturatedRings", "NumHeterocycles", "NumAromaticHeterocycles", "NumSaturatedHeterocycles"),
    *("NumAliphaticHeterocycles", "chi0v", "chi1v", "chi0n", "chi1n", "hallKierAlpha", "kappa1"),
)
VECTORS = {"SlogP_VSA_": 12, "SMR_VSA_": 10, "PEOE_VSA_": 14, "MQNs_": 42}  # properties of several numbers


@dataclass(frozen=True)
class Descriptors:
    """Which descriptors a model reads, and how they are standardised by its training part.

    Descriptors get mean 0 and standard deviation 1, bits mean 0; a value that RDKit cannot compute counts as the
    mean.
    """

    kind: str  # "rdkit", "morgan" or "both"
    properties: tuple[str, ...]  # RDKit's names of the descriptors, before the bits
    mean: Tensor  # [D]
    scale: Tensor  # [D]

    @property
    def channels(self) -> int:
        """The number of columns."""
        return len(self.mean)

    @classmethod
    def learn(cls, kind: str, properties: Sequence[str], columns: Tensor) -> Descriptors:
        """Learn mean and scale from the columns of the training molecules, ``[n, D]``."""
        known = columns.isfinite()
        number = known.sum(0).clamp(min=1)
        filled = torch.where(known, columns, 0.0).double()
        mean = filled.sum(0) / number
        variance = torch.where(known, filled - mean, 0.0).square().sum(0) / number
        scale = torch.where(variance > 0, variance.sqrt(), 1.0)
        if kind != "rdkit":
            scale[-NUM_BITS:] = BIT_SCALE
        return cls(kind, tuple(properties), mean.float(), scale.float())

    def standardise(self, columns: Tensor) -> Tensor:
        """Return the columns as a model reads them, ``[n, D]`` float16, which is precise enough and small."""
        ratio = (columns - self.mean) / self.scale
        return ratio.nan_to_num(0.0, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST).half()


def all_properties() -> tuple[str, ...]:
    """Return the names of all properties that this version of RDKit computes."""
    rdkit()
    from rdkit.Chem import rdMolDescriptors

    return (*rdMolDescriptors.Properties().GetPropertyNames(), *VECTORS)


def number_of_columns(kind: str, properties: Sequence[str]) -> int:
    """Return how many columns a kind of descriptors has."""
    descriptors = 0 if kind == "morgan" else sum(VECTORS.get(name, 1) for name in properties)
    return descriptors + (0 if kind == "rdkit" else NUM_BITS)


def needs_stereo(properties: Sequence[str]) -> bool:
    """Return whether a property counts stereo marks, which a molecule must then be parsed with."""
    return any("Stereo" in name for name in properties)


def describe(molecules: Sequence[Any], kind: str, properties: Sequence[str]) -> Tensor:
    """Return the columns of RDKit molecules, ``[n, D]`` float32; NaN where RDKit cannot compute one."""
    check_word("descriptors", kind, KINDS)
    parts = [torch.empty(len(molecules), 0)]
    if kind in ("rdkit", "both"):
        parts.append(torch.from_numpy(_descriptors(molecules, properties)))
    if kind in ("morgan", "both"):
        parts.append(torch.from_numpy(_bits(molecules)).float())
    return torch.cat(parts, 1)


def _descriptors(molecules: Sequence[Any], properties: Sequence[str]) -> NDArray[np.float32]:
    from rdkit.Chem import rdMolDescriptors

    # Numbers come before vectors in `all_properties`, and so they do here.
    chosen: Any = rdMolDescriptors.Properties([name for name in properties if name not in VECTORS])
    functions = [getattr(rdMolDescriptors, name) for name in properties if name in VECTORS]
    columns = np.full((len(molecules), number_of_columns("rdkit", properties)), np.nan, dtype=np.float32)
    for row, molecule in enumerate(molecules):
        try:
            values = [*chosen.ComputeProperties(molecule), *(v for function in functions for v in function(molecule))]
        except (RuntimeError, ValueError):  # of unusual valences
            continue
        with np.errstate(over="ignore"):
            columns[row] = values
    return columns


def _bits(molecules: Sequence[Any]) -> NDArray[np.uint8]:
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=NUM_BITS)
    bits = [generator.GetFingerprintAsNumPy(molecule) for molecule in molecules]
    return np.stack(bits) if bits else np.empty((0, NUM_BITS), dtype=np.uint8)


def describe_smiles(smiles: Sequence[str], properties: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the properties of all molecules, ``[n, D]``, and their bits, ``[n, bits]`` uint8; computed once, cached.

    A text that is no SMILES gets NaN and no bits.
    """
    stereo = needs_stereo(properties)

    def build() -> Arrays:
        values, bits = [], []
        for start in range(0, len(smiles), 1024):  # few molecules in memory at a time
            empty = rdkit().MolFromSmiles("")
            part = smiles[start : start + 1024]
            molecules = [parse_smiles(text, relaxed=True, stereo=stereo) or empty for text in part]
            values.append(_descriptors(molecules, properties))
            bits.append(np.packbits(_bits(molecules), axis=1))
        return {"values": np.concatenate(values), "bits": np.concatenate(bits)}

    content = hashlib.sha256("\n".join(smiles).encode()).hexdigest()
    options = {"bits": NUM_BITS, "radius": RADIUS, "properties": list(properties)}
    stored = cached("descriptors", content, options, build)
    bits = np.unpackbits(stored["bits"], axis=1, count=NUM_BITS)
    return torch.from_numpy(stored["values"]), torch.from_numpy(bits)
