"""What DataLoader workers of a run write of themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

# Of one process's records of single batches in a run that is recorded to its end: those of some
# thousand batches, which findings rest on.
RECORDS_BYTES = 2_000_000


class WorkerRecords:
    """Whether DataLoader workers of this run write their own records, and where.

    The run goes on where that fails. What records workers imports torch, so it is imported here
    only once the script has done so.
    """

    def __init__(
        self,
        run_dir: Path,
        note: Callable[[str, str], None],
        loader_id: Callable[[Any], str | None],
        wanted: bool,
    ) -> None:
        self._folder = run_dir / "workers"
        self._note = note
        self._loader_id = loader_id
        self._wanted = wanted
        self._on = False
        self.bounded = False  # records of single batches end, sums go on
        self.sums_folder = run_dir / "sums"  # kept there, on a disk of this machine

    def start(self) -> None:
        """Record from now on; called at the first loader that is built.

        Not when torch.utils.data is imported: what records workers imports it itself.
        """
        if not self._wanted or self._on:
            return
        self._on = True
        try:
            from loaderdoctor.instrument.workers import worker

            limit = RECORDS_BYTES if self.bounded else None
            worker.install(self._folder, self._loader_id, limit_bytes=limit)
            if self.bounded:
                from loaderdoctor.instrument import workers

                workers.install(self.sums_folder)
        except Exception as error:
            self._note("workers-not-recorded", f"{type(error).__name__}: {error}")

    def flush(self) -> None:
        """Write out what this process holds back; workers write by themselves."""
        if self._on:
            from loaderdoctor.instrument.workers import worker

            worker.flush()

    def sums_only(self) -> None:
        """Enough batches were recorded one by one."""
        if self._on and self.bounded:
            from loaderdoctor.instrument.workers import worker

            worker.without_records()

    def stop(self) -> None:
        """Stop for good, and write out what this process has recorded."""
        self._wanted = False
        if not self._on:
            return
        self._on = False
        try:
            from loaderdoctor.instrument.workers import worker

            if self.bounded:
                from loaderdoctor.instrument import workers

                workers.remove()
            worker.remove()
        except Exception as error:
            self._note("workers-not-recorded", f"{type(error).__name__}: {error}")
