"""What the process that listens to a run is told."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from loaderdoctor.errors import EXIT_RUN_FAILED


class ListenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run."""

    label: str
    folder: Path
    made: tuple[Path, ...]  # for it, innermost first: gone again where nothing is to tell
    sums: Path  # where workers keep theirs
    fail_on: tuple[str, ...]
    json_target: str | None
    verbose: bool
    metrics_file: Path | None
    began_s: float
    shown: bool = True  # False: the process that is recorded shows lines and report itself


def unjudged(options: ListenOptions) -> int:
    """The command's exit code where there is no report: with `--fail-on` no success, and said."""
    if not options.fail_on:
        return 0
    sys.stderr.write("loaderdoctor: --fail-on was not judged: there is no report of this run.\n")
    return EXIT_RUN_FAILED
