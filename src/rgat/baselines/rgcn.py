"""R-GCN with the settings of its own paper (Schlichtkrull et al., 2018), without a search."""

from __future__ import annotations

from typing import Any

from rgat.baselines.outcome import Outcome
from rgat.checks import check_word
from rgat.data import NodeData
from rgat.data.dataset import PARTS
from rgat.training import Settings, fit
from rgat.training.configuration import build_model
from rgat.training.task import node_logits

LEARNING_RATE, EPOCHS = 0.01, 50
# The paper penalises the first layer on all graphs but AIFB, the smallest.
SETTINGS: dict[str, dict[str, Any]] = {
    "aifb": {"hidden_channels": 16, "num_bases": None, "l2": 0.0},
    "mutag": {"hidden_channels": 16, "num_bases": 30, "l2": 5e-4},
    "bgs": {"hidden_channels": 16, "num_bases": 40, "l2": 5e-4},
    "am": {"hidden_channels": 10, "num_bases": 40, "l2": 5e-4},
}


def run(data: NodeData, seed: int = 0, **settings: Any) -> Outcome:
    """Train two layers on the training part for 50 epochs; default settings are the paper's for the data, or AIFB's."""
    config = dict(SETTINGS.get(data.name, SETTINGS["aifb"]))
    for name in settings:
        check_word("setting", name, tuple(config))
    config |= settings
    model = build_model(
        data, seed, layer="rgcn", hidden_channels=config["hidden_channels"], num_bases=config["num_bases"]
    )
    training = Settings(LEARNING_RATE, max_epochs=EPOCHS, patience=None, kernel_l2=(config["l2"], 0.0))
    result = fit(model, data, training)
    logits = node_logits(model, data)
    return Outcome(
        config=config | {"learning_rate": LEARNING_RATE, "epochs": EPOCHS},
        selected_on="nothing: the settings and the number of epochs are those of the R-GCN paper"
        + ("" if data.name in SETTINGS else " for AIFB, since it has none for these data"),
        logits={part: logits[getattr(data, part)] for part in PARTS},
        best_epoch=result.best_epoch,
        train_loss=[epoch.train_loss for epoch in result.curve],
    )
