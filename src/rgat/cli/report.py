"""`rgat report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rgat.cli.printing import print_line, print_page


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders or packed files of records.", metavar="RUNS...")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("rgat-report"),
) -> None:
    """Turn records into tables, charts, significance tests and one page to open in a browser.

    \b
    Examples:
      rgat report runs/aifb                      one data set
      rgat report records --out report           everything below a folder
    """
    from rgat.report import write_report

    print_page(write_report(runs, out, print_line))
