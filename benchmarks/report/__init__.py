"""The report generator: pages with tables and pictures.

parts.py defines the parts of a page; html.py and markdown.py write it, drawing.py draws, with one
style.  page.py makes the page of records of any origin (its cells in cells.py): reading.py reads
them leniently, comparison_columns.py finds the published figures for them, plots.py draws and
files.py writes the files.  The study of the exponential (exp_study/) uses the same parts.
"""
