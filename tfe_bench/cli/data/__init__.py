"""Users' data files: reading columns of .csv and .npy files (columns.py), writing results.

The numbers are private.  No error and no repr of this package shows a cell: errors give
the line and the column.  Results are files that only their owner may read.
"""
