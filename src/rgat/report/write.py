"""Write the report: from records to a folder of tables, charts and one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rgat.data.files import write_atomically
from rgat.report.analysis import Analysis
from rgat.report.drawing import style
from rgat.report.formats import to_csv, to_latex
from rgat.report.page import arrange, to_document, to_page
from rgat.report.records import LEFT_OUT, load_studies

PAGE = "report.html"
MOST_DAMAGE = 20  # sentences for `on_damage`


def check_libraries() -> None:
    """Raise an ImportError unless the libraries of the report are installed; call it before a long training."""
    try:
        import matplotlib as mpl
        import scipy
    except ImportError as error:
        raise ImportError(
            f"a report needs matplotlib and scipy ({error}); install them with `pip install 'rgat[report]'`"
        ) from error
    del mpl, scipy


def write_report(runs: Sequence[Path], out: Path, on_damage: Callable[[str], None] | None = None) -> Path:
    """Write the report on all records at or below ``runs`` into the folder ``out``, and return the path of its page.

    The folder then holds ``report.html``, ``results.md``, ``tables/*.csv`` and ``*.tex``, and ``charts/*.svg``,
    ``*.pdf`` and ``*.png``. The same records give the same bytes. Damaged records and files are left out, and the page
    lists them.

    Args:
        runs: folders and packed files of records.
        out: the folder.
        on_damage: called with a sentence on each of the first 20 damaged records and files, and one with their number.
    """
    check_libraries()
    studies, notices = load_studies(runs)
    left_out = [notice for notice in notices if notice.startswith(LEFT_OUT)]
    if left_out:
        count = f"Damaged records and files that are left out: {len(left_out)}."
        notices.insert(0, count)
        if on_damage is not None:
            for sentence in (*left_out[:MOST_DAMAGE], count):
                on_damage(sentence)
    with style():
        sections = arrange([Analysis(study) for study in studies], notices)
        svgs = {}
        for chart in (chart for section in sections for block in section.blocks for chart in block.charts):
            for path, content in chart.save(out / "charts"):
                write_atomically(path, content)
                if path.suffix == ".svg":
                    svgs[chart.key] = content
    for table in (table for section in sections for block in section.blocks for table in block.tables):
        write_atomically(out / "tables" / f"{table.key}.csv", to_csv(table).encode())
        write_atomically(out / "tables" / f"{table.key}.tex", to_latex(table).encode())
    write_atomically(out / "results.md", to_document(sections).encode())
    write_atomically(out / PAGE, to_page(sections, studies, svgs).encode())
    return out / PAGE
