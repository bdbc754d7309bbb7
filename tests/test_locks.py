import errno
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import filelock
import pytest
import torch
from helpers_institute import write_institute
from helpers_processes import wait_until

import rgat
from rgat import locks
from rgat.locks import locked
from rgat.predictor.files import held_folder
from rgat.training import checkpoint, load_checkpoint, save_checkpoint


@contextmanager
def running(*arguments):
    """Run the command line in another process, and kill it at the end of the block."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "rgat", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(autouse=True)
def _nothing_to_compile(monkeypatch):
    monkeypatch.setenv("RGAT_BACKEND", "torch")


def assert_second_is_refused_until_first_is_dead(lock, first, second, rgat_here):
    """Run the second command while the first runs in another process, then kill the first and run the second again."""
    with running(*first) as process:
        wait_until(lambda: process.poll() is not None or (lock.exists() and lock.read_text()))
        assert process.poll() is None, process.communicate()
        done = rgat_here(*second)
        assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
        assert re.search(
            rf"by one process at a time, but process {process.pid} on \S+ is writing it; wait", done.stderr
        )
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert lock.exists()
    done = rgat_here(*second)
    assert done.returncode == 0, done.stderr
    assert not lock.exists()


def test_two_processes_never_train_into_one_folder(tmp_path, rgat_here):
    graph, labels = write_institute(tmp_path)
    line = ["train", "--rdf", graph, "--labels", labels, "--out", tmp_path / "model", "--no-comparison", "--epochs"]
    lock = tmp_path / "model" / ".lock"
    assert_second_is_refused_until_first_is_dead(lock, [*line, 10**6, "--patience", 10**6], [*line, 2], rgat_here)
    assert rgat.predictor.load(tmp_path / "model").report["seed"] == 0


def test_two_processes_never_resume_one_folder(tmp_path, rgat_here):
    line = ["train", "institute", "--out", tmp_path / "run", "--hidden", 8, "--no-comparison", "--patience", 10**6]
    assert rgat_here(*line, "--epochs", 1).returncode == 0
    lock, epochs = tmp_path / "run" / ".lock", load_checkpoint(tmp_path / "run")[1]["epoch"] + 1
    longer = [*line, "--resume", "--epochs"]
    assert_second_is_refused_until_first_is_dead(lock, [*longer, 10**6], [*longer, epochs], rgat_here)
    assert load_checkpoint(tmp_path / "run")[1]["epoch"] == epochs


def test_two_processes_never_write_one_predictions_file(tmp_path, rgat_here):
    rgat.fit("molecules", hidden_channels=8, max_epochs=1, comparison=False).save(tmp_path / "model")
    molecules, out = tmp_path / "m.smi", tmp_path / "p.csv"
    molecules.write_text("CCO\n" * 100_000)
    line = ["predict", tmp_path / "model", "--smiles", molecules, "--out", out, "--workers", 1]
    lock, part = tmp_path / "p.csv.part.lock", tmp_path / "p.csv.part"

    with running(*line) as process:
        wait_until(lambda: process.poll() is not None or (part.exists() and part.stat().st_size > 999))
        done = rgat_here(*line, "--resume")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"process {process.pid} on" in done.stderr
    assert lock.exists()
    with part.open("r+b") as file:
        file.truncate(500)
    molecules.write_text("CCO\n" * 20)
    done = rgat_here(*line, "--resume")
    assert done.returncode == 0, done.stderr
    assert "20 molecules written to" in done.stdout
    assert not lock.exists()


def test_a_lock_is_released_after_an_error_and_a_new_folder_without_a_model_is_removed(tmp_path):
    def fail(folder):
        with held_folder(folder):
            assert (folder / ".lock").exists()
            raise KeyboardInterrupt

    (tmp_path / "old").mkdir()
    for name in ("new", "old"):
        with pytest.raises(KeyboardInterrupt):
            fail(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert not any((tmp_path / "old").iterdir())


def test_the_first_of_the_processes_of_torchrun_holds_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with held_folder(tmp_path / "model"):
        monkeypatch.setenv("RANK", "1")
        with held_folder(tmp_path / "model"):
            pass
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(ValueError, match="by one process at a time"), held_folder(tmp_path / "model"):
            pass


def test_a_file_system_without_locks_is_written_unlocked_and_other_errors_are_one_sentence(tmp_path, monkeypatch):
    def refuse(self, *arguments):
        raise OSError(self.number, os.strerror(self.number))

    monkeypatch.setattr(locks, "FileLock", type("FileLock", (filelock.FileLock,), {"acquire": refuse}))
    locks.FileLock.number = errno.ENOLCK
    with locked(tmp_path / "x.lock", "x"):
        pass
    locks.FileLock.number = errno.EROFS
    with pytest.raises(ValueError, match="x: cannot be written: Read-only file system"), locked(tmp_path / "y", "x"):
        pass


def test_a_reader_gets_matching_tensors_while_a_checkpoint_is_replaced(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, {"a": torch.zeros(1)}, {"epoch": 0})
    read, epochs = checkpoint.read_tensors, iter(range(1, 4))

    def replaced_before(path, divided):
        epoch = next(epochs, None)
        if epoch is not None:
            save_checkpoint(tmp_path, {"a": torch.full((1,), float(epoch))}, {"epoch": epoch})
        return read(path, divided)

    monkeypatch.setattr(checkpoint, "read_tensors", replaced_before)
    tensors, record = load_checkpoint(tmp_path)
    assert record["epoch"] == 3
    assert tensors["a"].item() == 3.0
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(ValueError, match="must be part of a complete checkpoint, but No such file"):
        load_checkpoint(tmp_path)
