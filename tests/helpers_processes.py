"""Look at other processes through Linux's `/proc`."""

import time
from pathlib import Path


def _state(pid):
    """Return the state and the parent of a process; those of a zombie if it is gone."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return state, int(parent)


def is_alive(pid):
    """Return whether a process runs; a zombie does not, and an orphan may stay one until init reaps it."""
    return _state(pid)[0] != "Z"


def children(pid):
    """Return the running processes that a process has started."""
    processes = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [process for process in processes if _state(process)[1] == pid and is_alive(process)]


def wait_until(condition, seconds=120):
    """Return when a condition holds; fail if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {seconds} s"
        time.sleep(0.05)
