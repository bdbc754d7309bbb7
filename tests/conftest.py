import contextlib
import io
import os
import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

os.environ.pop("RGAT_BACKEND", None)  # the tests choose backends themselves
torch.set_num_threads(1)  # tests run in parallel processes; more threads than cores are slower


@pytest.fixture(autouse=True)
def _fixed_and_poisoned():
    """Fix the random seed, and fill fresh memory with NaN to expose uninitialised values."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:  # those that share a fixture, of a folder before one of a file, run where it is made once
        fixtures = (each for all_ in item._fixtureinfo.name2fixturedefs.values() for each in all_)
        shared = [each.baseid for each in fixtures if each.scope in ("module", "session") and each.baseid]
        if shared and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(min(shared, key=len)))
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.fixture
def free_port():
    """Return a free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def full_disk():
    """Return a context in which no file can grow beyond some bytes, as on a full disk."""
    resource = pytest.importorskip("resource", reason="no limit of file sizes on this system")

    @contextlib.contextmanager
    def limited(size=64):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def rgat_here(monkeypatch):
    """The command line in this process, which has imported PyTorch already."""

    def run(*arguments):
        from rgat import cli

        monkeypatch.setattr(sys, "argv", ["rgat", *map(str, arguments)])
        monkeypatch.setattr("rgat.cli.printing.console", Console(width=80))
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as ended:
            cli.main()
        return SimpleNamespace(returncode=ended.value.code, stdout=out.getvalue(), stderr=errors.getvalue())

    return run
