"""Train small node classifiers in as many processes as there are, and write what came out; started by tests.

torchrun --nproc-per-node 2 tests/training/node_runs.py FOLDER CASE ...
"""

import dataclasses
import functools
import json
import sys
from pathlib import Path

import torch

from rgat.data import NodeData
from rgat.graph import RelationalGraph
from rgat.sampling import exact_logits
from rgat.training import Settings, build_model, fit, node_logits, task
from rgat.training.distributed import connection, joined_processes, processes
from rgat.training.sampled import SampledTask

NODES, RELATIONS = 70, 3
BOTH = {"feature_dropout": 0.3, "edge_dropout": 0.2}
# Two epochs of three steps. The last batch has one node, so that all other processes have none.
SAMPLED = {"fanouts": (2, 3), "batch_size": 16}
# Whether nodes have features, options of the model, settings.
CASES = {
    "sampled features": (True, BOTH | {"batch_norm": True, "bias": False}, SAMPLED | {"kernel_l2": (1e-3, 0.0)}),
    "sampled embeddings": (False, BOTH | {"embedding_channels": 4, "heads": 2}, SAMPLED),
    "sampled shards": (
        False,
        BOTH | {"embedding_channels": 4, "heads": 2},
        SAMPLED | {"shard_embeddings": True, "weight_averaging": True},
    ),
    "whole shards": (False, BOTH | {"embedding_channels": 4}, {"max_epochs": 5, "shard_embeddings": True}),
    "whole features": (True, BOTH | {"batch_norm": True, "bias": False, "scope": "across"}, {"max_epochs": 5}),
    "sampled nodes": (True, BOTH | {"identity": True, "heads": 2}, SAMPLED | {"kernel_l2": (1e-3, 0.0)}),
    "whole nodes": (True, BOTH | {"identity": True}, {"max_epochs": 5, "kernel_l2": (1e-3, 0.0)}),
    "whole jumping knowledge": (
        True,
        BOTH | {"jumping_knowledge": True, "residual": True, "layer_norm": True, "num_layers": 3},
        {"max_epochs": 5, "kernel_l2": (0.0,) * 3, "attention_l2": (0.0,) * 3},
    ),
    "whole average": (
        True,
        BOTH | {"batch_norm": True, "bias": False},
        {"max_epochs": 5, "weight_averaging": True, "label_smoothing": 0.2},
    ),
    "sampled average": (
        False,
        BOTH | {"embedding_channels": 4},
        SAMPLED | {"weight_averaging": True, "label_smoothing": 0.2},
    ),
    "whole one-hot": (
        False,
        BOTH | {"num_layers": 3},
        {"max_epochs": 5, "kernel_l2": (1e-3, 0.0, 0.0), "attention_l2": (0.0,) * 3},
    ),
    "sampled weights": (True, BOTH, SAMPLED | {"class_weights": "balanced"}),
    "whole weights": (True, BOTH, {"max_epochs": 5, "class_weights": "balanced", "label_smoothing": 0.1}),
    "whole embeddings": (False, BOTH | {"embedding_channels": 4}, {"max_epochs": 5}),
}


def made_up(with_features):
    generator = torch.Generator().manual_seed(3)

    def draw(high, *shape):
        return torch.randint(high, shape, generator=generator)

    # Some nodes have many edges and some have none, so that ranges of nodes with equally many edges differ in length.
    edge_index = torch.stack([draw(NODES, 500), draw(NODES, 500).minimum(draw(NODES, 500))])
    graph = RelationalGraph(edge_index, draw(RELATIONS, 500), num_nodes=NODES, num_relations=RELATIONS)
    order = torch.randperm(NODES, generator=generator)
    x = torch.randn(NODES, 5, dtype=torch.float64, generator=generator) if with_features else None
    names = (tuple(map(str, range(NODES))), tuple(map(str, range(RELATIONS))))
    return NodeData("made up", graph, x, draw(3, NODES), ("a", "b", "c"), order[:33], order[33:45], order[45:], *names)


def run(case, device, **more):
    with_features, options, settings = CASES[case]
    data, seeds, states, losses = made_up(with_features), [], [], SampledTask.losses
    # Different numbers of blocks, so that processes look up embeddings differently often.
    task.exact_logits = functools.partial(exact_logits, block_numbers=1000 * (1 + processes().rank))

    def watched(self, model, batch):
        seeds.append(batch[0].nodes[: batch[0].num_seeds].tolist())
        return losses(self, model, batch)

    SampledTask.losses = watched
    model = build_model(data, 1, settings.get("shard_embeddings", False), **options).double().to(device)

    def state():
        """Return all parameters, of divided embeddings the whole table."""
        tensors = model.state_dict()
        if len(tensors.get("embedding.weight", range(NODES))) < NODES:
            tensors["embedding.weight"] = processes().gather(tensors["embedding.weight"], NODES)
        return {name: tensor.tolist() for name, tensor in tensors.items()}

    def keep(epoch):
        states.append(state())

    epochs = more.pop("max_epochs", 2)
    result = fit(model, data, Settings(**({"max_epochs": epochs} | settings)), 4, keep, **more)
    SampledTask.losses = losses
    return {
        "seeds": seeds,
        "curve": [dataclasses.astuple(epoch) for epoch in result.curve],
        "scores": [result.scores, result.constant_scores],
        "state": states[-1],
        "best": state(),
        "logits": node_logits(model, data).tolist(),
    }


def run_all(folder, cases):
    """Run some cases in this process and those that were started with it; each writes its outcome to the folder."""
    torch.set_num_threads(1)
    with joined_processes() as device:
        outcome = {case: run(case, device) for case in cases}
        epochs = {1: 2, 2: 4, 4: 6}[processes().number]
        outcome["relay"] = run("sampled shards", device, max_epochs=epochs, checkpoint=Path(folder, "checkpoint"))
        if epochs == 2:
            outcome["undisturbed"] = run("sampled shards", device, max_epochs=6)
        outcome["connection"] = connection(device) if epochs > 2 else f"one process on {device}"
        Path(folder, f"{processes().number}-{processes().rank}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    run_all(sys.argv[1], sys.argv[2:])
