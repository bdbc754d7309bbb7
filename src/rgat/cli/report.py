"""`rgat report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from rgat.cli.printing import print_line, print_page


def report(
    runs: Annotated[list[Path], Argument(metavar="RUNS", help="Folders or packed files of records.")],
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder for the report.")] = Path("rgat-report"),
) -> None:
    """Turn records into tables, charts and one HTML page.

    \b
    Examples:
      rgat report runs/aifb                      one data set
      rgat report records --out report           all records below a folder
    """
    from rgat.report import write_report

    print_page(write_report(runs, out, print_line))
