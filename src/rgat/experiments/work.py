"""Run the units of a folder and write their records there: `python -m rgat.experiments.work FOLDER`.

For a machine that has torch, numpy and safetensors but none of the libraries that read RDF and SMILES. The folder is
that of an experiment after `rgat reproduce ... --propose`. What is done already is not done again. Where Optuna is
there, `--all` goes on with the next rounds and the final runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rgat.data.files import read_whole
from rgat.experiments.executors import open_executor
from rgat.experiments.protocol import UNITS, read_prepared, run_protocol
from rgat.experiments.records import has_record, write_record


def work(
    folder: Path, device: str = "cpu", workers: int = 1, search_only: bool = False, to_the_end: bool = False
) -> int:
    """Do the units of ``folder`` whose records are missing, or with ``to_the_end`` all that follows; say how many."""
    experiment = read_prepared(folder)
    executor, processes = ("local", None) if workers == 1 else ("processes", workers)
    if to_the_end:
        before = len(experiment.records())
        options = {"executor": executor, "workers": processes, "device": device}
        records = run_protocol(experiment, search_only, **options, on_progress=_say)  # type: ignore[arg-type]
        return len(records) - before
    try:
        units = json.loads(read_whole(folder / UNITS))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{folder} must hold {UNITS} ({error}); write it with `rgat reproduce --propose`, or ask for --all"
        ) from error
    try:
        left = [unit for unit in units if not has_record(folder, unit)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / UNITS} must be a list of units of work, got another ({error})") from error
    with open_executor(executor, experiment.division, processes, None, device) as execute:
        for number, record in enumerate(execute(left), 1):
            write_record(folder, record)
            _say(number, len(left))
    return len(left)


def _say(done: int, total: int) -> None:
    print(f"{done} of {total} records", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m rgat.experiments.work", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="of an experiment, as --propose wrote it")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--all", action="store_true", help="go on to the end; needs Optuna for a search")
    parser.add_argument("--search-only", action="store_true", help="with --all: leave the test parts alone")
    given = parser.parse_args(arguments)
    try:
        work(given.folder, given.device, given.workers, given.search_only, given.all)
    except (ValueError, OSError) as error:
        print(f"rgat: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
