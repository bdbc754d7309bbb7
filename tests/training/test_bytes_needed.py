import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import ctypes, gc
from pathlib import Path
from helpers import labelled_graph
from rgat.training import Job, Settings, build_model, bytes_needed, fit_many, many

def resident(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

def take(size, members):
    data, settings = labelled_graph(size), Settings(max_epochs=2)
    data.graph.prepare()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    models = [build_model(data, seed) for seed in range(members)]
    fit_many(models, data, settings)
    return bytes_needed(Job(models[0], data, settings, 0)), resident("VmHWM") - before

many.free_memory = lambda device: 10**15
for members in (1, 3):
    take(100, members)  # loads and compiles
    print(*take(12_000, members), members)
"""


def test_training_takes_no_more_memory_than_was_expected():
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [tuple(map(int, row.split())) for row in done.stdout.splitlines()]
    assert len(rows) == 2
    for needed, taken, members in rows:
        assert members * needed / 10 < taken < members * needed
