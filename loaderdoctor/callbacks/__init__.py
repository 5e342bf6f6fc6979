"""Recording a training from inside a framework's trainer: what its callbacks share.

One module each, imported by the user.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from loaderdoctor.api import monitor
from loaderdoctor.errors import RunError, UsageError

if TYPE_CHECKING:
    from loaderdoctor.report.model import Report


class Recorder:
    """The half of a callback that no framework has a say in: a `monitor()` for each training.

    Options are those of `monitor`. Of `output` the second training has the folder beside it that is
    named `…-2`, and so on.
    """

    # Of this process: a training that raised has told nobody of its end.
    _open: ClassVar[Recorder | None] = None

    def __init__(
        self,
        *,
        output: str | Path | None = None,
        metrics_file: str | Path | None = None,
        tune: bool | Literal["exact"] = False,
    ) -> None:
        self._output = None if output is None else Path(output)
        self._metrics_file, self._tune = metrics_file, tune
        monitor(output=output, metrics_file=metrics_file, tune=tune)  # raises for wrong options
        self._monitor: monitor | None = None
        self._unrecorded: str | None = None  # why the last training is not
        self._n_begun = 0

    def begin_recording(self, *, first_rank: bool) -> None:
        """A training begins. One that can't be recorded goes on without, which is said."""
        if Recorder._open is not None:
            Recorder._open.end_recording(failed=True)
        self._monitor, self._unrecorded = None, None
        if not first_rank:
            self._unrecorded = "Of several ranks the first is recorded, and has the report."
            return
        made = monitor(output=self._folder(), metrics_file=self._metrics_file, tune=self._tune)
        try:
            made.start()
        except (UsageError, RunError) as error:
            self._unrecorded = f"This training is not recorded: {error}"
            self._say_why()
            return
        self._n_begun += 1
        self._monitor = made
        Recorder._open = self

    def end_recording(self, *, failed: bool = False) -> None:
        """It is over; waits for the report. Once: later calls do nothing."""
        if Recorder._open is self:
            Recorder._open = None
            assert self._monitor is not None
            self._monitor.stop(failed=failed)

    def report(self, *, show: bool = True) -> Report | None:
        """The report of the last training; prints it unless `show` is False.

        None, with a line that says why, where it was not recorded, as on ranks above 0. Raises
        RunError before the first.
        """
        if self._unrecorded is not None:
            self._say_why()
            return None
        if self._monitor is None:
            raise RunError("No training has been recorded yet.")
        return self._monitor.report(show=show)

    def _folder(self) -> Path | None:
        if self._output is None or not self._n_begun:
            return self._output
        return self._output.with_name(f"{self._output.name}-{self._n_begun + 1}")

    def _say_why(self) -> None:
        sys.stderr.write(f"loaderdoctor: {self._unrecorded}\n")
