"""Print lines, tables and progress bars."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console()


def print_line(text: str) -> None:
    """Print a line unchanged: without markup, because names may hold brackets, and unwrapped, to copy paths from."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def print_page(page: Path) -> None:
    """Print where a report is."""
    print_line(f"\nThe report, to open in a browser: {page.resolve()}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> None:
    """Print a table whose first ``text_columns`` hold text and the others numbers; without column names, no header."""
    table = Table(box=box.SIMPLE if columns else None, show_header=bool(columns), pad_edge=False)
    for index, column in enumerate(columns):
        is_text = index < text_columns
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table, highlight=False)


def print_class_tables(tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]) -> None:
    """Print tables with a title each: the scores of classes, whose first two columns are text, and their confusions."""
    for title, columns, rows in tables:
        print_line(title)
        print_table(columns, rows, text_columns=1 if columns[0] == "" else 2)


def mean_and_spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation in percent, as a cell of a table; "-" without values."""
    if not values:
        return "-"
    percent = [100 * value for value in values]
    spread = f" ±{statistics.stdev(percent):4.1f}" if len(percent) > 1 else ""
    return f"{statistics.mean(percent):.1f}{spread}"


@contextmanager
def step_bars() -> Iterator[Callable[[str, float], None]]:
    """Yield a function that takes the name of a step and the share of it that is done, and draws a bar per step."""
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(step: str, share: float) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=1.0)
            bars.update(tasks[step], completed=share)

        yield show


@contextmanager
def count_bar(title: str, unit: str | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function that takes how many units (None: bytes) are done, and of how many, and draws one bar."""
    counts = (DownloadColumn(),) if unit is None else (MofNCompleteColumn(), TextColumn(f"{unit},"))
    columns = (TextColumn(title), BarColumn(), *counts, TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def triple_bars() -> Iterator[Callable[[str, float, int], None]]:
    """Yield a function that takes a step, the share of it that is done and the triples read; draw a bar per step."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(step: str, share: float, triples: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=1.0, rate="")
            seconds = bars.tasks[tasks[step]].elapsed or 0.0
            rate = f"{triples / seconds:,.0f} triples/s" if seconds > 1 and len(tasks) == 1 else ""
            bars.update(tasks[step], completed=share, rate=rate)

        yield show
