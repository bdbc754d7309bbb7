"""Measure the peak of resident memory in a fresh process, above the level before."""

import ctypes
import multiprocessing


def _status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def _measure(queue, prepare, arguments):
    work = prepare(*arguments)
    ctypes.CDLL(None).malloc_trim(0)  # return freed memory first, or its reuse would not be counted
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = _status("VmRSS")
    work()
    queue.put(_status("VmHWM") - before)


def peak_above(prepare, *arguments, timeout=3600):
    """Return the peak bytes of the function that ``prepare(*arguments)`` returns, above the level before its call."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_measure, args=(queue, prepare, arguments))
    child.start()
    bytes_above = queue.get(timeout=timeout)
    child.join()
    return bytes_above
