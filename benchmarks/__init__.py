"""Workloads, harness, records and reports."""
