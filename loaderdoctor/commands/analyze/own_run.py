"""The run of ours that an analysed trace lies in, and what that run tried."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from loaderdoctor.errors import UsageError
from loaderdoctor.report.files import decode_report
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.tryout.answers import Elsewhere

# Reports of large sweeps take a few MB; what is larger is none of ours.
MAX_REPORT_BYTES: Final = 64_000_000
_TRIAL = re.compile(r"trial-(\d{2,6})(?:\.|$)")


def run_of(trace: Path) -> tuple[Elsewhere | None, tuple[ReportWarning, ...]]:
    """What the run tried whose folder holds this trace: `RUN/perfetto/…`, `RUN/tensorboard/x/…`.

    None where it lies in no run of ours; a report there that can't be read is a warning.
    """
    path = trace.resolve()
    folder = next((f for f in _folders(path) if (f / "report.json").is_file()), None)
    if folder is None:
        return None, ()
    source = folder / "report.json"
    try:
        if source.stat().st_size > MAX_REPORT_BYTES:
            raise UsageError(f"{source}: too large for a report.")
        report = decode_report(source.read_bytes(), source=source)
    except (UsageError, OSError) as error:
        text = f"What the run of this trace tried is not known: {error}"
        return None, (ReportWarning(kind="run-not-read", text=text),)
    if report.command not in ("diagnose", "sweep"):
        return None, ()
    return _tried_by(report, path), ()


def _folders(path: Path) -> tuple[Path, ...]:
    """Run folders that would hold this file."""
    parents = path.parents
    if len(parents) > 1 and parents[0].name == "perfetto":
        return (parents[1],)
    if len(parents) > 2 and parents[1].name == "tensorboard":
        return (parents[2],)
    return ()


def _tried_by(report: Report, trace: Path) -> Elsewhere:
    main = next((x for x in report.loaders if x.role == "train"), None)
    return Elsewhere(
        trials=report.trials,
        recorded=_recorded(trace),
        command=report.command,
        own=dict(main.settings) if main is not None else {},
        target=report.target,
    )


def _recorded(trace: Path) -> int:
    """Index of the trial that a trace is of, by its place; 0 is the loop as it is."""
    name = trace.name if trace.parent.name == "perfetto" else trace.parent.name
    found = _TRIAL.match(name)
    return int(found[1]) if found is not None else 0
