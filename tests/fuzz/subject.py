"""What is fuzzed, and how a result is judged: a clean refusal or a report that holds together.

The whole of `analyze` but for writing files: read, attribute, find, report, console text, JSON.
Whole commands are judged in `command`, other files than traces in `other`.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.commands.analyze import report_of_facts
from loaderdoctor.errors import EXIT_USAGE, LoaderdoctorError
from loaderdoctor.report import encode_report
from loaderdoctor.report.console import console_text
from loaderdoctor.report.model import Report
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import Trace

# No name may reach people unshortened: a whole report is some kilobytes.
MAX_TEXT = 200_000
SUM_TOLERANCE = 1e-6
MEMORY_BYTES = 2 << 30
NEVER_NEGATIVE = ("_ms", "_us", "_bytes", "_per_step", "_per_s", "count")
# The reader's words where the kernel refused memory: its own count should have come first.
OUT_OF_MEMORY = "more memory than there is"


def analyzed(
    path: Path,
    *,
    draw: Callable[[Report], bool] = lambda report: True,
    known: Callable[[int], bool] = lambda key: False,
) -> Report | str | None:
    """The report of a trace, checked; or the one line that refuses it, checked.

    Drawing it for the console takes longer than all the rest: `draw` says whether to. A report
    follows from the columns alone: where `known` says so of their fingerprint, there is none.
    """
    try:
        trace = read_trace(path, max_memory_bytes=MEMORY_BYTES)
    except LoaderdoctorError as error:
        return refused(path, error)
    if known(fingerprint(trace)):
        return None
    try:
        attributed = attribute(trace)
    except LoaderdoctorError as error:
        return refused(path, error)
    report = report_of_facts(str(path), facts_of(attributed), ())
    check_report(report, drawn=draw(report))
    return report


def fingerprint(trace: Trace) -> int:
    """Equal for traces that hold the same; 64 bits of all that was read, but for the path."""
    rest = [getattr(trace, f.name) for f in fields(trace) if f.name not in ("source", "spans")]
    shapes = trace.kernel_shapes
    return hash(
        (
            *(getattr(trace.spans, f.name).tobytes() for f in fields(trace.spans)),
            *(tuple(map(astuple, v)) if _of_values(v) else v for v in rest if v is not shapes),
            None if shapes is None else shapes.blocks_per_sm.tobytes(),
            None if shapes is None else shapes.occupancy_percent.tobytes(),
        )
    )


def refused(path: Path, error: LoaderdoctorError, code: int | None = EXIT_USAGE) -> str:
    """The message, which must be one printable line that names the file."""
    text = str(error)
    assert code is None or error.exit_code == code, error.exit_code
    assert str(path) in text, text[:300]
    check_line(text)
    return text


def check_line(text: str) -> None:
    """Raises AssertionError unless people may read it as the one line that it is."""
    assert text.isprintable(), ascii(text[:300])
    assert len(text) < 1000, len(text)
    assert OUT_OF_MEMORY not in text, text[:300]


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
    check_verdict(report)
    check_numbers(msgspec.to_builtins(report))
    encoded = encode_report(report)
    json.loads(encoded, parse_constant=_no_constant)
    assert len(encoded) < 4 * MAX_TEXT, len(encoded)
    if drawn:
        check_text(console_text(report))


def check_verdict(report: Report) -> None:
    """Raises AssertionError for a verdict from nothing: without steps, or of an empty share."""
    bound, shares = report.verdict.bound, report.shares
    if bound == "unknown":
        return
    assert report.step.wall_ms, report.step
    assert report.step.count >= 1, report.step
    assert shares is not None
    own = getattr(shares, bound)
    assert own is not None, (bound, shares)
    assert own > 0, (bound, shares)


def check_numbers(value: Any, name: str = "report") -> None:
    """Raises AssertionError for a number that is none, or out of its range, at any depth.

    A share is 0…1; times and sizes are not negative (without ablation: that may be signed).
    """
    if isinstance(value, float | int):
        assert math.isfinite(value), (name, value)
        if name.endswith("share"):
            assert -SUM_TOLERANCE <= value <= 1 + SUM_TOLERANCE, (name, value)
        elif name.endswith(NEVER_NEGATIVE):
            assert value >= -SUM_TOLERANCE, (name, value)
    elif isinstance(value, dict):
        for key, item in value.items():
            check_numbers(item, key)
    elif isinstance(value, list | tuple):
        for item in value:
            check_numbers(item, name)


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


def _of_values(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and hasattr(value[0], "__dataclass_fields__")


def _no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} in the JSON")
