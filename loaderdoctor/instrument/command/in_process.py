"""Measuring a loop of this very process: the session's link and the command's end, by two queues.

The loop's thread runs the session; another thread decides what to measure next, as the command
does from its own process. It sleeps while windows are measured, so it takes no time from them.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.launched_run import Heard, OnEvent
from loaderdoctor.instrument.wire.channel import ConnectionLostError, ToChild
from loaderdoctor.instrument.wire.protocol import (
    FromRun,
    Measure,
    Note,
    Observed,
    Stop,
    WindowDone,
    WindowRequest,
)

TOO_SHORT = (
    "the loop ended before enough training steps were seen (about 16). Give it more batches, or "
    "keep watching over several epochs: `with loaderdoctor.watching() as watched:`."
)
NO_LOADER = "no torch DataLoader was iterated, so there is no loader to measure."


class LocalLink:
    """The session's end. Nothing is encoded: messages are frozen values."""

    n_above = 0  # the loop is the run

    def __init__(self, script_run: InProcessRun) -> None:
        self._script_run = script_run
        self.lost = False

    def send(self, message: FromRun) -> None:
        if not self.lost:
            self._script_run.from_loop.put(message)

    def receive(self, timeout_s: float) -> ToChild | None:
        if self.lost:
            raise ConnectionLostError("nobody decides any more")
        try:
            if timeout_s <= 0.0:
                return self._script_run.to_loop.get_nowait()
            return self._script_run.to_loop.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def forget_in_fork(self) -> None:
        """In a forked child: the deciding thread does not exist there."""
        self.lost = True


@dataclass(slots=True, eq=False)
class InProcessRun(Heard):
    """The deciding thread's end; its waits end when the loop is over (`Ended`)."""

    to_loop: queue.SimpleQueue[ToChild] = field(default_factory=queue.SimpleQueue)
    from_loop: queue.SimpleQueue[FromRun] = field(default_factory=queue.SimpleQueue)

    def wait_observed(self) -> Observed:
        while self.observed is None:
            if self.ended is not None:
                raise RunError(NO_LOADER if self.ended.how == "no-loader" else TOO_SHORT)
            self._take(None)
        return self.observed

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure windows back to back; fewer come back where the loop ends first."""
        if requests and self.ended is None:
            self.to_loop.put(Measure(requests=tuple(requests)))
        while not self.settled(requests):
            self._take(on_event)
        self.check_observed()
        return self.windows(requests)

    def stop(self, to_end: bool = True) -> None:
        """Take the hooks out; the loop itself is never stopped from here."""
        self.to_loop.put(Stop(to_end=True))

    def finish(self) -> None:
        """Take what the session said until its last message."""
        while self.ended is None:
            self._take(None)

    def _take(self, on_event: OnEvent | None) -> None:
        message = self.from_loop.get()
        self.hear(message)
        if isinstance(message, Note) and message.kind == "internal-error":
            raise RunError(
                f"measuring failed inside loaderdoctor; the loop ran on unwatched.\n{message.text}"
            )
        if on_event is not None:
            on_event(message)
