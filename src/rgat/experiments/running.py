"""Run an experiment: the next units of work follow from the request and the records alone.

An experiment that was interrupted at any moment therefore continues when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rgat.experiments.executors import open_executor
from rgat.experiments.paper import paper_units
from rgat.experiments.protocol import Protocol
from rgat.experiments.records import Record, read_record, record_name, write_record
from rgat.experiments.units import Unit


def next_units(protocol: Protocol, records: Sequence[Record], search_only: bool = False) -> list[Unit]:
    """Return the units that can run now."""
    return paper_units(protocol, records, search_only)


def run_protocol(
    protocol: Protocol,
    search_only: bool = False,
    executor: str = "local",
    workers: int | None = None,
    address: str | None = None,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Run all remaining units, write each record when it is complete, and return all records.

    Args:
        protocol: the protocol, from ``open_protocol``.
        search_only: skip the final runs, which use the test parts.
        executor: "local", "processes" or "ray".
        workers: number of processes; by default one per core.
        address: address of a Ray cluster; by default Ray is started on this machine.
        device: "cpu" or "cuda".
        on_progress: called with the number of existing records and of all records.
    """
    records, request = protocol.records(), protocol.request
    num_runs = 0 if search_only else request.seeds * len(protocol.folded.splits)
    total = len(request.models) * (request.trials + num_runs)

    def report_progress() -> None:
        if on_progress is not None:
            on_progress(sum(not search_only or record["kind"] == "trial" for record in records), total)

    report_progress()
    with open_executor(executor, protocol.folded, workers, address, device) as execute:
        while units := next_units(protocol, records, search_only):
            for record in execute(units):
                path = write_record(protocol.folder, record)
                records.append(read_record(path))  # as a later call would read it
                report_progress()
    return sorted(records, key=lambda record: (request.models.index(record["model"]), record_name(record)))
