"""The command line: parse, call one function, print."""

from __future__ import annotations

import importlib.util
import platform
import statistics
import sys
from typing import TYPE_CHECKING, Annotated

try:
    import typer
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ImportError as error:  # pragma: no cover
    raise SystemExit(
        f"the command line needs typer and rich ({error}); install them with `pip install rgat`"
    ) from error

if TYPE_CHECKING:
    from rgat.experiments.compare import Run

app = typer.Typer(
    help="Learn from relational graphs: relational graph attention networks and their relatives.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
console = Console()

QUESTIONS = {
    "institute": "To which of four groups does a person of a made-up institute belong?",
    "molecules": "Which of six patterns does a molecule contain?",
    "planted-needle": "One of eight witnesses of the same relation knows. A mean cannot tell which.",
    "planted-rivals": "One of eight witnesses, each of its own relation, knows. Relations must compete.",
    "planted-consensus": "Most of eight witnesses know. A mean is enough.",
}


def _version(asked: bool) -> None:
    if asked:
        from rgat.version import __version__

        print(f"rgat {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A data set to run; repeat for several. Default: institute, molecules, planted-*."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often each model is trained.")] = 3,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
) -> None:
    """Train RGCN and the four RGAT variants on built-in data, and compare them with and without attention.

    Examples:
      rgat demo                                     all five sets

      rgat demo --set planted-needle --seeds 10     one set, ten seeds
    """
    from rgat.data import load
    from rgat.experiments.compare import SETUPS, compare
    from rgat.experiments.variants import VARIANTS

    names = sets or list(SETUPS)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs,"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(TextColumn("training"), *columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(names) * len(VARIANTS) * seeds)
        runs = compare(names, seeds=seeds, workers=workers, on_run=lambda run: progress.advance(bar))
    for name in names:
        console.print(f"\n[bold]{name}[/bold]. {QUESTIONS[name]}")
        console.print(str(load(name)), style="dim", highlight=False)
        console.print(_table([run for run in runs if run.data == name]))
    console.print(
        f"\nMean ± standard deviation over {seeds} seeds, in %. The epoch is chosen on validation data alone. The last "
        "column is the same trained model, tested with all attention coefficients of a group set equal: where it falls "
        "below the test column, the model does use its attention.",
        highlight=False,
    )


def _table(runs: list[Run]) -> Table:
    metric = runs[0].result.metric
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(metric)
    for column in ("train", "valid", "test", "constant"):
        table.add_column(column, justify="right", no_wrap=True)
    for model in dict.fromkeys(run.model for run in runs):
        mine = [run.result for run in runs if run.model == model]
        columns = [[result.scores[part] for result in mine] for part in ("train", "valid", "test")]
        columns.append([result.constant_scores["test"] for result in mine])
        cells = [_mean_and_spread(values) for values in columns]
        if model == "RGCN":
            cells[-1] = "-"  # its attention is constant anyway
        table.add_row(model, *cells)
    return table


def _mean_and_spread(values: list[float]) -> str:
    percent = [100 * value for value in values]
    spread = f" ±{statistics.stdev(percent):4.1f}" if len(percent) > 1 else ""
    return f"{statistics.mean(percent):.1f}{spread}"


@app.command()
def doctor() -> None:
    """Say what this machine can use, and why not the rest."""
    import torch

    from rgat import ops
    from rgat.version import __version__

    table = Table(show_header=False, box=None)
    table.add_row("rgat", __version__)
    table.add_row("python", platform.python_version())
    table.add_row("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    table.add_row("GPU", torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch can use")
    table.add_row("backend", ops.active_backend())
    for package, purpose, extra in (
        ("rdkit", "molecules from SMILES", "molecules"),
        ("pyoxigraph", "knowledge graphs from RDF", "rdf"),
        ("optuna", "hyper-parameter search", "search"),
        ("matplotlib", "figures", "report"),
        ("ray", "many machines", "ray"),
    ):
        found = importlib.util.find_spec(package) is not None
        how = "" if found else escape(f"; pip install 'rgat[{extra}]'")
        table.add_row(package, f"{'installed' if found else 'missing'}: {purpose}{how}")
    console.print(table, highlight=False)


def main() -> None:
    """Entry point of `rgat`: a user's mistake ends with one sentence and exit code 2."""
    try:
        app()
    except (ValueError, ImportError) as error:
        print(f"rgat: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
