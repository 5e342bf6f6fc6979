"""Says what training stands still for again and again: saving, and passes over other loaders.

These are no stalls of a step: they are known by their place in the code, with what they take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from loaderdoctor import format as fmt
from loaderdoctor.alerts.alert import Alert
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.instrument.wire.records import OutsideRecord
from loaderdoctor.units import NS_PER_MS

MIN_VISITS: Final = 4
# Of the recorded time. A validation that is wanted takes its time; this much is worth a question.
SAVING_SHARE: Final = 0.05
PASSES_SHARE: Final = 0.20
WAITS: Final = 0.5  # of a pass: its own loader is what it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """At the first beat: what was before is no part of the recorded time."""

    n: int
    timed_ns: int
    wait_ns: int


class PauseWatch:
    """Of one process; tells of each place once."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._first: dict[tuple[str, str], _Seen] = {}
        self._told: set[tuple[str, str]] = set()

    def beat(self, beat: Beat) -> list[Alert]:
        """The next stretch; what is to be told by now."""
        wall = beat.wall
        if wall is None or wall.in_steps:
            return []
        if self._since_ns is None:
            self._since_ns = beat.start_ns
            self._first = {
                (one.what, one.site): _Seen(n=one.n, timed_ns=one.timed_ns, wait_ns=one.wait_ns)
                for one in wall.outside
            }
            return []
        recorded_ns = beat.end_ns - self._since_ns
        found = [self._judge(one, recorded_ns, beat) for one in wall.outside]
        return [alert for alert in found if alert is not None]

    def _judge(self, one: OutsideRecord, recorded_ns: int, beat: Beat) -> Alert | None:
        key = (one.what, one.site)
        before = self._first.get(key, _Seen(n=0, timed_ns=0, wait_ns=0))
        n, took_ns = one.n - before.n, one.timed_ns - before.timed_ns
        share = took_ns / max(1, recorded_ns)
        least = SAVING_SHARE if one.what == "save" else PASSES_SHARE
        if key in self._told or n < MIN_VISITS or one.n_visits < MIN_VISITS or share < least:
            return None
        self._told.add(key)
        period = (one.last_step - one.first_step) / (one.n_visits - 1)
        cost = (
            f"{fmt.ms(took_ns / n / NS_PER_MS)} about every {period:,.0f} steps, "
            f"{fmt.share(share)} of the time"
        )
        if one.what == "save":
            text = f"Saving at {one.site} takes {cost}."
            cause = "saving"
            advice = "Save less often, or have a thread write a copy of what is saved."
        elif one.wait_ns - before.wait_ns > WAITS * took_ns:
            text = f"Passes over {one.site} (validation?) take {cost}, most of it for its batches."
            cause = "validation-input"
            advice = "Give that loader workers, or read fewer of its batches."
        else:
            text = f"Passes over {one.site} (validation?) take {cost}."
            cause = "validation"
            advice = "Read it less often, or fewer of its batches."
        return Alert(
            kind="pauses",
            at_s=beat.at_s,
            step=beat.n_steps,
            text=text,
            cause=cause,
            advice=advice,
        )
