"""The report: records to tables, charts, significance and one page. It never trains."""

from rgat.report.write import write_report

__all__ = ["write_report"]
