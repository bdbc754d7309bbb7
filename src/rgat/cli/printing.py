"""Print lines, tables and progress."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rgat.progress import Stages, shown

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
        is_text, cells = index < text_columns, [row[index] for row in rows]
        # In a narrow window, headers wrap; numbers and words of usual length stay whole, an IRI is folded.
        pieces = [word for cell in cells for word in cell.split()] if is_text else cells
        least = max(map(len, [*column.split(), *pieces]), default=0)
        least = min(least, console.width // 4) if is_text else least
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", min_width=least or None)
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


def show_stages(*names: str, show: bool = True) -> AbstractContextManager[Stages]:
    """Return a context that shows the stages of a command, unless the console is quiet."""
    return shown(show and not console.quiet, names, console)


def show_records(stages: Stages, stage: str, done: int, total: int, record: Mapping[str, Any] | None) -> None:
    """Show how many records there are, and the validation score of the last trial or the test score of the last run."""
    text = f"{done:,} of {total:,} records" if total else ""
    if record is not None and record["kind"] != "declaration":
        is_trial = record["kind"] == "trial"
        score = record["objective"] if is_trial else (record["scores"] or {}).get("test")
        which = f"trial {record['trial']}" if is_trial else f"seed {record['seed']}"
        text += f", {record['model']}, {which}: {record['status'] if score is None else f'{score:.3f}'}"
    stages(stage, done / max(total, 1), text)
