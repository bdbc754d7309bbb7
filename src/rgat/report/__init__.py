"""The report: records to tables, charts, significance and one page. It never trains."""

from rgat.report.write import check_libraries, write_report

__all__ = ["check_libraries", "write_report"]
