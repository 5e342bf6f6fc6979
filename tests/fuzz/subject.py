"""What is fuzzed, and how a result is judged: a clean refusal or a report that holds together.

The whole of `analyze` but for writing files: read, attribute, find, report, console text, JSON.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from loaderdoctor.attribution.trace_facts import attribute, facts_of
from loaderdoctor.commands.analyze import report_of_facts
from loaderdoctor.comparison import compare
from loaderdoctor.errors import EXIT_USAGE, LoaderdoctorError
from loaderdoctor.instrument import worker_records
from loaderdoctor.report.comparison_view import render_comparison
from loaderdoctor.report.console import console_text
from loaderdoctor.report.encode import encode_report, read_report
from loaderdoctor.report.model import Report
from loaderdoctor.sweep import samples
from loaderdoctor.trace.read import read_trace

# No name may reach people unshortened: a whole report is some kilobytes.
MAX_TEXT = 200_000
SUM_TOLERANCE = 1e-6
MEMORY_BYTES = 4 << 30


def analyzed(path: Path, *, draw: Callable[[Report], bool] = lambda report: True) -> Report | str:
    """The report of a trace, checked; or the one line that refuses it, checked.

    Drawing it for the console takes longer than all the rest: `draw` says whether to.
    """
    try:
        attributed = attribute(read_trace(path, max_memory_bytes=MEMORY_BYTES))
    except LoaderdoctorError as error:
        return refused(path, error)
    report = report_of_facts(str(path), facts_of(attributed), ())
    check_report(report, drawn=draw(report))
    return report


def compared(path: Path, other: Path) -> str | None:
    """Compare a report.json with a sound one: the refusal, or None where it was compared."""
    try:
        report = read_report(path)
    except LoaderdoctorError as error:
        return refused(path, error)
    for pair in ((report, read_report(other)), (read_report(other), report)):
        console_of(render_comparison(compare(*pair), ("a", "b")))
    return None


def records(folder: Path) -> str | None:
    """Read worker records: the refusal, or None where they were read."""
    try:
        worker_records.read(folder)
    except LoaderdoctorError as error:
        return refused(folder, error, None)
    return None


def resumed(folder: Path) -> str | None:
    """Read the samples of an interrupted sweep: the refusal, or None where they were read."""
    try:
        samples.read(folder)
    except LoaderdoctorError as error:
        return refused(folder, error)
    return None


def console_of(renderable: Any) -> str:
    """Text of something for the console, at 100 columns."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(file=out, width=100, color_system=None).print(renderable)
    check_text(out.getvalue())
    return out.getvalue()


def refused(path: Path, error: LoaderdoctorError, code: int | None = EXIT_USAGE) -> str:
    """The message, which must be one printable line that names the file."""
    text = str(error)
    assert code is None or error.exit_code == code, error.exit_code
    assert str(path) in text, text[:300]
    assert text.isprintable(), ascii(text[:300])
    assert len(text) < 1000, len(text)
    return text


def check_report(report: Report, *, drawn: bool = True) -> None:
    """Raises AssertionError where a report contradicts itself or can't be shown."""
    for shares in (report.shares, report.trace_shares):
        if shares is not None:
            values = [getattr(shares, name) for name in shares.__struct_fields__]
            known = [v for v in values if v is not None]
            assert all(-SUM_TOLERANCE <= v <= 1 + SUM_TOLERANCE for v in known), shares
            assert abs(math.fsum(known) - 1) <= SUM_TOLERANCE, shares
    step = report.step
    assert step.wall_ms is None or (math.isfinite(step.wall_ms) and step.wall_ms >= 0), step
    encoded = encode_report(report)
    json.loads(encoded, parse_constant=_no_constant)
    assert len(encoded) < 4 * MAX_TEXT, len(encoded)
    if drawn:
        check_text(console_text(report))


def check_text(text: str) -> None:
    """Raises AssertionError for text that could steer a terminal or flood it."""
    assert len(text) < MAX_TEXT, len(text)
    # Joiners (Cf) and the like never come through; a line's end is the only control character.
    bad = {
        c
        for c in set(text)
        if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }
    assert not bad, [hex(ord(c)) for c in bad]


def _no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} in the JSON")
