"""What the callbacks share: a training is recorded from its beginning to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from loaderdoctor.api import monitor
from loaderdoctor.errors import RunError

if TYPE_CHECKING:
    from loaderdoctor.report.model import Report


class Recording:
    """One `monitor()` for each training; options are those of `monitor`."""

    # Of this process: a training that raised has told nobody of its end.
    _open: ClassVar[Recording | None] = None

    def __init__(
        self,
        *,
        output: str | Path | None,
        metrics_file: str | Path | None,
        tune: bool | Literal["exact"],
    ) -> None:
        self._output, self._metrics_file, self._tune = output, metrics_file, tune
        monitor(output=output, metrics_file=metrics_file, tune=tune)  # raises for wrong options
        self._monitor: monitor | None = None

    def begin(self) -> None:
        """A training begins. Raises UsageError where `output` holds something."""
        if Recording._open is not None:
            Recording._open.end(failed=True)
        self._monitor = monitor(
            output=self._output, metrics_file=self._metrics_file, tune=self._tune
        )
        self._monitor.start()
        Recording._open = self

    def end(self, *, failed: bool = False) -> None:
        """It is over; waits for the report. Once: later calls do nothing."""
        if Recording._open is self:
            Recording._open = None
            assert self._monitor is not None
            self._monitor.stop(failed=failed)

    def report(self, *, show: bool) -> Report:
        """Of the last training. Raises RunError where none was recorded."""
        if self._monitor is None:
            raise RunError("No training has been recorded yet.")
        return self._monitor.report(show=show)
