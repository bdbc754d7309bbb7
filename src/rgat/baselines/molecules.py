"""What the molecule systems share: ECFP4 fingerprints, arrays computed once per data set, and the training of networks.

A fingerprint has a bit for each circular neighbourhood of an atom, up to four bonds across, by hashing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rgat.baselines.outcome import Outcome
from rgat.checks import check_word
from rgat.data import GraphData
from rgat.data.cache import Arrays, cached
from rgat.data.dataset import PARTS
from rgat.data.molecules.smiles import parse_smiles
from rgat.memory import require
from rgat.training import balanced_class_weights, multi_task_cross_entropy

FINGERPRINTS = {"num_bits": 1024, "radius": 2}
SELECTED_ON = "nothing: the settings and the number of epochs are those of MoleculeNet"


def fingerprints(data: GraphData) -> Tensor:
    """Return the bits of each molecule, ``[G, bits]`` float32; chirality is ignored."""
    num_bits, radius = FINGERPRINTS["num_bits"], FINGERPRINTS["radius"]
    require(3 * 4 * num_bits * len(data.graph_names))  # the rows of a part and the solver's copy of them, beside all

    def build(molecules: list[Any]) -> Arrays:
        from rdkit.Chem import rdFingerprintGenerator

        generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=num_bits)
        bits = [generator.GetFingerprintAsNumPy(molecule) for molecule in molecules]
        return {"bits": np.packbits(np.stack(bits), axis=1)}

    stored = cached_of_molecules("ecfp", data, build, **FINGERPRINTS)
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


def train(
    build: Callable[..., nn.Module],
    inputs: Callable[[Tensor], Any],
    data: GraphData,
    seed: int,
    options: Mapping[str, Any],
    training: Mapping[str, Any],
    **settings: Any,
) -> Outcome:
    """Train a network by Adam on the weighted cross-entropy, for a fixed number of epochs, and return its outputs.

    Args:
        build: returns the network for its options.
        inputs: maps ids of graphs to the argument of the network, which returns logits ``[n, tasks, 2]``.
        data: the molecules and their labels.
        seed: seed of the parameters, dropout and the order of batches.
        options: default options of the network.
        training: default ``learning_rate``, ``batch_size``, ``epochs`` and ``weight_l2``, the coefficient of half the
            sum of squares of all weight matrices.
        **settings: options and training settings that replace the defaults.
    """
    for name in settings:
        check_word("setting", name, (*options, *training))
    config = {**options, **training, **settings}
    class_weights = balanced_class_weights(data.labels[data.train])
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(**{name: config[name] for name in options})
        optimizer = torch.optim.Adam(model.parameters(), lr=config["learning_rate"])
        for _ in range(config["epochs"]):
            total = 0.0
            for ids in torch.split(data.train[torch.randperm(len(data.train))], config["batch_size"]):
                loss = multi_task_cross_entropy(model(inputs(ids)), data.labels[ids], class_weights)
                loss = loss + config["weight_l2"] * _half_squares(model)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * len(ids)
            losses.append(total / max(len(data.train), 1))
    model.eval()
    with torch.no_grad():
        parts = {part: torch.split(getattr(data, part), 256) for part in PARTS}
        logits = {part: torch.cat([model(inputs(ids)) for ids in batches]) for part, batches in parts.items()}
    return Outcome(config, SELECTED_ON, logits, best_epoch=config["epochs"], train_loss=losses)


def _half_squares(model: nn.Module) -> Tensor:
    squares = [parameter.square().sum() for parameter in model.parameters() if parameter.dim() > 1]
    return torch.stack(squares).sum() / 2
