"""Files of a worker's store with other headers, as from earlier versions or attackers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def with_header(blob: bytes, change: Change) -> bytes:
    """Return a file's bytes after a change of its header and metadata."""
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    ours = json.loads(header["__metadata__"]["tfe_bench"])
    change(header, ours)
    header["__metadata__"]["tfe_bench"] = json.dumps(ours)
    fresh = json.dumps(header).encode()
    fresh += b" " * (-len(fresh) % 8)
    return len(fresh).to_bytes(8, "little") + fresh + blob[8 + length :]
