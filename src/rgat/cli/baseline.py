"""`rgat baseline`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from rgat.cli import printing
from rgat.cli.options import DataName
from rgat.cli.printing import mean_and_spread, print_line, print_table, show_stages


def baseline(
    name: Annotated[str, Argument(metavar="NAME", help="A system of the list above, or all.")],
    data: DataName,
    seeds: Annotated[int, Option(min=1, metavar="N", help="Runs per system and split.")] = 3,
    out: Annotated[
        Path, Option(metavar="FOLDER", help="Folder for records; runs that have a record are skipped.")
    ] = Path("runs"),
) -> None:
    """Train other systems of the paper's tables and write records.

    \b
    Nodes:   FEAT, WL, RDF2Vec, R-GCN, min-max-kernel
    Graphs:  Multitask, Bypass, Weave, GraphConv, logistic-regression,
             random-forest, descriptor-forest, kernel-SVM

    \b
    Examples:
      rgat baseline WL mutag                     one system
      rgat baseline all aifb --seeds 10          all for nodes, ten runs each
      rgat baseline Weave tox21 --seeds 1        three splits, one run each
    """
    run_and_print([name], data, seeds, out)


def run_and_print(names: list[str], data: str, seeds: int, out: Path) -> list[dict[str, Any]]:
    """Run baselines, print their scores and failures, and return their records."""
    from rgat.experiments.baseline_runs import run_baselines

    records: list[dict[str, Any]] = []
    with show_stages("baselines") as stages:
        stages("baselines")
        for name in names:
            for record in run_baselines(name, data, seeds, out):
                records.append(record)
                stages("baselines", text=f"{len(records)} run{'s' * (len(records) > 1)}, {record['model']} the last")
    print_table(("system", "runs", "train", "valid", "test", "seconds"), _rows(records))
    for record in records:
        if record["status"] != "done":
            print_line(f"{record['model']}, seed {record['seed']}: {record['error']}")
    printing.console.print(
        f"Mean ± standard deviation of the metric of {data}, in %. Records are in {out / data}.", highlight=False
    )
    return records


def _rows(records: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows = []
    for model in dict.fromkeys(record["model"] for record in records):
        done = [record for record in records if record["model"] == model and record["status"] == "done"]
        scores = [[record["scores"][part] for record in done] for part in ("train", "valid", "test")]
        cells = [mean_and_spread(values) if None not in values else "-" for values in scores]
        seconds = f"{statistics.mean(record['seconds'] for record in done):.1f}" if done else "-"
        rows.append((model, str(len(done)), *cells, seconds))
    return rows
