"""What a test has to know about processes of others, by Linux's `/proc`."""

import time
from pathlib import Path


def _state(pid):
    """State and parent of a process; a zombie or nothing if it is gone."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return state, int(parent)


def is_alive(pid):
    """Whether a process is there and no zombie: whoever adopts an orphan may be slow to bury it."""
    return _state(pid)[0] != "Z"


def children(pid):
    """The processes that a process has started."""
    everybody = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [one for one in everybody if _state(one)[1] == pid and is_alive(one)]


def wait_until(condition, seconds=120):
    """Come back when a condition holds; a deadline that is never reached unless something is wrong."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {seconds} s"
        time.sleep(0.05)
