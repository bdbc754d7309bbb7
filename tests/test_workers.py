import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers_processes import is_alive, wait_until

import rgat
from rgat.workers import WorkerPool

SCRIPT = """
import os, sys, time
from rgat.workers import WorkerPool

if __name__ == "__main__":
    with WorkerPool(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600)
        sys.stdin.read()
"""


def test_a_busy_worker_exits_when_its_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(script)], **pipes) as parent:
        worker = int(parent.stdout.readline())
        assert is_alive(worker)
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker))


def test_an_error_stops_running_work_at_once():
    workers = []

    def fail():
        with WorkerPool(1) as pool:
            workers.append(pool.submit(os.getpid).result())
            pool.submit(time.sleep, 600)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not is_alive(workers[0])


def test_submitted_work_is_finished():
    with WorkerPool(1) as pool:
        futures = [pool.submit(pow, 2, power) for power in range(20)]
    assert [future.result() for future in futures] == [2**power for power in range(20)]


def test_the_package_uses_no_other_process_pool():
    root = Path(rgat.__file__).parent
    pools = [path for path in root.rglob("*.py") if re.search(r"ProcessPoolExecutor|\bPool\(", path.read_text())]
    assert [path.relative_to(root).as_posix() for path in pools] == ["workers.py"]
    users = [path for path in root.rglob("*.py") if re.search(r"WorkerPool[(,]", path.read_text())]
    assert len(users) == 4
