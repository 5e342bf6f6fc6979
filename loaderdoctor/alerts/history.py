"""Where the time of a whole run went: by cause, by epoch, and over time; in constant memory.

Rows that grow too many are joined in pairs, so a run of a week has as many as one of an hour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

from loaderdoctor.instrument.wire.log_bins import LogBins
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.instrument.wire.records import WallRecord
from loaderdoctor.units import NS_PER_S

MAX_ROWS: Final = 120
FIRST_ROW_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Account:
    """Seconds of wall time, by what they went to; they sum to `recorded_s`."""

    recorded_s: float = 0.0
    n_steps: int = 0
    step_s: float = 0.0  # the step itself, without its wait
    input_s: float = 0.0  # of it, the wait for a batch that nothing hid
    starts_s: float = 0.0  # steps in which an epoch starts: workers, first batch
    validation_s: float = 0.0  # passes over other loaders
    saving_s: float = 0.0
    other_s: float = 0.0  # between epochs and beside steps, and no such pass
    gc_s: float = 0.0  # within the others
    waited_s: float = 0.0  # in `__next__`, hidden or not
    copy_s: float | None = None  # of the step, copies that its work waits for; None: not seen

    def add(self, other: Account) -> None:
        """Both together."""
        for one in fields(self):
            mine, more = getattr(self, one.name), getattr(other, one.name)
            setattr(self, one.name, mine if more is None else (mine or 0) + more)

    @property
    def input_share(self) -> float | None:
        """Of all that was recorded; None of nothing."""
        return self.input_s / self.recorded_s if self.recorded_s > 0 else None


@dataclass(slots=True, kw_only=True)
class EpochRow:
    """One epoch, or several in a row."""

    first: int
    last: int
    account: Account = field(default_factory=Account)


@dataclass(slots=True, kw_only=True)
class TimeRow:
    """One stretch of the time line; times are seconds since the run began."""

    start_s: float
    end_s: float
    account: Account = field(default_factory=Account)
    run_bytes: int | None = None  # the most in it


class History:
    """Of one process; feed it every beat."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s  # seconds since the epoch
        self.total = Account()
        self.epochs: list[EpochRow] = []
        self.times: list[TimeRow] = []
        self.step_bins, self.wait_bins = LogBins(), LogBins()
        self.n_steps = 0
        self.first_beat_s: float | None = None
        self.last_beat_s: float | None = None
        self._row_s = FIRST_ROW_S
        self._dry = (0, 0.0)  # sampled steps so far, and the seconds of them
        self._copied = (0, 0.0)  # the same of copies
        self._outside = (0.0, 0.0)

    def beat(self, beat: Beat) -> Account:
        """The next stretch; where its time went."""
        part = self._account(beat)
        self.total.add(part)
        self.n_steps = beat.n_steps
        self.step_bins.add(beat.step_bins)
        self.wait_bins.add(beat.wait_bins)
        start_s = beat.at_s - (beat.end_ns - beat.start_ns) / NS_PER_S
        self.first_beat_s = self.first_beat_s or start_s
        self.last_beat_s = beat.at_s
        if beat.end_ns > beat.start_ns:  # else a run that its first window held as a whole
            self._add_epoch(beat.n_epochs, part)
            self._add_time(start_s - self.began_s, beat.at_s - self.began_s, part)
        return part

    def memory(self, run_bytes: int) -> None:
        """What the whole run takes now."""
        if self.times:
            self.times[-1].run_bytes = max(self.times[-1].run_bytes or 0, run_bytes)

    def _account(self, beat: Beat) -> Account:
        sums = beat.sums
        validation_s, saving_s = self._known_outside(beat.wall)
        outside_s = (sums.gaps_ns + sums.besides_ns) / NS_PER_S
        # What is known of passes and saves comes with the step after them, perhaps a beat later.
        validation_s = min(validation_s, outside_s)
        saving_s = min(saving_s, outside_s - validation_s)
        steps_s = sums.steps_ns / NS_PER_S
        input_s = min(steps_s, self._exposed_s(beat))
        copy_s = self._copied_s(beat)
        if copy_s is not None:
            copy_s = min(copy_s, steps_s - input_s)
        starts_s = sums.starts_ns / NS_PER_S
        recorded_s = (beat.end_ns - beat.start_ns) / NS_PER_S
        counted_s = steps_s + starts_s + outside_s
        return Account(
            recorded_s=recorded_s,
            n_steps=sums.n_steps,
            step_s=steps_s - input_s - (copy_s or 0.0),
            copy_s=copy_s,
            input_s=input_s,
            starts_s=starts_s,
            validation_s=validation_s,
            saving_s=saving_s,
            # A step that is not over at a beat is counted in the next.
            other_s=outside_s - validation_s - saving_s + (recorded_s - counted_s),
            gc_s=beat.collections.total_ns / NS_PER_S,
            waited_s=(sums.wait_ns or 0) / NS_PER_S,
        )

    def _exposed_s(self, beat: Beat) -> float:
        """The wait that nothing hid: with an accelerator, what it stood dry in sampled steps."""
        sums = beat.sums
        if beat.dry is None:
            return (sums.wait_ns or 0) / NS_PER_S
        n, dry_s = self._dry
        self._dry = (n + beat.dry.n_sampled, dry_s + beat.dry.dry_ns / NS_PER_S)
        if beat.dry.n_sampled:
            return beat.dry.dry_ns / beat.dry.n_sampled * sums.n_steps / NS_PER_S
        return dry_s / n * sums.n_steps if n else 0.0

    def _copied_s(self, beat: Beat) -> float | None:
        """What copies held up, from sampled steps; None where none were seen so far."""
        if beat.dry is None:
            return None
        n, copy_s = self._copied = (
            self._copied[0] + beat.dry.n_copied,
            self._copied[1] + beat.dry.copy_ns / NS_PER_S,
        )
        return copy_s / n * beat.sums.n_steps if n else None

    def _known_outside(self, wall: WallRecord | None) -> tuple[float, float]:
        if wall is None:
            return 0.0, 0.0
        passes = sum(o.timed_ns for o in wall.outside if o.what == "pass") / NS_PER_S
        saves = sum(o.timed_ns for o in wall.outside if o.what == "save") / NS_PER_S
        before, self._outside = self._outside, (passes, saves)
        return max(0.0, passes - before[0]), max(0.0, saves - before[1])

    def _add_epoch(self, number: int, part: Account) -> None:
        if not self.epochs or number > self.epochs[-1].last:
            self.epochs.append(EpochRow(first=number, last=number))
        self.epochs[-1].account.add(part)
        if len(self.epochs) > MAX_ROWS:
            self.epochs = _in_pairs(self.epochs, _joined_epochs)

    def _add_time(self, start_s: float, end_s: float, part: Account) -> None:
        if not self.times or end_s - self.times[-1].start_s > self._row_s:
            self.times.append(TimeRow(start_s=start_s, end_s=end_s))
        self.times[-1].end_s = end_s
        self.times[-1].account.add(part)
        if len(self.times) > MAX_ROWS:
            self.times = _in_pairs(self.times, _joined_times)
            self._row_s *= 2


Row = TypeVar("Row")


def _in_pairs(rows: list[Row], join: Callable[[Row, Row], Row]) -> list[Row]:
    """Half as many; the last one alone where their number is odd."""
    pairs = [join(a, b) for a, b in zip(rows[::2], rows[1::2], strict=False)]
    return [*pairs, rows[-1]] if len(rows) % 2 else pairs


def _joined_epochs(a: EpochRow, b: EpochRow) -> EpochRow:
    a.account.add(b.account)
    return EpochRow(first=a.first, last=b.last, account=a.account)


def _joined_times(a: TimeRow, b: TimeRow) -> TimeRow:
    a.account.add(b.account)
    known = [n for n in (a.run_bytes, b.run_bytes) if n is not None]
    return TimeRow(
        start_s=a.start_s,
        end_s=b.end_s,
        account=a.account,
        run_bytes=max(known) if known else None,
    )
