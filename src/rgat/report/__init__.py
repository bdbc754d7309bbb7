"""Turn records into tables, charts, significance tests and one page, without training.

Examples:
    >>> from rgat import report
    >>> report.check_libraries()  # no error: they are installed
"""

from rgat.report.page import check_libraries, write_report

__all__ = ["check_libraries", "write_report"]
