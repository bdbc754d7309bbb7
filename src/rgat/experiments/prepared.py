"""Run an experiment on a machine that can read neither RDF nor SMILES: `python -m rgat.experiments.prepared FOLDER`.

`rgat reproduce ... --propose` prepares the folder: it writes the request, the data and the next units of work. This
module needs only torch, numpy and safetensors; it has its own command line because `rgat` needs Typer and Rich. Units
that have a record are not run again. With Optuna, `--all` continues with the next rounds and the final runs; the
extended space needs scikit-learn and SciPy too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rgat.data.files import read_whole, write_atomically
from rgat.experiments.executors import open_executor
from rgat.experiments.folds import decode, encode
from rgat.experiments.protocol import Protocol
from rgat.experiments.records import Record, has_record, write_record
from rgat.experiments.request import Request
from rgat.experiments.running import next_units, run_protocol, shared_entries

UNITS, REQUEST, DATA = "units.json", "request.json", "data.safetensors"


def write_prepared(protocol: Protocol, search_only: bool = False) -> int:
    """Write the next units, the request and the data beside the records; return the number of units.

    After the units have run elsewhere, bring back the folder ``records``.
    """
    units = next_units(protocol, protocol.records(), search_only)
    request = dataclasses.asdict(protocol.request) | {"data_hashes": protocol.data_hashes}
    write_atomically(protocol.folder / DATA, encode(protocol.folded))
    write_atomically(protocol.folder / REQUEST, json.dumps(request, indent=1).encode())
    write_atomically(protocol.folder / UNITS, json.dumps(units, indent=1).encode())
    return len(units)


def read_prepared(folder: Path) -> Protocol:
    """Return the protocol that ``write_prepared`` wrote, without reading the data set's own files."""
    try:
        values = json.loads(read_whole(folder / REQUEST))
        content = read_whole(folder / DATA)
        hashes = values.pop("data_hashes")
        request = Request(**values | {"models": tuple(values["models"])})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{folder} must hold {REQUEST} and {DATA} ({error}); write them with `rgat reproduce --propose`"
        ) from error
    return Protocol(request, decode(content), folder, hashes)


def run_prepared(
    folder: Path, device: str = "cpu", workers: int = 1, search_only: bool = False, to_the_end: bool = False
) -> int:
    """Run the units without a record, or with ``to_the_end`` the whole protocol; return the number of new records."""
    protocol = read_prepared(folder)
    executor, processes = ("local", None) if workers == 1 else ("processes", workers)
    if to_the_end:
        before = len(protocol.records())
        return len(run_protocol(protocol, search_only, executor, processes, None, device, _print_progress)) - before
    try:
        units = json.loads(read_whole(folder / UNITS))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{folder} must hold {UNITS} ({error}); write it with `rgat reproduce --propose`, or ask for --all"
        ) from error
    try:
        remaining = [unit for unit in units if not has_record(folder, unit)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / UNITS} must be a list of units of work, got another content ({error})") from error
    with open_executor(executor, protocol.folded, processes, None, device) as execute:
        for number, record in enumerate(execute(remaining), 1):
            write_record(folder, record | shared_entries(protocol, workers))
            _print_progress(number, len(remaining))
    return len(remaining)


def _print_progress(finished: int, total: int, new: Record | None = None) -> None:
    print(f"{finished} of {total} records", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rgat.experiments.prepared", description="Run the units of a prepared experiment."
    )
    parser.add_argument("folder", type=Path, help="the experiment's folder, prepared by --propose")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument("--all", action="store_true", help="run the whole protocol; a search needs Optuna")
    parser.add_argument("--search-only", action="store_true", help="with --all: do not use the test parts")
    options = parser.parse_args(arguments)
    try:
        run_prepared(options.folder, options.device, options.workers, options.search_only, options.all)
    except (ValueError, OSError, ImportError) as error:
        print(f"rgat: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
