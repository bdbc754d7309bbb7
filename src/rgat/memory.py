"""How much memory a process may still take: what the machine has, what its container allows, what its limits say.

On Linux the kernel's estimate counts, `MemAvailable`, which includes the page cache that it would give up, and the
tightest of the control groups above this process. Other systems are asked through their own libraries.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

# What is assumed of a machine that does not say what it has: enough for small graphs, little enough for small machines.
UNKNOWN = 2**30


def free_memory(device: torch.device | str = "cpu", root: Path | str = "/") -> int:
    """Return how many bytes this process can still allocate on a device.

    Args:
        device: the CPU, or a GPU: there, what the allocator of PyTorch holds without using it counts as free.
        root: where `proc` and `sys` are mounted.
    """
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    root = Path(root)
    machine = _available(root)
    limits = [UNKNOWN if machine is None else machine, *_group_limits(root), *_address_space(root)]
    return max(min(limits), 0)


def _available(root: Path) -> int | None:
    """What the machine says it can give; None if it does not say."""
    told = _fields(root / "proc/meminfo").get("MemAvailable")
    if told is not None:
        return told * 1024
    if sys.platform == "win32":
        return _windows()
    if sys.platform == "darwin":
        return _macos()
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _windows() -> int | None:
    """`ullAvailPhys` of GlobalMemoryStatusEx: two 32-bit numbers, then seven of 64 bits, of which it is the second."""
    status = (ctypes.c_uint64 * 8)()
    status[0] = ctypes.sizeof(status)  # `dwLength`, the lower half of the first
    try:
        told: int = ctypes.CDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))
    except (OSError, AttributeError):
        return None
    return status[2] if told else None


def _macos() -> int | None:
    """Pages that are free, purgeable, or hold files and can be given up."""
    names = (b"vm.page_free_count", b"vm.page_purgeable_count", b"vm.page_pageable_external_count")
    try:
        library = ctypes.CDLL(None)
        pages = [_sysctl(library, name) for name in names]
        return sum(pages) * _sysctl(library, b"hw.pagesize")
    except (OSError, AttributeError):
        return None


def _sysctl(library: ctypes.CDLL, name: bytes) -> int:
    value, size = ctypes.c_uint64(), ctypes.c_size_t(8)
    if library.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)):
        raise OSError(f"there is no {name.decode()}")
    return value.value


def _group_limits(root: Path) -> Iterator[int]:
    """What each control group above this process still allows, of version 2 and of version 1."""
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for mount in (mounts, mounts / "unified"):
                yield from _climb(mount, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _climb(mounts / "memory", path, *names)


def _climb(mount: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """From a group to the root. Inside a container the mount may be the group itself, and its path not be there."""
    group = mount / path.lstrip("/")
    for folder in (group, *group.parents):
        if folder == mount.parent:
            return
        most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
        if most.isdigit() and used.isdigit():  # "max" is no limit
            cache = _fields(folder / "memory.stat").get(reclaimable, 0)  # given up before anybody is killed
            yield int(most) - max(int(used) - cache, 0)


def _address_space(root: Path) -> Iterator[int]:
    """What `ulimit -v` leaves."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit - _fields(root / "proc/self/status").get("VmSize", 0) * 1024


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number per line."""
    words = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
