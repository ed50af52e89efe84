"""What a run came to, for people: one HTML file that loads nothing, from the files of the run alone."""

from coterie.report.comparison import compare_page
from coterie.report.page import Published, report_page
from coterie.report.run_files import RunFiles

__all__ = ["Published", "RunFiles", "compare_page", "report_page"]
