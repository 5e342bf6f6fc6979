"""Follows a whole run: its processes, its memory, how its ranks compare, where its time went."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Final, TypeVar

from loaderdoctor import format as fmt
from loaderdoctor.alerts import Alert, Counted
from loaderdoctor.alerts.watcher import RankWatcher
from loaderdoctor.alerts.watches import Growth, GrowthWatch
from loaderdoctor.instrument.wire.measured import LogBins, Surroundings
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.instrument.wire.records import WallRecord
from loaderdoctor.units import NS_PER_MS, NS_PER_S

# A rank whose waits exceed its peers' by this much of the step, in so many beats in a row.
BEHIND_SHARE: Final = 0.10
BEHIND_BEATS: Final = 5
# Steps whose copies tell what those of a beat held up: as many are seen before they are seen half
# as often (`recording.COPIES_LOOKS`).
N_COPIED: Final = 4


@dataclass(slots=True, eq=False)
class _Rank:
    watcher: RankWatcher
    history: History
    last_step_ns: tuple[int, ...] = ()
    waits_ms: deque[float] = field(default_factory=lambda: deque(maxlen=BEHIND_BEATS))
    step_ms: float = 0.0
    pids: tuple[int, ...] = ()
    counted: Counted = field(default_factory=Counted)


class Job:
    """Beats and surroundings in, alerts out; what has been so far is in `histories`."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._ranks: dict[int, _Rank] = {}
        # The run's memory twice: private pages at every look, and its share of all pages, which
        # shows what forked workers copy too and is told seldom where processes are large.
        self._private, self._memory, self._shm = GrowthWatch(), GrowthWatch(), GrowthWatch()
        self._shm_most = 0
        self._behind: set[int] = set()

    @property
    def histories(self) -> dict[int, History]:
        """By rank, the lowest first."""
        return {rank: self._ranks[rank].history for rank in sorted(self._ranks)}

    @property
    def worker_pids(self) -> list[int]:
        """Of all ranks."""
        return [pid for one in self._ranks.values() for pid in one.pids]

    @property
    def last_step_ns(self) -> tuple[int, ...]:
        """Of the lowest rank."""
        first = min(self._ranks, default=None)
        return self._ranks[first].last_step_ns if first is not None else ()

    @property
    def counted(self) -> Counted:
        """Of the lowest rank."""
        first = min(self._ranks, default=None)
        return self._ranks[first].counted if first is not None else Counted()

    def beat(self, rank: int, beat: Beat) -> list[Alert]:
        """What a rank says; what is to be told by now."""
        one = self._ranks.get(rank)
        if one is None:
            one = self._ranks[rank] = _Rank(RankWatcher(), History(self._began_s))
        account = one.history.beat(beat)
        one.last_step_ns = (*one.last_step_ns, *beat.last_step_ns)[-256:]
        one.counted = one.counted.after(beat)
        one.pids = beat.workers.pids if beat.workers is not None else ()
        told = one.watcher.beat(beat, account.input_share)
        # Ranks are in step: what changes for all is told of the lowest.
        told = told if rank == min(self._ranks) else [a for a in told if a.kind == "workers-died"]
        return told + self._compare(rank, one, beat)

    def look(self, look: Surroundings) -> list[Alert]:
        told = []
        for rank, one in self._ranks.items():
            found = one.watcher.look(look)
            told += found if rank == min(self._ranks) else []
        if look.run_bytes is not None:
            for one in self._ranks.values():
                one.history.memory(look.run_bytes)
        told += self._memory_fills(look)
        if look.shm_free_bytes is not None:
            self._shm_most = max(self._shm_most, look.shm_free_bytes)
            used = self._shm_most - look.shm_free_bytes
            grown = self._shm.add(look.at_s, used, look.shm_free_bytes)
            if grown is not None:
                told.append(self._shm_fills(look, grown))
        return told

    @property
    def _step(self) -> int:
        return max((one.history.n_steps for one in self._ranks.values()), default=0)

    def _memory_fills(self, look: Surroundings) -> list[Alert]:
        free = look.available_bytes
        if free is None:
            return []
        for watch, other, of_run, of_workers in (
            (self._private, self._memory, look.run_private_bytes, look.workers_grown_bytes),
            (self._memory, self._private, look.run_bytes, look.workers_bytes),
        ):
            if of_run is None:
                continue
            grown = watch.add(look.at_s, of_run, free, of_workers or 0)
            if grown is not None:
                other.told(grown.full_in_h)
                return [self._fills(look, grown)]
        return []

    def _fills(self, look: Surroundings, grown: Growth) -> Alert:
        at_workers = grown.part_share > 0.5
        whose = "most of it in the workers" if at_workers else "most of it in the training process"
        return Alert(
            kind="memory-fills",
            at_s=look.at_s,
            step=self._step,
            text=f"The run's memory grows by {fmt.n_bytes(grown.bytes_per_h)} an hour, {whose}, "
            f"and will be full in {fmt.seconds(grown.full_in_h * 3600)} at this rate.",
            cause="worker-memory-growth" if at_workers else "memory-growth",
            advice=(
                "Keep samples and paths in numpy arrays, not in lists of Python objects, and open "
                "files inside the worker; workers that end with each epoch start small again."
                if at_workers
                else "Look for what is kept from step to step: losses that hold their graph, "
                "lists of batches."
            ),
        )

    def _shm_fills(self, look: Surroundings, grown: Growth) -> Alert:
        return Alert(
            kind="shm-fills",
            at_s=look.at_s,
            step=self._step,
            text=f"/dev/shm fills by {fmt.n_bytes(grown.bytes_per_h)} an hour and will be full in "
            f"{fmt.seconds(grown.full_in_h * 3600)} at this rate.",
            cause="shm-growth",
            advice="Batches that are kept hold their shared memory: copy what you keep (.clone()).",
        )

    def _compare(self, rank: int, one: _Rank, beat: Beat) -> list[Alert]:
        sums = beat.sums
        if not sums.n_steps or sums.wait_ns is None:
            return []
        one.waits_ms.append(sums.wait_ns / sums.n_steps / NS_PER_MS)
        one.step_ms = sums.steps_ns / sums.n_steps / NS_PER_MS
        peers = [r for n, r in self._ranks.items() if n != rank and len(r.waits_ms) == BEHIND_BEATS]
        if not peers or len(one.waits_ms) < BEHIND_BEATS or rank in self._behind:
            return []
        theirs = median(min(r.waits_ms) for r in peers), median(max(r.waits_ms) for r in peers)
        if min(one.waits_ms) - theirs[1] < BEHIND_SHARE * one.step_ms:
            return []
        self._behind.add(rank)
        text = (
            f"Rank {rank} waits {fmt.ms(median(one.waits_ms))} a step for its batches, the others "
            f"{fmt.ms(median(theirs))}: all of them wait for it."
        )
        advice = (
            f"Look at rank {rank}'s data and machine: its storage, its shard, who else uses its "
            "CPUs."
        )
        return [Alert.at(beat, "rank-behind", text, cause="slow-rank", advice=advice)]


# Rows that grow too many are joined in pairs: a run of a week has as many as one of an hour.
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
        for one in fields(self):
            mine, more = getattr(self, one.name), getattr(other, one.name)
            setattr(self, one.name, mine if more is None else (mine or 0) + more)

    @property
    def input_share(self) -> float | None:
        """Of all that was recorded; None of nothing."""
        return self.input_s / self.recorded_s if self.recorded_s > 0 else None


@dataclass(slots=True, kw_only=True)
class EpochRow:
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
        # The same of copies, in the latest steps whose copies were seen.
        self._copied: deque[tuple[int, float]] = deque()
        self._outside = (0.0, 0.0)

    def beat(self, beat: Beat) -> Account:
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
        """What copies held up, by the latest steps seen; None where none were seen so far.

        They are seen less and less often: a mean over the whole run would be that of its first
        quarter of an hour for as long as it lasts.
        """
        if beat.dry is None:
            return None
        seen = self._copied
        if beat.dry.n_copied:
            seen.append((beat.dry.n_copied, beat.dry.copy_ns / NS_PER_S))
            while sum(n for n, _ in seen) - seen[0][0] >= N_COPIED:
                seen.popleft()
        n = sum(n for n, _ in seen)
        return sum(s for _, s in seen) / n * beat.sums.n_steps if n else None

    def _known_outside(self, wall: WallRecord | None) -> tuple[float, float]:
        if wall is None:
            return 0.0, 0.0
        passes_ns = sum(o.timed_ns for o in wall.outside if o.what == "pass" and not o.trains)
        saves_ns = sum(o.timed_ns for o in wall.outside if o.what == "save")
        passes, saves = passes_ns / NS_PER_S, saves_ns / NS_PER_S
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
