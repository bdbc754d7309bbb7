"""The data sets that come with the package, made by our own generators on first use."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rgat.data.dataset import MISSING, GraphData, NodeData
from rgat.data.molecules.smiles import BONDS, count_bonds, store_molecules
from rgat.data.rdf.knowledge_graph import assemble
from rgat.data.rdf.reader import Triples
from rgat.data.synthetic.institute import GROUPS, institute_triples
from rgat.data.synthetic.molecules import PATTERNS, molecule_set


def institute(seed: int = 0) -> NodeData:
    """The made-up research institute: to which group does a person belong? Half of the people to learn from."""
    triples, groups = institute_triples(seed)
    nodes = {name: i for i, name in enumerate(sorted({s for s, _, _ in triples} | {o for _, _, o in triples}))}
    relations = {name: i for i, name in enumerate(sorted({p for _, p, _ in triples}))}
    edges = np.array([(nodes[s], relations[p], nodes[o]) for s, p, o in triples])
    labels = torch.full((len(nodes),), MISSING)
    for person, group in groups.items():
        labels[nodes[person]] = GROUPS.index(group)
    parts = _split((labels != MISSING).nonzero().squeeze(1), (0.5, 0.25), seed)
    data = assemble(
        Triples(list(nodes), list(relations), edges),
        None,
        labels,
        GROUPS,
        parts,
        inverses=True,
        self_loops=True,
        name="institute",
    )
    data.provenance.update(generator="rgat.data.synthetic.institute", seed=seed)
    return data


def molecules(seed: int = 0) -> GraphData:
    """Small molecules: which patterns does a structure contain? 60 % to learn from."""
    smiles, parsed, labels = molecule_set(seed=seed)
    train, valid, test = _split(torch.arange(len(smiles)), (0.6, 0.2), seed)
    store = store_molecules(parsed)
    return GraphData(
        name="molecules",
        graphs=store,
        labels=labels,
        tasks=tuple(PATTERNS),
        train=train,
        valid=valid,
        test=test,
        graph_names=tuple(smiles),
        relation_names=(*BONDS, "self"),
        provenance={
            "generator": "rgat.data.synthetic.molecules",
            "seed": seed,
            "edges": count_bonds(store),
            "relations": len(BONDS),
        },
    )


def _split(ids: Tensor, shares: tuple[float, float], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffle ids and cut them into train, valid and test."""
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    first, second = int(shares[0] * len(ids)), int((shares[0] + shares[1]) * len(ids))
    return ids[:first], ids[first:second], ids[second:]
