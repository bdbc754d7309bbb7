"""Find out how much memory this process can still allocate.

On Linux this is the least of the kernel's estimate `MemAvailable`, which counts reclaimable page cache as available,
the limits of all control groups above this process, and `ulimit -v`. On other systems their own libraries tell.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# Assumed where the system does not tell: enough for small graphs, and small machines have as much.
UNKNOWN = 2**30
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's `mallopt`
NEVER = 2**31 - 1
USUAL = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20}  # what glibc raises them to, by itself

GROWTH = 1.3  # of the memory in use, above which fragments are returned; this takes as long as a step or two
LOOK_SECONDS = 1.0  # between two looks at the memory in use

_keepers = 0  # blocks that keep freed memory
_level = 0  # bytes in use when such a block was first looked at; 0 before
_next_look = 0.0
_lock = threading.Lock()


def free_memory(device: torch.device | str = "cpu", root: Path | str = "/") -> int:
    """Return how many bytes this process can still allocate on a device.

    Args:
        device: the CPU or a GPU. Memory of a GPU that PyTorch's allocator has reserved and does not use is free.
        root: the folder where `proc` and `sys` are mounted.
    """
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    root = Path(root)
    available = _available(root)
    limits = [UNKNOWN if available is None else available, *_group_limits(root), *_address_space(root)]
    return max(min(limits), 0)


def used_memory(device: torch.device | str = "cpu") -> tuple[int, int] | None:
    """Return how many bytes this process uses on a device, now and at most so far; None if the system does not tell."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    sizes = _fields(Path("/proc/self/status"))
    return (sizes["VmRSS"] * 1024, sizes["VmHWM"] * 1024) if sizes.keys() >= {"VmRSS", "VmHWM"} else None


def require(needed: int, device: torch.device | str = "cpu") -> None:
    """Raise unless so many bytes can still be allocated: a process that takes more than there is may be killed."""
    free = free_memory(device)
    if needed > free:
        raise ValueError(f"it may take {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory could not be allocated; PyTorch has no class for it on the CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in ("allocate memory", "tried to allocate")
    )


@contextmanager
def kept_freed_memory() -> Iterator[None]:
    """Let this process keep the memory that it frees while the block runs, to use it again.

    By default glibc returns every large tensor to the system when it is freed. A training step on a large graph then
    gets all its memory anew, page by page, which takes as long as the step itself. At the end of the block free memory
    is returned, and inside it by `return_fragments`. With another C library nothing happens.
    """
    global _keepers, _level
    library = _glibc()
    if library is None:
        yield
        return
    with _lock:
        _keepers += 1
        library.mallopt(M_MMAP_THRESHOLD, NEVER)
        library.mallopt(M_TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        with _lock:
            _keepers -= 1
            if not _keepers:
                _level = 0
                for option, value in USUAL.items():
                    library.mallopt(option, value)
                library.malloc_trim(0)


def return_fragments() -> None:
    """Return free memory to the system if it has grown; to be called between the steps of a training.

    Kept memory is divided among tensors of other sizes at every step, and the pieces that no later tensor fits into
    add up: in 150 epochs on a graph of a million nodes, to as much again as the training needs.
    """
    global _level, _next_look
    if not _keepers or time.monotonic() < _next_look:
        return
    with _lock:
        _next_look = time.monotonic() + LOOK_SECONDS
        if not _keepers or (used := used_memory()) is None:
            return
        if not _level:
            _level = used[0]
        elif used[0] > GROWTH * _level:
            _glibc().malloc_trim(0)
            _level = 0  # what the next look finds in use was needed since


def _glibc() -> Any:
    """Return the C library of this process if it is glibc."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def _available(root: Path) -> int | None:
    """Return the bytes that the system reports as available; None if it does not report them."""
    kibibytes = _fields(root / "proc/meminfo").get("MemAvailable")
    if kibibytes is not None:
        return kibibytes * 1024
    if sys.platform == "win32":
        return _windows()
    if sys.platform == "darwin":
        return _macos()
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _windows() -> int | None:
    """Return `ullAvailPhys` of MEMORYSTATUSEX, which holds two 32-bit and seven 64-bit integers; it is the fourth."""
    status = (ctypes.c_uint64 * 8)()
    status[0] = ctypes.sizeof(status)  # `dwLength`, the lower half of the first element
    try:
        succeeded: int = ctypes.CDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))
    except (OSError, AttributeError):
        return None
    return status[2] if succeeded else None


def _macos() -> int | None:
    """Return the bytes of pages that are free, purgeable, or cache files."""
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
    """Yield the bytes left under the limit of each control group (version 2 or 1) that this process is in."""
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for mount in (mounts, mounts / "unified"):
                yield from _left_in_groups(mount, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _left_in_groups(mounts / "memory", path, *names)


def _left_in_groups(mount: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """Yield the bytes left in a group and its parents up to the mount, which in a container may be the group itself."""
    group = mount / path.lstrip("/")
    for folder in (group, *group.parents):
        if folder == mount.parent:
            return
        maximum, used = _text(folder / limit).strip(), _text(folder / usage).strip()
        if maximum.isdigit() and used.isdigit():  # "max" means no limit
            cache = _fields(folder / "memory.stat").get(reclaimable, 0)  # the kernel reclaims it before it kills
            yield int(maximum) - max(int(used) - cache, 0)


def _address_space(root: Path) -> Iterator[int]:
    """Yield the bytes left under `ulimit -v`, if it is set."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit - _fields(root / "proc/self/status").get("VmSize", 0) * 1024


def _fields(path: Path) -> dict[str, int]:
    """Return the integers of a file with a name and an integer per line."""
    lines = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
