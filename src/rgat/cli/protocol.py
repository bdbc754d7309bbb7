"""Options of the paper's protocol, and the function by which `rgat search` and `rgat reproduce` run it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from rgat.cli.options import OptionalDataName, Workers
from rgat.cli.printing import count_bar, print_line


@dataclass(frozen=True)
class PlanOptions:
    """Keys of an experiment's plan; None where an option is not given."""

    data: OptionalDataName = None
    models: Annotated[
        list[str] | None,
        Option(metavar="NAMES", help="Models, separated by commas; may be repeated.  [default: the paper's five]"),
    ] = None
    budget: Annotated[
        str | None, Option(metavar="NAME", help="smoke, small (50 trials per model) or paper (200).  [default: small]")
    ] = None
    trials: Annotated[int | None, Option(metavar="N", help="Search trials per model.  [default: by budget]")] = None
    folds: Annotated[
        int | None,
        Option(metavar="N", help="Folds of the search, of 5 for nodes or 10 for graphs.  [default: by budget]"),
    ] = None
    search_seed: Annotated[int | None, Option(metavar="N", help="Random seed of the search.  [default: 0]")] = None


@dataclass(frozen=True)
class ExecutionOptions:
    """Where the trials and runs are executed."""

    executor: Annotated[str, Option(metavar="NAME", help="local (this process), processes or ray.")] = "processes"
    workers: Workers = None
    address: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Address of a Ray cluster.  [default: start Ray on this machine]")
    ] = None
    device: Annotated[str, Option(metavar="NAME", help="cpu or cuda.")] = "cpu"


@dataclass(frozen=True)
class FileOptions:
    """Where the plan and the records are."""

    config: Annotated[
        Path | None, Option(metavar="FILE", help="TOML file with a plan; options given here override it.")
    ] = None
    out: Annotated[
        Path, Option(metavar="FOLDER", help="Folder for records; an interrupted command continues from them.")
    ] = Path("runs")
    propose: Annotated[bool, Option("--propose", help="Only write the next units of work for another machine.")] = False


def request(plan: PlanOptions, seeds: int | None = None) -> dict[str, Any]:
    """Return the keys of the plan that were given, with the names of models separated."""
    given = {key: value for key, value in (asdict(plan) | {"seeds": seeds}).items() if value is not None}
    if plan.models:
        given["models"] = [name.strip() for names in plan.models for name in names.split(",")]
    return given


def run(
    requested: dict[str, Any], files: FileOptions, execution: ExecutionOptions, search_only: bool
) -> tuple[Path, list[dict[str, Any]]]:
    """Run the units of work that have no record yet; return the folder and all records, none with `--propose`.

    Args:
        requested: keys of a plan; they override those of the plan file.
        files: the plan file and the folder for the records.
        execution: where to run.
        search_only: stop after the search, before the final runs on test data.
    """
    from rgat.experiments.prepared import write_prepared
    from rgat.experiments.protocol import open_protocol, read_request, run_protocol

    protocol = open_protocol((read_request(files.config) if files.config else {}) | requested, files.out)
    if files.propose:
        print_line(f"{write_prepared(protocol, search_only)} units to do in {protocol.folder}")
        return protocol.folder, []
    with count_bar(protocol.request.data, "records") as show:
        return protocol.folder, run_protocol(protocol, search_only, on_progress=show, **asdict(execution))
