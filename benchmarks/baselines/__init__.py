"""Other systems at the same work on this machine.

A baseline lives in an environment of its own, which the user points to; ours knows only how to
run a script there.  What cannot be run is `Missing` with its reason, never a guess.
"""
