"""The report: one HTML page and its pictures, from records of any origin.

reading.py reads records leniently, beside.py finds the figures to put beside them, plots.py draws,
page.py writes the page and files.py the files.
"""
