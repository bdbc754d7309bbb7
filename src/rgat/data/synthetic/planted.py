"""Planted sets: graphs where we know whether attention has something to find.

Each set is a forest of small trees, *witness -> case -> verdict*. A case hears several witnesses; its verdict, one more
step away, is the labelled node. Witnesses hear nobody, so no layer can rework their features before the case has
combined them: whatever is lost in combining them is lost. Every witness names a class; how strongly it speaks is a
feature of its own. All nodes have features; training, validation and test verdicts are different nodes.

- ``needle``: of eight witnesses of one relation one speaks loudly, and names the class. Together the eight name each
  class equally often, so a mean knows nothing. Attention within a relation finds the loud one.
- ``rivals``: eight witnesses, each of a relation of its own, one of them loud, who names the class; the others name
  any. A softmax within a relation is over a single edge, so it is always one; competition between relations finds the
  loud one. (Without it a model would need a hidden unit for every pair of relation and class, 32, and find them.)
- ``consensus``: eight witnesses of one relation, at least five of whom name the class, somewhat blurred, all equally
  loud: a mean is enough.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rgat.data.dataset import MISSING, NodeData
from rgat.graph import RelationalGraph

KINDS = ("needle", "rivals", "consensus")
NUM_CLASSES = 4
NUM_WITNESSES = 8
NUM_CASES = 1000  # half of them to learn from
NUM_NOISE = 3  # features that say nothing


def planted(kind: str, seed: int = 0) -> NodeData:
    """Make one of the planted sets; another seed gives another draw of the same set."""
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
    others = torch.zeros(2 * NUM_CASES, witness.shape[1])  # cases, then verdicts; the last feature tells them
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
    """Per case a shuffled list in which every class is named equally often, [cases, witnesses]."""
    order = torch.rand(NUM_CASES, NUM_WITNESSES, generator=generator).argsort(1)
    return order % NUM_CLASSES


def _any(truth: Tensor, generator: torch.Generator) -> Tensor:
    """Per case one witness, anywhere, names the class, the rest any, [cases, witnesses]."""
    named = torch.randint(NUM_CLASSES, (NUM_CASES, NUM_WITNESSES), generator=generator)
    place = torch.randint(NUM_WITNESSES, (NUM_CASES, 1), generator=generator)
    return named.scatter(1, place, truth[:, None])


def _consensus(truth: Tensor, generator: torch.Generator) -> Tensor:
    """Per case five of eight witnesses name the class, the rest any class, [cases, witnesses]."""
    named = torch.randint(NUM_CLASSES, (NUM_CASES, NUM_WITNESSES), generator=generator)
    place = torch.rand(NUM_CASES, NUM_WITNESSES, generator=generator).argsort(1)
    return torch.where(place < 5, truth[:, None], named)


def _names(num_witnesses: int) -> list[str]:
    names = [f"witness {n % NUM_WITNESSES} of case {n // NUM_WITNESSES}" for n in range(num_witnesses)]
    return names + [f"{kind} {n}" for kind in ("case", "verdict") for n in range(NUM_CASES)]
