"""What the process that listens to a run is told."""

from __future__ import annotations

from pathlib import Path

import msgspec


class ListenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run."""

    label: str
    folder: Path
    sums: Path  # where workers keep theirs
    fail_on: tuple[str, ...]
    json_target: str | None
    verbose: bool
    metrics_file: Path | None
    began_s: float
    shown: bool = True  # False: the process that is recorded shows lines and report itself
