"""Planted sets: synthetic graphs on which it is known whether attention helps.

Each set is a forest of small trees, *witness -> case -> verdict*. A case has edges from several witnesses; its verdict,
one more step away, is the labelled node. Witnesses have no incoming edges, so no layer can transform their features
before the case aggregates them. A witness's features encode a class (the class it names) and a loudness. All nodes have
features; training, validation and test verdicts are different nodes.

- ``needle``: eight witnesses of one relation. The one loud witness names the true class; together the eight name each
  class equally often, so their mean is uninformative. Attention within a relation can select the loud witness.
- ``rivals``: eight witnesses, each of its own relation. The one loud witness names the true class, the others name any
  class. A softmax within a relation has a single edge and is always one; a softmax across relations can select the
  loud witness. (Without it a model needs a hidden unit for each of the 32 pairs of relation and class.)
- ``consensus``: eight equally loud witnesses of one relation, of which at least five name the true class, with noise: a
  mean is enough.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rgat.data.dataset import MISSING, NodeData
from rgat.graph import RelationalGraph

KINDS = ("needle", "rivals", "consensus")
NUM_CLASSES = 4
NUM_WITNESSES = 8
NUM_CASES = 1000  # half of them training cases
NUM_NOISE = 3  # uninformative features


def planted(kind: str, seed: int = 0) -> NodeData:
    """Return one of the planted sets; another random seed gives another draw of the same set."""
    generator = torch.Generator().manual_seed(1000 * seed + KINDS.index(kind))
    truth = torch.randint(NUM_CLASSES, (NUM_CASES,), generator=generator)
    named = {"needle": _balanced, "rivals": _any, "consensus": _consensus}[kind](truth, generator)
    loud = torch.zeros(NUM_CASES, NUM_WITNESSES, dtype=torch.bool)
    if kind != "consensus":
        # Among the witnesses that name the true class, one is loud.
        chance = torch.rand(NUM_CASES, NUM_WITNESSES, generator=generator) + (named == truth[:, None])
        loud[torch.arange(NUM_CASES), chance.argmax(1)] = True

    witness = torch.cat(
        [
            torch.nn.functional.one_hot(named, NUM_CLASSES)
            + (0.5 if kind == "consensus" else 0.0) * torch.randn(*loud.shape, NUM_CLASSES, generator=generator),
            torch.where(loud, 1.0, -1.0).unsqueeze(-1) + 0.2 * torch.randn(*loud.shape, 1, generator=generator),
            torch.randn(*loud.shape, NUM_NOISE, generator=generator),
            torch.zeros(*loud.shape, 1),
        ],
        dim=-1,
    ).flatten(0, 1)
    others = torch.zeros(2 * NUM_CASES, witness.shape[1])  # cases, then verdicts, marked by the last feature
    others[:, -1] = 1.0
    num_witnesses = len(witness)
    case = num_witnesses + torch.arange(NUM_CASES)
    verdict = case + NUM_CASES
    edge_index = torch.stack(
        [torch.cat([torch.arange(num_witnesses), case]), torch.cat([case.repeat_interleave(NUM_WITNESSES), verdict])]
    )
    relation = torch.arange(NUM_WITNESSES).repeat(NUM_CASES) if kind == "rivals" else torch.zeros(num_witnesses).long()
    num_relations = int(relation.max()) + 2
    edge_type = torch.cat([relation, torch.full((NUM_CASES,), num_relations - 1)])
    x = torch.cat([witness, others])
    labels = torch.full((len(x),), MISSING)
    labels[verdict] = truth
    hears = [f"hears {n}" for n in range(num_relations - 1)] if kind == "rivals" else ["hears"]
    return NodeData(
        name=f"planted-{kind}",
        graph=RelationalGraph(edge_index, edge_type, num_nodes=len(x), num_relations=num_relations),
        x=x,
        labels=labels,
        classes=tuple(f"class {c}" for c in range(NUM_CLASSES)),
        train=verdict[: NUM_CASES // 2],
        valid=verdict[NUM_CASES // 2 : NUM_CASES * 5 // 8],
        test=verdict[NUM_CASES * 5 // 8 :],
        node_names=tuple(_names(num_witnesses)),
        relation_names=(*hears, "rules"),
        provenance={"generator": "rgat.data.synthetic.planted", "kind": kind, "seed": seed},
    )


def _balanced(truth: Tensor, generator: torch.Generator) -> Tensor:
    """Return classes ``[cases, witnesses]``: in each case all equally often, shuffled."""
    order = torch.rand(NUM_CASES, NUM_WITNESSES, generator=generator).argsort(1)
    return order % NUM_CLASSES


def _any(truth: Tensor, generator: torch.Generator) -> Tensor:
    """Return classes ``[cases, witnesses]``: in each case the true class at one position, the rest random."""
    named = torch.randint(NUM_CLASSES, (NUM_CASES, NUM_WITNESSES), generator=generator)
    position = torch.randint(NUM_WITNESSES, (NUM_CASES, 1), generator=generator)
    return named.scatter(1, position, truth[:, None])


def _consensus(truth: Tensor, generator: torch.Generator) -> Tensor:
    """Return classes ``[cases, witnesses]``: in each case the true class five times, the rest random."""
    named = torch.randint(NUM_CLASSES, (NUM_CASES, NUM_WITNESSES), generator=generator)
    rank = torch.rand(NUM_CASES, NUM_WITNESSES, generator=generator).argsort(1)
    return torch.where(rank < 5, truth[:, None], named)


def _names(num_witnesses: int) -> list[str]:
    names = [f"witness {n % NUM_WITNESSES} of case {n // NUM_WITNESSES}" for n in range(num_witnesses)]
    return names + [f"{kind} {n}" for kind in ("case", "verdict") for n in range(NUM_CASES)]
