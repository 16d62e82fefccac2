"""The programs of the benchmark, one module each."""
