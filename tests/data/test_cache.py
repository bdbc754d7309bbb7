"""Where downloads and parsed data are kept, also for a user without a home."""

import os
import pwd
import stat
import subprocess
import sys

import numpy as np
import pytest

from rgat.data.cache import cached
from rgat.folders import cache_folder


@pytest.fixture
def no_home(monkeypatch, tmp_path):
    """As in a container with a random user id: no HOME, no entry for the user; an own temporary folder."""

    def unknown(user):
        raise KeyError(f"getpwuid(): uid not found: {user}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "rgat"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine" / "rgat"


def test_without_a_home_the_cache_is_a_private_temporary_folder(no_home):
    folder = cache_folder()
    assert folder == no_home / f"rgat-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache_folder() == folder  # again


def test_a_temporary_folder_that_somebody_else_has_made_is_refused(no_home, monkeypatch):
    folder = no_home / f"rgat-{os.getuid()}"
    (no_home / "elsewhere").mkdir()
    folder.symlink_to(no_home / "elsewhere")
    message = r"a cache folder must be given for a user without a home \(.*\); set XDG_CACHE_HOME to one"
    with pytest.raises(ValueError, match=message):
        cache_folder()
    folder.unlink()
    folder.write_bytes(b"")
    with pytest.raises(ValueError, match=message):
        cache_folder()
    built = cached("name", "hash", {}, lambda: {"a": np.arange(3)})  # nothing is kept, nothing fails
    assert built["a"].tolist() == [0, 1, 2]


def test_a_user_without_a_home_can_use_the_command_line(tmp_path):
    code = (
        "import pwd, runpy, sys\n"
        "def unknown(user): raise KeyError(user)\n"
        "pwd.getpwuid = unknown\n"
        "sys.argv = ['rgat', 'data', 'stats', 'aifb']\n"
        "runpy.run_module('rgat', run_name='__main__')\n"
    )
    gone = ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    (tmp_path / "aifb").mkdir()
    (tmp_path / "aifb" / "testSet.tsv").write_text("another file")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"TMPDIR": str(tmp_path), "RGAT_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "must have the SHA-256" in done.stderr
