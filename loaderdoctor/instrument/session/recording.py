"""Switches the recording inside workers on and off; the run goes on where it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


class WorkerRecords:
    """Whether DataLoader workers of this run write their own records, and where."""

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

    def start(self) -> None:
        """Record from now on; called at the first loader that is built.

        Not when torch.utils.data is imported: what records workers imports it itself.
        """
        if not self._wanted or self._on:
            return
        self._on = True
        try:
            from loaderdoctor.instrument.workers import worker

            worker.install(self._folder, self._loader_id)
        except Exception as error:
            self._note("workers-not-recorded", f"{type(error).__name__}: {error}")

    def flush(self) -> None:
        """Write out what this process holds back; workers write by themselves."""
        if self._on:
            from loaderdoctor.instrument.workers import worker

            worker.flush()

    def stop(self) -> None:
        """Stop for good, and write out what this process has recorded."""
        self._wanted = False
        if not self._on:
            return
        self._on = False
        try:
            from loaderdoctor.instrument.workers import worker

            worker.remove()
        except Exception as error:
            self._note("workers-not-recorded", f"{type(error).__name__}: {error}")
