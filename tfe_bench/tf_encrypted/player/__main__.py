"""Explain how a worker is started: with its operator's key and policy, not with a list of hosts."""

import sys

if __name__ == "__main__":
    sys.exit(
        "A worker is started by its operator: python -m tfe_bench worker (docs/cluster.md). For "
        "hosts of the loopback network the program itself starts three of them."
    )
