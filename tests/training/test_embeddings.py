"""Embeddings divided among processes, without processes: what each draws, reads and describes."""

import hashlib
import io

import pytest
import safetensors.torch
import torch

from rgat.models import node_embedding
from rgat.training import embeddings, load_checkpoint, save_checkpoint
from rgat.training.distributed import Processes
from rgat.training.embeddings import ShardedEmbedding, divide_embedding
from rgat.training.tensor_files import write_tensors


@pytest.fixture
def as_process(monkeypatch):
    """Return a function that makes this process one of several; blocks are small."""
    monkeypatch.setattr(embeddings, "BLOCK_NUMBERS", 40)

    def become(rank, number):
        monkeypatch.setattr(embeddings, "processes", lambda: Processes(rank, number))

    return become


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("nodes", "channels"), [(2, 3), (3, 5), (16, 4), (70, 4), (101, 7), (3, 64)])
def test_each_process_draws_its_rows_of_the_whole_table(as_process, nodes, channels, dtype):
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(5)
        table, later = node_embedding(nodes, channels).weight, torch.rand(3)
        for number in (1, 2, 3):
            for rank in range(number):
                as_process(rank, number)
                torch.manual_seed(5)
                assert torch.equal(ShardedEmbedding.draw(nodes, channels).weight, table[rank::number])
                assert torch.equal(torch.rand(3), later), "layers that are drawn later"
    finally:
        torch.set_default_dtype(torch.float32)


def test_divided_embeddings_have_the_name_and_sizes_of_whole_ones(as_process):
    as_process(1, 3)
    whole = node_embedding(70, 4)
    model = torch.nn.ModuleDict({"embedding": whole})
    divide_embedding(model)
    assert isinstance(model.embedding, ShardedEmbedding)
    assert torch.equal(model.embedding.weight, whole.weight[1::3])
    assert str(model.embedding) == str(whole)
    assert (
        vars(model.embedding).keys() - vars(torch.nn.Module()).keys()
        == vars(whole).keys() - vars(torch.nn.Module()).keys()
    )
    before = model.embedding
    divide_embedding(model)
    assert model.embedding is before


TENSORS = {
    "a": torch.randn(5, 3, dtype=torch.float64),
    "b": torch.arange(7),
    "c": torch.tensor(True),
    "d": torch.randn(2, 3).bfloat16(),
    "e": torch.empty(0, 4),
    "f": torch.arange(3, dtype=torch.uint8),
    "step": torch.tensor(3.0),
}


def test_files_of_tensors_are_safetensors():
    file = io.BytesIO()
    sha256 = write_tensors(file, TENSORS)
    read = safetensors.torch.load(file.getvalue())
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    assert sha256 == hashlib.sha256(file.getvalue()).hexdigest()


def test_each_process_reads_its_rows_of_a_checkpoint(as_process, tmp_path):
    table = torch.randn(70, 4)
    save_checkpoint(tmp_path, {"table": table, "other": torch.arange(3)}, {"epoch": 1})
    for rank in range(3):
        as_process(rank, 3)
        tensors, record = load_checkpoint(tmp_path, divided=["table"])
        assert torch.equal(tensors["table"], table[rank::3])
        assert torch.equal(tensors["other"], torch.arange(3))
        assert record["epoch"] == 1
