"""Scripts that run in a baseline's own environment: they import nothing of this project.

Each reads one JSON object from stdin (workload, n, repeat) and prints one as its last line.
"""
