"""Reports: a model, its rows and its federation on one self-contained HTML page."""

from fedpca.report.write import write_report

__all__ = ["write_report"]
