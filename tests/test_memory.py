import os
import resource
import subprocess
import sys
import types

import pytest
import torch

from rgat import memory
from rgat.data import load
from rgat.memory import free_memory
from rgat.training import Settings, build_model, fit_many

GIB = 2**30


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path):
    """Simulate a machine with eight GiB available and no control group."""
    write(tmp_path, {"proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {8 * 2**20} kB\n"})
    return tmp_path


def test_memavailable_counts_as_free_on_linux(machine):
    assert free_memory(root=machine) == 8 * GIB


@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_the_tightest_control_group_of_the_process_counts(machine, mount):
    write(machine, {"proc/self/cgroup": "0::/pod/box\n"})
    write(machine, {f"{mount}/pod/box/memory.max": "max\n", f"{mount}/pod/box/memory.current": f"{GIB}\n"})
    assert free_memory(root=machine) == 8 * GIB
    write(machine, {f"{mount}/pod/memory.max": f"{3 * GIB}\n", f"{mount}/pod/memory.current": f"{2 * GIB}\n"})
    assert free_memory(root=machine) == GIB
    write(machine, {f"{mount}/pod/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n"})
    assert free_memory(root=machine) == 1.5 * GIB, "page cache is given up first"
    write(machine, {f"{mount}/memory.max": f"{2 * GIB}\n", f"{mount}/memory.current": f"{3 * GIB}\n"})
    assert free_memory(root=machine) == 0, "a limit that is passed leaves nothing"


def test_a_container_that_sees_its_own_group_as_the_root_is_limited_by_it(machine):
    write(machine, {"proc/self/cgroup": "0::/system/box-of-the-host\n"})
    write(machine, {"sys/fs/cgroup/memory.max": f"{2 * GIB}\n", "sys/fs/cgroup/memory.current": f"{GIB}\n"})
    assert free_memory(root=machine) == GIB


def test_control_groups_of_version_1_count(machine):
    write(machine, {"proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/box\n0::/\n"})
    group = "sys/fs/cgroup/memory/box/memory"
    write(machine, {f"{group}.limit_in_bytes": f"{4 * GIB}\n", f"{group}.usage_in_bytes": f"{2 * GIB}\n"})
    assert free_memory(root=machine) == 2 * GIB
    write(machine, {f"{group}.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n"})
    assert free_memory(root=machine) == 3 * GIB


def test_an_address_space_limit_counts(machine, monkeypatch):
    write(machine, {"proc/self/status": f"Name:\tpython\nVmSize:\t{2**20} kB\n"})
    monkeypatch.setattr(resource, "getrlimit", lambda which: (3 * GIB, 3 * GIB))
    assert free_memory(root=machine) == 2 * GIB


def test_other_unix_systems_report_free_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert free_memory(root=tmp_path) == 4_096_000


def test_macos_is_asked_for_pages_that_can_be_taken(tmp_path, monkeypatch):
    counts = {"vm.page_free_count": 10, "vm.page_purgeable_count": 1, "vm.page_pageable_external_count": 5}

    def sysctlbyname(name, value, size, new, length):
        value._obj.value = (counts | {"hw.pagesize": 16384})[name.decode()]
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: types.SimpleNamespace(sysctlbyname=sysctlbyname))
    assert free_memory(root=tmp_path) == 16 * 16384
    counts.clear()
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: types.SimpleNamespace(sysctlbyname=lambda *arguments: -1))
    assert free_memory(root=tmp_path) == memory.UNKNOWN


def test_windows_reports_available_memory(tmp_path, monkeypatch):
    def status(pointer):
        assert pointer._obj[0] == 64, "the length of the structure comes first"
        pointer._obj[1], pointer._obj[2] = 16 * GIB, 5 * GIB
        return 1

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: types.SimpleNamespace(GlobalMemoryStatusEx=status))
    assert free_memory(root=tmp_path) == 5 * GIB


def test_models_train_in_a_stack_if_free_memory_is_unknown(tmp_path, monkeypatch):
    def sysconf(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", sysconf)
    monkeypatch.setattr(memory, "_text", lambda path: "")
    assert free_memory() == memory.UNKNOWN
    data = load("institute")
    results = fit_many([build_model(data, seed) for seed in range(2)], data, Settings(max_epochs=1))
    assert all(result.how.startswith("in a stack of 2") for result in results)


def test_memory_that_the_allocator_of_a_gpu_holds_unused_is_free(monkeypatch):
    devices = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: devices.append(device) or (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert free_memory("cuda:1") == 140
    assert devices == [torch.device("cuda:1")]


FAULTS = """
import resource
import torch
from rgat import memory
from rgat.memory import kept_freed_memory, return_fragments, used_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.zeros(2**24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
without = faults()
with kept_freed_memory():
    with kept_freed_memory():
        faults()
    kept, inside = min(faults() for _ in range(5)), used_memory()[0]  # small objects may cut a freed block first
after, outside = faults(), used_memory()[0]
with kept_freed_memory():
    return_fragments()  # remembers the memory in use
    memory.GROWTH, memory._next_look = 1.0, 0.0
    blocks = [torch.ones(2**22) for _ in range(16)]
    del blocks
    grown = used_memory()[0]
    return_fragments()
    print(without, kept, after, inside - outside, grown - used_memory()[0])
"""


@pytest.mark.skipif(memory._glibc() is None, reason="only glibc can be told to keep memory")
def test_freed_memory_is_used_again_inside_the_block_and_returned_after_it():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    without, kept, after, returned, fragments = map(int, done.stdout.split())
    pages = 5 * 64 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    assert without > pages / 4
    assert after > pages / 4
    assert kept < pages / 50
    assert returned > 60 * 2**20
    assert fragments > 60 * 2**20


def test_fragments_are_returned_when_the_memory_in_use_has_grown(monkeypatch):
    trims, used = [], []
    library = types.SimpleNamespace(mallopt=lambda *_: None, malloc_trim=lambda _: trims.append(used[0]))
    monkeypatch.setattr(memory, "_glibc", lambda: library)
    monkeypatch.setattr(memory, "used_memory", lambda: (used[0], 0))
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(memory, "_next_look", 0.0)
    with memory.kept_freed_memory():
        for size in (100, 120, 140, 150, 160, 200):  # 140 is too much, so 150 is what the next steps need
            used[:] = [size]
            memory.return_fragments()
        assert trims == [140, 200]
    used[:] = [1000]
    memory.return_fragments()  # outside, nothing is kept
    assert trims == [140, 200, 200]  # the end of the block returns all


def test_memory_is_left_to_other_c_libraries(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with memory.kept_freed_memory():
        assert memory._keepers == 0
