"""Questions on made-up private tables: what suites run, and `python -m tfe_bench relational`."""
