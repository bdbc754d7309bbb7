"""R-GCN with the settings of its own paper (Schlichtkrull et al., 2018), not those that the search here finds."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from rgat.baselines.outcome import Outcome
from rgat.data import NodeData
from rgat.data.dataset import PARTS
from rgat.models import NodeClassifier
from rgat.training import check_parts, l2_penalty

LEARNING_RATE, EPOCHS = 0.01, 50
# The first layer's penalty grows with the number of its parameters; AIFB, the smallest graph, does without.
SETTINGS: dict[str, dict[str, Any]] = {
    "aifb": {"hidden_channels": 16, "num_bases": None, "l2": 0.0},
    "mutag": {"hidden_channels": 16, "num_bases": 30, "l2": 5e-4},
    "bgs": {"hidden_channels": 16, "num_bases": 40, "l2": 5e-4},
    "am": {"hidden_channels": 10, "num_bases": 40, "l2": 5e-4},
}


def run(
    data: NodeData,
    seed: int = 0,
    *,
    hidden_channels: int | None = None,
    num_bases: int | None = None,
    l2: float | None = None,
) -> Outcome:
    """Train two layers on the whole training part for 50 epochs; settings not given are the paper's, or AIFB's."""
    check_parts(data, selects=False)
    config = dict(SETTINGS.get(data.name, SETTINGS["aifb"]))
    given = {"hidden_channels": hidden_channels, "num_bases": num_bases, "l2": l2}
    config |= {name: value for name, value in given.items() if value is not None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = NodeClassifier(
            data.in_channels,
            len(data.classes),
            data.graph.num_relations,
            layer="rgcn",
            hidden_channels=config["hidden_channels"],
            num_bases=config["num_bases"],
            graph=data.graph if data.x is None else None,
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    graph, losses = data.graph.prepare(), []
    for _ in range(EPOCHS):
        logits = model(data.x, graph)
        loss = cross_entropy(logits[data.train], data.labels[data.train], reduction="sum") / len(data.train)
        loss = loss + l2_penalty(model, (config["l2"], 0.0), (0.0, 0.0))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    with torch.no_grad():
        logits = model(data.x, graph)
    return Outcome(
        config=config | {"learning_rate": LEARNING_RATE, "epochs": EPOCHS},
        selected_on="nothing: the settings and the number of epochs are those of the R-GCN paper"
        + ("" if data.name in SETTINGS else " for AIFB, since it has none for these data"),
        logits={part: logits[getattr(data, part)] for part in PARTS},
        best_epoch=EPOCHS,
        train_loss=losses,
    )
