"""The best embeddings of a run with early stopping are kept in a file."""

import copy
import errno

import pytest
import torch

from rgat.data import load
from rgat.training import Settings, build_model, fit, kept_rows
from rgat.training.kept_rows import KeptRows

SETTINGS = {"fanouts": (5, 5), "batch_size": 32, "learning_rate": 0.3}


def run(data, **options):
    torch.manual_seed(0)
    model = build_model(data, embedding_channels=6)
    result = fit(model, data, Settings(**SETTINGS | {"max_epochs": 6, "patience": 6}), **options)
    return result, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_file_keeps_the_same_bits(monkeypatch, tmp_path):
    data, made = load("institute"), []
    expected, state = run(data)
    assert expected.best_epoch < len(expected.curve), "the last epoch is not the best"
    monkeypatch.setattr(kept_rows, "LARGE", 0)
    monkeypatch.setattr(KeptRows, "copy_", lambda self, table: made.append(self.folder) or copied(self, table))
    for options, folder in (({}, None), ({"checkpoint": tmp_path / "new", "checkpoint_seconds": 0}, tmp_path / "new")):
        made.clear()
        result, found = run(data, **options)
        assert len(made) >= 2, "at the start and at each better epoch"
        assert folder is None or set(made) == {folder}
        assert (result.best_epoch, result.scores) == (expected.best_epoch, expected.scores)
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert sorted(path.suffix for path in (tmp_path / "new").iterdir()) == [".json", ".safetensors"]


copied = KeptRows.copy_


def test_a_run_resumes_from_a_file_to_the_same_bits(monkeypatch, tmp_path):
    data = load("institute")
    monkeypatch.setattr(kept_rows, "LARGE", 0)
    expected, state = run(data)

    def stop(epoch):
        if epoch.epoch == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(data, checkpoint=tmp_path, checkpoint_seconds=0, on_epoch=stop)
    result, found = run(data, checkpoint=tmp_path, checkpoint_seconds=0)
    assert result.scores == expected.scores
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_are_read_as_they_were_written(dtype, monkeypatch, tmp_path):
    monkeypatch.setattr("rgat.training.embeddings.BLOCK_NUMBERS", 12)  # four rows
    table = torch.randn(10, 3).to(dtype)
    kept = KeptRows(table, tmp_path)
    assert [len(rows) for rows in kept.blocks()] == [4, 4, 2]
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    before, other = copy.copy(table), torch.zeros_like(table)
    table = table + 1
    kept.copy_to(other)
    assert torch.equal(other, before)
    kept.copy_(table)
    kept.copy_to(other)
    assert torch.equal(other, table)


def test_a_full_disk_is_one_sentence(tmp_path):
    kept = KeptRows(torch.ones(4, 3), tmp_path)

    class Full:
        def seek(self, place):
            raise OSError(errno.ENOSPC, "No space left on device")

    kept.file = Full()
    with pytest.raises(ValueError, match=r"best epoch must be kept in .*, which failed: No space left on device; make"):
        kept.copy_(torch.ones(4, 3))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="which failed: "):
        KeptRows(torch.ones(4, 3), tmp_path / "file")
