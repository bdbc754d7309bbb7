"""`rgat reproduce`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from rgat.cli import protocol
from rgat.cli.baseline import run_and_print
from rgat.cli.options import grouped, required_data
from rgat.cli.printing import print_line, print_table


@grouped
def reproduce(
    plan: protocol.PlanOptions,
    files: protocol.FileOptions,
    execution: protocol.ExecutionOptions,
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
    """
    requested = protocol.request(plan, seeds)
    names = requested.get("models", [])
    baselines = [] if files.propose else [name for name in names if _is_baseline(name)]
    if baselines:
        requested["models"] = [name for name in names if name not in baselines]
    if baselines and not requested["models"]:
        records = run_and_print(baselines, required_data(plan.data), seeds or 3, files.out)
    else:
        folder, records = protocol.run(requested, files, execution, search_only=False)
        if records:
            print_table(("model", "runs", "test", "constant", "paper"), _rows(records))
            print_line(f"Records are in {folder}.")
        if baselines:
            run_and_print(baselines, folder.name, seeds or 3, files.out)
    if records and configs is not None:
        from rgat.experiments.published import write_configs

        for path in write_configs(records, configs, shlex.join(["rgat", *sys.argv[1:]])):
            print_line(f"{path}")


def _is_baseline(name: str) -> bool:
    """Return whether a name is that of a baseline, in any spelling that is not a model's."""
    from rgat.experiments.baseline_runs import is_baseline
    from rgat.experiments.variants import ALL_VARIANTS

    return name not in ALL_VARIANTS and is_baseline(name)


def _rows(records: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    from rgat.experiments.published import summarise

    rows = []
    for row in summarise(records):
        scores = (row.test, row.constant, row.paper)
        cells = [f"{100 * score.mean:.1f} ±{100 * score.spread:.1f}" if score else "-" for score in scores]
        rows.append((row.model, f"{row.runs}" + (f" ({row.lost} lost)" if row.lost else ""), *cells))
    return rows
