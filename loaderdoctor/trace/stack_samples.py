"""Looks at the training thread's lines, as `instrument.loop_lines` leaves them in a trace."""

from __future__ import annotations

from typing import Any

import msgspec

from loaderdoctor.trace.columns import LineStackSample
from loaderdoctor.trace.wire import printable

# A few times what the measuring side leaves.
MAX_STACK_SAMPLES = 100_000
MAX_LINE = 1_000_000_000


class _Written(msgspec.Struct):
    marks: list[str]
    places: list[tuple[str, int, str]]
    stack_samples: list[tuple[int, int, int]] = msgspec.field(
        name="looks"
    )  # mark, ns since it, place


def line_stack_samples(value: Any) -> tuple[LineStackSample, ...]:
    """The looks of a trace; empty where it has none, or none that make sense."""
    try:
        written = msgspec.convert(value, _Written)
    except (msgspec.ValidationError, UnicodeEncodeError):  # half a surrogate pair as a key
        return ()
    marks, places = written.marks, written.places
    return tuple(
        LineStackSample(
            mark=marks[mark],
            after_ns=after_ns,
            file=printable(places[place][0]),
            line=places[place][1],
            function=printable(places[place][2]),
        )
        for mark, after_ns, place in written.stack_samples[:MAX_STACK_SAMPLES]
        if 0 <= mark < len(marks) and 0 <= place < len(places) and 0 <= after_ns < 1 << 62
        if 0 < places[place][1] < MAX_LINE
    )
