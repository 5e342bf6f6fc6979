"""What the process that listens to a run is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.report.files import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Of one run."""

    label: str
    folder: RunFolder
    sums: Path  # where workers keep theirs
    fail_on: tuple[str, ...]
    json_target: str | None
    verbose: bool
    metrics_file: Path | None
    began_s: float
