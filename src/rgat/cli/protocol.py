"""Options of the paper's protocol, and how `rgat search` and `rgat reproduce` run it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rgat.cli.options import OptionalDataName, Workers
from rgat.cli.printing import count_bar, print_line


@dataclass(frozen=True)
class PlanOptions:
    """What to search: the keys of a plan file, None where an option is not given."""

    data: OptionalDataName = None
    models: Annotated[
        list[str] | None,
        typer.Option(help="A model of the paper's tables; repeat, or join by commas. Default: all five."),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(help="How much: smoke, small (50 trials per model; the default) or paper (200 trials)."),
    ] = None
    trials: Annotated[int | None, typer.Option(help="Trials of each model's search, in place of the budget's.")] = None
    folds: Annotated[int | None, typer.Option(help="Folds of the search: of five for nodes, of ten for graphs.")] = None
    search_seed: Annotated[int | None, typer.Option(help="Seed of the search's draws.  [default: 0]")] = None


@dataclass(frozen=True)
class ExecutionOptions:
    """Who runs the units of work."""

    executor: Annotated[str, typer.Option(help="Who works: local (this process), processes, or ray.")] = "processes"
    workers: Workers = None
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, host:port; without one Ray is started here.")
    ] = None
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu"


@dataclass(frozen=True)
class FolderOptions:
    """Where a plan comes from and where records go."""

    config: Annotated[Path | None, typer.Option(help="A TOML file; options given here win over it.")] = None
    out: Annotated[Path, typer.Option(help="Where records go: into a folder named after the data set.")] = Path("runs")
    propose: Annotated[
        bool, typer.Option("--propose", help="Only write the next units of work for another machine.")
    ] = False


def request(plan: PlanOptions, seeds: int | None = None) -> dict[str, Any]:
    """Return the plan's keys that were given; models joined by commas are several."""
    given = {key: value for key, value in (asdict(plan) | {"seeds": seeds}).items() if value is not None}
    if plan.models:
        given["models"] = [name.strip() for names in plan.models for name in names.split(",")]
    return given


def run(
    requested: dict[str, Any], folders: FolderOptions, execution: ExecutionOptions, search_only: bool
) -> tuple[Path, list[dict[str, Any]]]:
    """Do what is left of the protocol; return its folder and all records, with `--propose` none.

    Args:
        requested: keys of a plan; they win over those of the plan file.
        folders: the plan file, and where to put the records.
        execution: who works.
        search_only: leave the test parts alone.
    """
    from rgat.experiments.prepared import write_prepared
    from rgat.experiments.protocol import open_protocol, run_protocol
    from rgat.experiments.request import read_request

    protocol = open_protocol((read_request(folders.config) if folders.config else {}) | requested, folders.out)
    if folders.propose:
        print_line(f"{write_prepared(protocol, search_only)} units to do in {protocol.folder}")
        return protocol.folder, []
    with count_bar(protocol.request.data, "records") as show:
        return protocol.folder, run_protocol(protocol, search_only, on_progress=show, **asdict(execution))
