"""Every protocol whose messages tests examine: a new protocol is one entry.

test_joint_views.py walks over `run` of all entries: on one traced run of each it reads the joint
views, the log of pads and the cost on the wire. test_joint_faults.py seeds their faults, each in a
graph of its own, as a fault changes what is traced. test_views.py and test_stripping.py walk over
`many`: statistics need thousands of elements and several secrets, hence a second run.
"""

from __future__ import annotations

from tests.protocols.catalogue import ahead, functions, nn, order, ring
from tests.protocols.entry import Entry
from tests.protocols.gated import FUNCTIONS

ENTRIES: dict[str, Entry] = {
    **ring.ENTRIES,
    **ahead.ENTRIES,
    **order.ENTRIES,
    **functions.ENTRIES,
    **nn.ENTRIES,
    **{name: entry for each in FUNCTIONS.values() for name, entry in each.entries().items()},
}
JOINT = {name: entry for name, entry in ENTRIES.items() if entry.run}
VIEWED = {name: entry for name, entry in ENTRIES.items() if entry.many}
# the name of the entry and the fault, by description
FAULTS = {
    what: (name, fault) for name, entry in ENTRIES.items() for what, fault in entry.faults.items()
}
assert len(FAULTS) == sum(len(entry.faults) for entry in ENTRIES.values())
