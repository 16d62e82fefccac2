"""Users' own numbers: reading columns of .csv and .npy files, and writing results.

The numbers are private.  No error and no repr of this package shows a cell: errors give
the line and the column.  Results are files that only their owner may read.
"""

from tfe_bench.cli.data.columns import (
    Cells,
    Column,
    load_column,
    load_table,
    load_with,
    naming_lines,
)
from tfe_bench.cli.data.results import (
    check_one_type,
    check_result_path,
    write_result,
    write_table,
)

__all__ = [
    "Cells",
    "Column",
    "check_one_type",
    "check_result_path",
    "load_column",
    "load_table",
    "load_with",
    "naming_lines",
    "write_result",
    "write_table",
]
