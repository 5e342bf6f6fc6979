"""The command, with a signal to itself at a named moment: `python -m … MOMENT SIGNAL COMMAND…`.

Nothing but the moment is made up: what is called sends the signal first, then does its work.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from loaderdoctor import diagnosis, report
from loaderdoctor.cli import main
from loaderdoctor.commands import diagnose, run_folder
from loaderdoctor.instrument.command import launched_run
from loaderdoctor.instrument.command.script_run import ScriptRun
from loaderdoctor.instrument.wire.protocol import Progress

MODES = ("plain", "profiled", "no-input", "trial")  # a window of this kind begins
PLACES: dict[str, tuple[Any, str]] = {
    "folder": (report.RunFolder, "create"),
    "starting": (launched_run, "MeasuringProcess"),
    "stopping": (ScriptRun, "stop"),
    "closing": (ScriptRun, "_close"),
    "reporting": (diagnosis, "build_report"),
    "writing": (run_folder, "write_run"),
    "printing": (diagnose, "deliver"),
}
MOMENTS = ("folder", "starting", "warm-up", *MODES, *list(PLACES)[2:])


def at(moment: str, number: int) -> None:
    """From now on the signal comes at this moment, once."""
    left = [number]

    def send() -> None:
        while left:
            os.kill(os.getpid(), left.pop())

    if moment in PLACES:
        owner, name = PLACES[moment]
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            send()
            return original(*args, **options)

        replaced: Callable[..., Any] = staticmethod(call) if moment == "folder" else call
        setattr(owner, name, replaced)
        return
    hear = ScriptRun.hear

    def received(self: ScriptRun, message: Any) -> None:
        hear(self, message)
        wanted = "watching" if moment == "warm-up" else f": {moment}"
        if isinstance(message, Progress) and wanted in message.text:
            send()

    ScriptRun.hear = received  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    at(sys.argv[1], int(getattr(signal, sys.argv[2])))
    main(sys.argv[3:])
