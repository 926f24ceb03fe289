"""Tables, charts and pages, from the figures of a result alone."""

from vldebias.evaluation.report.comparison import compare
from vldebias.evaluation.report.pages import markdown, markdown_table, print_table, render, write_page

__all__ = ["compare", "markdown", "markdown_table", "print_table", "render", "write_page"]
