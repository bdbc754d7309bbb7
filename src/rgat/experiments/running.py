"""Run an experiment: the next units of work follow from the request and the records alone.

An experiment that was interrupted at any moment therefore continues when it is run again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from rgat.experiments.executors import open_executor
from rgat.experiments.extended import check_libraries, extended_units, minutes_of, minutes_spent
from rgat.experiments.paper import paper_units
from rgat.experiments.protocol import Protocol
from rgat.experiments.records import Record, read_record, record_name, write_record
from rgat.experiments.request import EXTENDED
from rgat.experiments.units import Unit


def next_units(
    protocol: Protocol, records: Sequence[Record], search_only: bool = False, minutes: float | None = None
) -> list[Unit]:
    """Return the units that can run now.

    ``minutes`` have been spent on the search; by default those of the records.
    """
    if protocol.request.space == EXTENDED:
        return extended_units(protocol, records, search_only, minutes_spent(records) if minutes is None else minutes)
    return paper_units(protocol, records, search_only)


def run_protocol(
    protocol: Protocol,
    search_only: bool = False,
    executor: str = "local",
    workers: int | None = None,
    address: str | None = None,
    device: str = "cpu",
    on_progress: Callable[[int, int, Record | None], None] | None = None,
    processes_per_run: int = 1,
) -> list[Record]:
    """Run all remaining units, write each record when it is complete, and return all records.

    A search with minutes ends after them; those of earlier calls count by their records.

    Args:
        protocol: the protocol, from ``open_protocol``.
        search_only: skip the final runs, which use the test parts.
        executor: "local", "processes" or "ray".
        workers: number of processes; by default one per core.
        address: address of a Ray cluster; by default Ray is started on this machine.
        device: "cpu" or "cuda".
        on_progress: called with the number of existing records, that of all records that are known to come, and the
            new one if there is one.
        processes_per_run: number of workers of a Ray cluster that train each node classifier together.
    """
    records, request = protocol.records(), protocol.request
    if request.minutes is not None and processes_per_run > 1:
        raise ValueError("`processes_per_run` must be 1 with `minutes`, after which trials are stopped; give `trials`")
    if request.space == EXTENDED and not search_only:
        check_libraries(protocol, records)
    started = time.monotonic() - 60 * minutes_spent(records)
    shared = shared_entries(protocol, 1 if executor == "local" else workers or os.cpu_count() or 1)

    def report_progress(remaining: int, new: Record | None = None) -> None:
        if on_progress is not None:
            counted = sum(not search_only or record["kind"] == "trial" for record in records)
            on_progress(counted, _num_records(protocol, search_only) or counted + remaining, new)

    report_progress(0)
    with open_executor(executor, protocol.folded, workers, address, device, processes_per_run) as execute:
        while units := next_units(protocol, records, search_only, (time.monotonic() - started) / 60):
            limit = minutes_of(request, units[0])
            until = None if limit is None else started + 60 * limit
            for number, record in enumerate(execute(units, until), 1):
                path = write_record(protocol.folder, record | shared)
                records.append(read_record(path))  # as a later call would read it
                report_progress(len(units) - number, record)
    return sorted(records, key=lambda record: (request.models.index(record["model"]), record_name(record)))


def shared_entries(protocol: Protocol, workers: int) -> dict[str, Any]:
    """Return entries of all records that so many workers write: in the extended space, their number."""
    return {} if protocol.request.space == "paper" else {"workers": workers}


def _num_records(protocol: Protocol, search_only: bool) -> int | None:
    """Return the number of records of a finished experiment; None where it is not known before."""
    request = protocol.request
    if request.space == EXTENDED:
        return None
    num_runs = 0 if search_only else request.seeds * len(protocol.folded.splits)
    return len(request.models) * (request.trials + num_runs)
