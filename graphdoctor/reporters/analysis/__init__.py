"""A report: its pages, in a terminal and in HTML."""
