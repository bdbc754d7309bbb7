"""Files are written whole or not at all, leave no temporary files, and have safe names."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rgat.data import files
from rgat.data.files import WriteError, read_whole, replacing, slug, write_atomically

WRITER = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
with files.replacing(sys.argv[2]) as file:
    file.write(b"half of it")
    file.flush()
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def writer(tmp_path):
    """Another process that is writing a file of the folder."""
    command = [sys.executable, "-c", WRITER, files.__file__, tmp_path / "theirs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_the_next_write_removes_the_file_of_a_killed_process(tmp_path, writer):
    kill(writer)
    assert len(names(tmp_path)) == 1
    write_atomically(tmp_path / "mine", b"whole")
    assert names(tmp_path) == ["mine"]


def test_the_next_checkpoint_removes_the_file_of_a_killed_process(tmp_path, writer):
    import torch

    from rgat.training import save_checkpoint

    kill(writer)
    save_checkpoint(tmp_path, {"a": torch.zeros(1)}, {})
    assert [name.partition("-")[0] for name in names(tmp_path)] == ["checkpoint", "checkpoint.json"]


def test_the_file_of_a_living_process_stays(tmp_path, writer):
    (theirs,) = names(tmp_path)
    write_atomically(tmp_path / "mine", b"whole")
    assert names(tmp_path) == [theirs, "mine"]


@pytest.mark.parametrize("where", ["another machine", "Windows"])
def test_a_file_of_a_process_that_cannot_be_checked_stays_for_a_day(tmp_path, writer, monkeypatch, where):
    (theirs,) = names(tmp_path)
    kill(writer)
    if where == "Windows":  # to send a process any signal would end it
        monkeypatch.setattr(sys, "platform", "win32")
        monkeypatch.setattr(os, "kill", None)
    else:
        monkeypatch.setattr(files.platform, "node", lambda: "elsewhere")
    write_atomically(tmp_path / "mine", b"whole")
    assert names(tmp_path) == [theirs, "mine"]
    old = time.time() - 2 * 86_400
    os.utime(tmp_path / theirs, (old, old))
    write_atomically(tmp_path / "mine", b"whole")
    assert names(tmp_path) == ["mine"]


def test_files_of_others_stay(tmp_path):
    for name in (".movie.part", "predictions.csv.part", ".rgat-notes", ".rgat-x-1-y.part"):
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (0, 0))
    write_atomically(tmp_path / "mine", b"whole")
    assert len(names(tmp_path)) == 5


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
def test_a_refusal_of_the_system_is_one_sentence_and_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(WriteError, match=r"file: cannot be written: No space left on device; make room, or choose"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_full_disk_while_writing_is_one_sentence(tmp_path, full_disk):
    path = tmp_path / "file"
    with full_disk(), pytest.raises(WriteError, match="file: cannot be written: File too large"):
        write_atomically(path, bytes(100_000))
    assert names(tmp_path) == []


def test_an_error_of_the_caller_passes_unchanged(tmp_path):
    def download():
        with replacing(tmp_path / "file") as file:
            file.write(b"half")
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        download()
    assert names(tmp_path) == []


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe, a device or a socket")):
        with pytest.raises(WriteError, match=f"cannot be written: it is {what}"):
            write_atomically(path, b"")
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_cannot_be_opened_does_no_harm(tmp_path, monkeypatch):
    """On Windows it cannot."""
    opened = os.open

    def refuse_folders(path, *arguments, **options):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse_folders)
    write_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(b"12345")
    for name in ("pipe", "zeros", "."):
        with pytest.raises(OSError, match="it must be a regular file, got a"):
            read_whole(tmp_path / name)
    assert read_whole(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="at most 4 bytes"):
        read_whole(tmp_path / "file", 4)


@pytest.mark.parametrize("name", ["aifb", "tox21-distinct", "planted-needle", "a_b.c", "122"])
def test_the_slug_of_an_ordinary_name_is_itself(name):
    assert slug(name) == name


HOSTILE = ["", ".", "..", "../../x", "/etc/passwd", "C:\\x", "a b", "AIFB", "x.", ".x", "-x", '"><script>', "é" * 999]


@given(st.one_of(st.sampled_from(HOSTILE), st.text()), st.one_of(st.sampled_from(HOSTILE), st.text()))
def test_every_name_has_a_safe_slug_of_its_own(first, second):
    for name in (first, second):
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,98}", slug(name))
    assert (slug(first) == slug(second)) == (first == second)
