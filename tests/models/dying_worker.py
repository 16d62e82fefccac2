"""A worker that kills itself at a named step of material ahead of time, and logs what it uses.

`python -m tests.models.dying_worker FOLDER worker --party P ...`: the steps are those of STEPS. The
worker dies at the step that the file FOLDER/die.P names. It appends to FOLDER/used.P the identifier
of each entry whose first byte it reads, and to FOLDER/wrong.P each one whose file still exists.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfe_bench import atomic
from tfe_bench.cluster import spool
from tfe_bench.models.inference import ahead
from tfe_bench.protocols.session import material

MAKING = ("offer", "created", "message", "written", "voted")
USING = ("burn", "unlinked", "burnt", "agreed", "first byte", "fed", "used")
STEPS = (*MAKING, *USING)


class Steps:
    """The steps of one worker.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path, party: str) -> None:
        self._folder, self._party = folder, party
        self._read: set[bytes] = set()

    def die_at(self, step: str) -> None:
        """Die, if the file names this step."""
        file = self._folder / f"die.{self._party}"
        if file.exists() and file.read_text() == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def log_use(self, entry: spool.SpoolEntry) -> None:
        """Log the first byte of an entry."""
        if entry.identifier in self._read:
            return
        self._read.add(entry.identifier)
        name = entry.identifier.hex() + "\n"
        with (self._folder / f"used.{self._party}").open("a") as log:
            log.write(name)
        if [*self._folder.glob(f"*/{spool.FOLDER}/{entry.path.name}")]:
            with (self._folder / f"wrong.{self._party}").open("a") as log:
                log.write(name)

    def wrap(
        self, owner: Any, name: str, before: str | None = None, after: str | None = None
    ) -> None:
        """Let the worker die before or after a function."""
        function: Callable[..., Any] = getattr(owner, name)

        def run(*arguments: Any, **options: Any) -> Any:
            if before:
                self.die_at(before)
            result = function(*arguments, **options)
            if after:
                self.die_at(after)
            return result

        setattr(owner, name, run)

    def install(self) -> None:
        """Wrap all steps."""
        self.wrap(ahead.PredictionMaterial, "_agree_on_entries", before="offer")
        self.wrap(spool.MaterialSpool, "begin_entry", after="created")
        self.wrap(spool.SpoolWriter, "put_message", after="message")
        self.wrap(spool.SpoolWriter, "finish_entry", after="written")
        self.wrap(spool.MaterialSpool, "burn_first", before="burn", after="burnt")
        self.wrap(atomic, "sync_folder_to_disk", before="unlinked")
        self.wrap(material.AheadFunction, "use_material", before="agreed", after="used")
        read = spool.SpoolReader.read_message

        def read_logged(reader: spool.SpoolReader, place: material.Place) -> bytes:
            self.log_use(reader.entry)
            self.die_at("first byte")
            return read(reader, place)

        spool.SpoolReader.read_message = read_logged  # type: ignore[method-assign, assignment]
        self.wrap(material._Feeder, "_feed_peer", after="fed")
        fill = ahead.PredictionMaterial._fill_one

        def fill_one(*arguments: Any) -> bool:
            result = fill(*arguments)
            self.die_at("voted")
            return result

        ahead.PredictionMaterial._fill_one = fill_one  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    from tfe_bench.__main__ import main

    arguments = sys.argv[2:]
    Steps(Path(sys.argv[1]), arguments[arguments.index("--party") + 1]).install()
    sys.exit(main(arguments))
