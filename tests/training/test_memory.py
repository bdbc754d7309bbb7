import os

from helpers import labelled_graph

from rgat.experiments.variants import build_model
from rgat.training import Settings, fit


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_last_of_500_epochs_takes_no_more_memory_than_the_hundredth():  # 2,000: benchmarks/training.py
    data, levels = labelled_graph(12), {}

    def watch(epoch):
        if epoch.epoch % 100 == 0:
            levels[epoch.epoch] = resident_bytes()

    model = build_model(data, feature_dropout=0.3, edge_dropout=0.3, batch_norm=True)
    result = fit(model, data, Settings(max_epochs=500, patience=500), on_epoch=watch)
    assert len(result.curve) == 500
    assert max(levels.values()) - levels[100] < 2**20, levels
