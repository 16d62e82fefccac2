"""Users' data files: reading columns of .csv and .npy files (columns.py), writing results.

The numbers are private.  No error and no repr of this package shows a cell: errors state
the line and the column.  Only the owner of a result file may read it.
"""
