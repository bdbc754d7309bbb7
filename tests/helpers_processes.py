"""Inspect other processes through Linux's `/proc`."""

import time
from pathlib import Path


def _state(pid):
    """Return the state and parent of a process; ("Z", 0) if there is none."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return state, int(parent)


def is_alive(pid):
    """Return whether a process runs; a zombie does not, since its new parent may reap it late."""
    return _state(pid)[0] != "Z"


def children(pid):
    """Return the live child processes of a process."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [other for other in pids if _state(other)[1] == pid and is_alive(other)]


def wait_until(condition, seconds=120):
    """Return when a condition holds; fail after a deadline that is only reached if something is wrong."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {seconds} s"
        time.sleep(0.05)
