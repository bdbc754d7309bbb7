"""Turn records into tables, charts, significance tests and one page, without training."""

from rgat.report.page import check_libraries, write_report

__all__ = ["check_libraries", "write_report"]
