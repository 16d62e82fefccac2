"""Other systems at the same workloads on this machine.

A baseline runs in its own environment, which the user names; this package only runs a script
there.  A baseline that cannot run is an `UnavailableBaseline` with its reason, never a guess.
"""
