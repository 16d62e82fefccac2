"""Data sets: files, rows that owners share for trainings, and alignment of tables."""

from tfe_bench.models.datasets.readers import Rows, load_digits, table

__all__ = ["Rows", "load_digits", "table"]
