import os

import torch
from helpers import random_graph

from rgat.data import NodeData
from rgat.experiments.variants import build_model
from rgat.training import Settings, fit


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_two_thousand_epochs_take_no_more_memory_than_the_first():
    nodes = torch.arange(12)
    graph, names = random_graph(12, 60, 4), tuple(map(str, range(12)))
    data = NodeData("tiny", graph, None, nodes % 3, ("a", "b", "c"), nodes[:6], nodes[6:9], nodes[9:], names, names[:4])
    levels = {}

    def watch(epoch):
        if epoch.epoch % 500 == 0:
            levels[epoch.epoch] = resident_bytes()

    model = build_model(data, feature_dropout=0.3, edge_dropout=0.3, batch_norm=True)
    result = fit(model, data, Settings(max_epochs=2000, patience=2000), on_epoch=watch)
    assert len(result.curve) == 2000
    assert max(levels.values()) - levels[500] < 2**20 + 1500 * 1024, (
        levels
    )  # the curve itself takes under 1 KiB a point
