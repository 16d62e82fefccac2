"""The report generator: pages with tables and pictures.

parts.py says what a page is made of; html.py and markdown.py write it, drawing.py draws, with one
style.  The page of records of any origin is page.py's (its cells in cells.py): reading.py reads
them leniently, beside.py finds the figures to put beside them, plots.py draws and files.py writes
the files.  The study of the exponential (exp_study/) makes its page of the same parts.
"""
