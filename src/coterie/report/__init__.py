"""What a run came to, for people: one HTML file that loads nothing, from the files of the run alone."""

from coterie.report.comparison import compare_page
from coterie.report.page import Published, report_page

__all__ = ["Published", "compare_page", "report_page"]
