"""`rgat reproduce`, and what `rgat search` shares with it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from rgat.cli.baseline import run_and_print
from rgat.cli.options import OptionalDataName, Workers, grouped, required_data
from rgat.cli.printing import print_line, print_table, show_records, show_stages


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
    space: Annotated[
        str | None,
        Option(metavar="NAME", help="paper (its priors, per model), or extended: one search of all models."),
    ] = None
    minutes: Annotated[
        float | None, Option(metavar="M", help="End the search after M minutes; implies --space extended.")
    ] = None


@dataclass(frozen=True)
class ExecutionOptions:
    """Where the trials and runs are executed."""

    executor: Annotated[str, Option(metavar="NAME", help="local (this process), processes or ray.")] = "processes"
    workers: Workers = None
    address: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Address of a Ray cluster.  [default: start Ray on this machine]")
    ] = None
    device: Annotated[str, Option(metavar="NAME", help="cpu or cuda.")] = "cpu"
    processes_per_run: Annotated[
        int, Option(min=1, metavar="K", help="With ray, workers that train each node classifier together.")
    ] = 1


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


@grouped
def reproduce(
    plan: PlanOptions,
    files: FileOptions,
    execution: ExecutionOptions,
    seeds: Annotated[
        int | None, Option(metavar="N", help="Final runs per model and split.  [default: by budget]")
    ] = None,
    configs: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write each model's selected setting there, as TOML.")
    ] = None,
) -> None:
    """Run the paper's protocol: search, select, retrain, evaluate.

    \b
    Examples:
      rgat reproduce institute --budget smoke          one minute, built-in data
      rgat reproduce aifb --budget small               50 trials, 200 seeds
      rgat reproduce aifb --models "GGNN, dynamic WIRGAT, WL" --trials 20
      rgat reproduce mutag --executor ray --address 10.0.0.1:6379
      rgat reproduce --config configs/aifb/rgcn.toml   a setting selected before
      rgat reproduce aifb --space extended --minutes 30
    """
    from rgat.experiments.baseline_runs import is_baseline
    from rgat.experiments.variants import ALL_VARIANTS

    requested = plan_keys(plan, seeds)
    if configs is not None and {"space", "minutes"} & requested.keys():
        raise ValueError("`--configs` must be left out with the space extended, whose settings are in its records")
    names = requested.get("models", [])
    baselines = [name for name in names if not files.propose and name not in ALL_VARIANTS and is_baseline(name)]
    if baselines:
        requested["models"] = [name for name in names if name not in baselines]
    if baselines and not requested["models"]:
        records = run_and_print(baselines, required_data(plan.data), seeds or 3, files.out)
    else:
        folder, records = run_plan(requested, files, execution, search_only=False)
        if records:
            print_search(records)
            print_table(("model", "runs", "test", "constant", "paper"), _rows(records))
            print_line(f"Records are in {folder}.")
        if baselines:
            run_and_print(baselines, folder.name, seeds or 3, files.out)
    if records and configs is not None:
        from rgat.experiments.published import write_configs

        for path in write_configs(records, configs, shlex.join(["rgat", *sys.argv[1:]])):
            print_line(f"{path}")


def plan_keys(plan: PlanOptions, seeds: int | None = None) -> dict[str, Any]:
    """Return the keys of the plan that were given, with the names of models separated."""
    given = {key: value for key, value in (asdict(plan) | {"seeds": seeds}).items() if value is not None}
    if plan.models:
        given["models"] = [name.strip() for names in plan.models for name in names.split(",")]
    return given


def print_search(records: list[dict[str, Any]]) -> bool:
    """Print what an extended search tried and selected; return whether it is one."""
    from rgat.experiments.extended import describe_search
    from rgat.experiments.request import EXTENDED

    if records[0]["setting"] != EXTENDED:
        return False
    for line in describe_search(records):
        print_line(line)
    return True


def run_plan(
    requested: dict[str, Any], files: FileOptions, execution: ExecutionOptions, search_only: bool
) -> tuple[Path, list[dict[str, Any]]]:
    """Run the units of work that have no record yet; return the folder and all records, none with `--propose`.

    The requested keys override those of the plan file. With ``search_only``, no final runs on test data follow.
    """
    from rgat.experiments.prepared import write_prepared
    from rgat.experiments.protocol import open_protocol
    from rgat.experiments.request import read_request
    from rgat.experiments.running import run_protocol

    work = "trials" if search_only else "trials and runs"
    with show_stages("reading", work, show=not files.propose) as stages:
        stages("reading")
        protocol = open_protocol((read_request(files.config) if files.config else {}) | requested, files.out)
        if not files.propose:
            show = partial(show_records, stages, work)
            return protocol.folder, run_protocol(protocol, search_only, on_progress=show, **asdict(execution))
    print_line(f"{write_prepared(protocol, search_only)} units to do in {protocol.folder}")
    return protocol.folder, []


def _rows(records: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    from rgat.experiments.published import summarise

    rows = []
    for row in summarise(records):
        scores = (row.test, row.constant, row.paper)
        cells = [f"{100 * score.mean:.1f} ±{100 * score.spread:.1f}" if score else "-" for score in scores]
        rows.append((row.model, f"{row.runs}" + (f" ({row.lost} lost)" if row.lost else ""), *cells))
    return rows
