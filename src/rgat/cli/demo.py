"""`rgat demo`."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from rgat.cli import printing
from rgat.cli.options import Workers
from rgat.cli.printing import mean_and_spread, print_page, print_table, show_records, show_stages

if TYPE_CHECKING:
    from rgat.experiments.records import Record

QUESTIONS = {
    "institute": "To which of four groups does a person of a synthetic institute belong?",
    "molecules": "Which of six patterns does a molecule contain?",
    "planted-needle": "One of eight witnesses, all of one relation, names the class; a mean cannot tell which.",
    "planted-rivals": "One of eight witnesses, each of its own relation, names the class; relations must compete.",
    "planted-consensus": "At least five of eight witnesses name the class; a mean is enough.",
}


def demo(
    sets: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME", help="Built-in data set; may be repeated.  [default: all five]"),
    ] = None,
    seeds: Annotated[int, Option(min=1, metavar="N", help="Runs per model, each with its own random seed.")] = 3,
    workers: Workers = None,
    out: Annotated[
        Path, Option(metavar="FOLDER", help="Folder for records and report; an earlier demo in it is replaced.")
    ] = Path("rgat-demo"),
) -> None:
    """Compare RGCN with four RGAT variants on built-in data.

    \b
    Examples:
      rgat demo                                     all five data sets
      rgat demo --set planted-needle --seeds 10     one data set, ten seeds
    """
    from rgat.data import load
    from rgat.experiments.compare import SETUPS, compare
    from rgat.report import check_libraries, write_report
    from rgat.training.configuration import VARIANTS

    check_libraries()
    names = list(dict.fromkeys(sets or SETUPS))
    total, done = len(names) * len(VARIANTS) * seeds, count(1)
    with show_stages("training", "report") as stages:
        stages("training")
        on_run = lambda run: show_records(stages, "training", next(done), total, run)
        runs = compare(names, seeds=seeds, workers=workers, out=out / "records", on_run=on_run)
        stages("report")
        page = write_report([out / "records" / name for name in names], out / "report")
    for name in names:
        printing.console.print(f"\n[bold]{name}[/bold]. {QUESTIONS[name]}")
        printing.console.print(str(load(name)), style="dim", highlight=False)
        _print_scores([run for run in runs if run["data"] == name])
    printing.console.print(
        f"\nMean ± standard deviation over {seeds} seeds, in %. The epoch is chosen on validation data alone. The last "
        "column tests the same trained model with constant attention: where it falls below the test column, the model "
        "uses its attention.",
        highlight=False,
    )
    print_page(page)


def _print_scores(runs: list[Record]) -> None:
    shown = ("train", "valid", "test", "constant") if printing.console.width >= 76 else ("test", "constant")
    rows = []
    for model in dict.fromkeys(run["model"] for run in runs):
        done = [run for run in runs if run["model"] == model and run["status"] == "done"]
        scores = {part: [run["scores"][part] for run in done] for part in ("train", "valid", "test")}
        # RGCN has none: its attention is always constant.
        scores["constant"] = [run["constant_scores"]["test"] for run in done if run["constant_scores"]]
        rows.append((model, *(mean_and_spread(scores[part]) for part in shown)))
    print_table(("mean ROC-AUC" if "task_scores" in runs[0] else "accuracy", *shown), rows)
