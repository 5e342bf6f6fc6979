"""What is told of a run, and its cause: what changed around the loop when its pace did.

Comes in: what was seen before and after. A cause is named only where a mechanism was seen to change
with the pace, and enough to carry it; else the change is told without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from loaderdoctor import format as fmt
from loaderdoctor.instrument.wire.measured import Surroundings
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.units import NS_PER_MS

Kind = Literal[
    "input-begins",
    "input-ends",
    "input-bound",
    "slower",
    "faster",
    "drift",
    "stalls",
    "pauses",
    "collections",
    "memory-fills",
    "shm-fills",
    "rank-behind",
    "workers-died",
    "tuned",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What happened, when, and what to do. `text` is whole sentences for a line on a terminal."""

    kind: Kind
    at_s: float  # seconds since the epoch: when it began
    step: int
    text: str
    cause: str | None = None  # a word for programs; None: none was seen
    advice: str | None = None

    @staticmethod
    def at(
        beat: Beat, kind: Kind, text: str, *, cause: str | None = None, advice: str | None = None
    ) -> Alert:
        """Of what is seen at this beat."""
        step = beat.n_steps
        return Alert(kind=kind, at_s=beat.at_s, step=step, text=text, cause=cause, advice=advice)

    @property
    def line(self) -> str:
        return self.text if self.advice is None else f"{self.text} {self.advice}"


# Of the change, what the mechanism must be able to carry.
CARRIES: Final = 0.5
# Batches that take this much longer to make are slower for a reason of their own.
SLOWER_BATCHES: Final = 1.25
OTHER_CPUS: Final = 0.5
THROTTLED: Final = 0.1
PRESSURE: Final = 0.15
CLOCK_DROP: Final = 0.9
TO_MOVE: Final = "See with `top` which; move it, or give each its own CPUs (taskset)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why, and what to do."""

    kind: str
    text: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What was seen in a stretch of the run: beats of one process, and looks around it."""

    beats: Sequence[Beat]
    looks: Sequence[Surroundings]

    @property
    def n_steps(self) -> int:
        return sum(b.sums.n_steps for b in self.beats)

    def per_step_ms(self, of: Callable[[Beat], int | None]) -> float | None:
        """A sum of the beats, per step; None where one does not tell it."""
        values = [of(b) for b in self.beats]
        if not self.n_steps or any(v is None for v in values):
            return None
        return sum(v for v in values if v is not None) / self.n_steps / NS_PER_MS

    @property
    def step_ms(self) -> float | None:
        return self.per_step_ms(lambda b: b.sums.steps_ns)

    @property
    def wait_ms(self) -> float | None:
        return self.per_step_ms(lambda b: b.sums.wait_ns)

    @property
    def batch_ms(self) -> tuple[float, float] | None:
        """(time, CPU time) that a worker takes for a batch; None without workers."""
        known = [b.workers for b in self.beats if b.workers is not None]
        n = sum(w.n_batches for w in known)
        if not n:
            return None
        make, cpu = sum(w.make_ns for w in known), sum(w.cpu_ns for w in known)
        return make / n / NS_PER_MS, cpu / n / NS_PER_MS

    @property
    def n_workers(self) -> int | None:
        known = [b.workers.n_alive for b in self.beats if b.workers is not None]
        return known[-1] if known else None

    def look(self, of: Callable[[Surroundings], float | None]) -> float | None:
        """The mean of what the looks tell; None where none does."""
        values = [v for look in self.looks if (v := of(look)) is not None]
        return sum(values) / len(values) if values else None

    @property
    def slowed_gpus(self) -> tuple[str, ...]:
        """What held GPUs down in most of the looks."""
        found = [r for look in self.looks for gpu in look.gpus for r in gpu.slowed_by]
        return tuple(r for r in dict.fromkeys(found) if found.count(r) * 2 > len(self.looks))

    @property
    def gpu_mhz(self) -> float | None:
        clocks = [g.sm_mhz for look in self.looks for g in look.gpus if g.sm_mhz]
        return sum(clocks) / len(clocks) if clocks else None


def cause_of(before: Stretch, after: Stretch, *, by_input: bool) -> Cause | None:
    """Why steps take longer now; None where nothing was seen that can carry it.

    `by_input`: most of the change is in the wait for batches.
    """
    contended = _contended(before, after)
    if by_input:
        return _of_workers(before, after, contended)
    return contended or _of_the_loop(before, after)


def _rise(
    before: Stretch, after: Stretch, of: Callable[[Surroundings], float | None]
) -> tuple[float, float] | None:
    """(before, after) of what the looks tell; None where either is not told."""
    one, other = before.look(of), after.look(of)
    return (one, other) if one is not None and other is not None else None


def _contended(before: Stretch, after: Stretch) -> Cause | None:
    """Other programs, or a quota, take CPUs from the run."""
    throttled = _rise(before, after, lambda s: s.throttled_share)
    if throttled is not None and throttled[1] - throttled[0] > THROTTLED:
        return Cause(
            kind="quota",
            text=f"the CPU quota now holds the run back in {fmt.share(throttled[1])} of its "
            f"periods ({fmt.share(throttled[0])} before)",
            advice="Raise the container's CPU limit, or use fewer workers and threads.",
        )
    others = _rise(before, after, lambda s: s.other_cpus)
    if others is not None and others[1] - others[0] > OTHER_CPUS:
        return Cause(
            kind="other-programs",
            text=f"other programs now use {others[1]:.1f} CPUs of this run's "
            f"({others[0]:.1f} before)",
            advice=TO_MOVE,
        )
    return None


def _of_workers(before: Stretch, after: Stretch, contended: Cause | None) -> Cause | None:
    n_before, n_after = before.n_workers, after.n_workers
    if n_before and n_after is not None and n_after < n_before:
        return Cause(
            kind="workers-gone",
            text=f"{n_after} of {n_before} workers are left",
            advice="See the worker's own error above, and `dmesg` for the out-of-memory killer.",
        )
    old, new = before.batch_ms, after.batch_ms
    if old is None or new is None:
        return contended or _in_main_process(before, after)
    if new[0] < SLOWER_BATCHES * old[0]:
        return contended
    more, more_cpu = new[0] - old[0], max(0.0, new[1] - old[1])
    batches = f"a worker takes {fmt.ms(new[0])} for a batch ({fmt.ms(old[0])} before)"
    if more_cpu >= CARRIES * more:
        return Cause(
            kind="costlier-samples",
            text=f"{batches}, and {fmt.ms(new[1])} of it is CPU time ({fmt.ms(old[1])} before): "
            "the samples cost more to make",
            advice="Look at what the dataset gives now: larger files, another shard, more "
            "augmentation.",
        )
    if contended is not None:
        return contended
    return _waits_for_data(before, after, f"{batches}, with the same CPU time")


def _in_main_process(before: Stretch, after: Stretch) -> Cause | None:
    """Without workers the training thread makes the batches: by CPU, or waiting for data."""
    cpu = [s.per_step_ms(lambda b: b.thread_cpu_ns) for s in (before, after)]
    waits = before.wait_ms, after.wait_ms
    if cpu[0] is None or cpu[1] is None or waits[0] is None or waits[1] is None:
        return None
    more = waits[1] - waits[0]
    if cpu[1] - cpu[0] >= CARRIES * more:
        return Cause(
            kind="costlier-samples",
            text=f"making a batch takes {fmt.ms(waits[1])} ({fmt.ms(waits[0])} before), most of "
            "the difference CPU time: the samples cost more to make",
            advice="Look at what the dataset gives now; workers would make them meanwhile.",
        )
    text = f"making a batch takes {fmt.ms(waits[1])} ({fmt.ms(waits[0])} before), with hardly "
    return _waits_for_data(before, after, text + "more CPU time")


def _waits_for_data(before: Stretch, after: Stretch, text: str) -> Cause:
    """The rest of the time they wait: for a disk, a network, or a sleep of their own."""
    seen = []
    io = _rise(before, after, lambda s: s.io_pressure)
    if io is not None and io[1] - io[0] > PRESSURE:
        seen.append(f"I/O pressure rose from {fmt.share(io[0])} to {fmt.share(io[1])}")
    memory = after.look(lambda s: s.memory_pressure)
    if memory is not None and memory > PRESSURE:
        return Cause(
            kind="memory-pressure",
            text=f"{text}; memory pressure is {fmt.share(memory)}",
            advice="The page cache no longer holds the data: use fewer workers, or more memory.",
        )
    reads = _rise(before, after, lambda s: s.read_bytes_per_s)
    if reads is not None and reads[1] > 2 * reads[0] + 1e6:
        seen.append(
            f"it reads {fmt.n_bytes(reads[1])}/s from disk, {fmt.n_bytes(reads[0])}/s before: the "
            "page cache no longer holds the data"
        )
    return Cause(
        kind="storage",
        text=f"{text}: it waits for its data{' (' + '; '.join(seen) + ')' if seen else ''}",
        advice="Look at the storage and who else uses it; a local copy of the data, or more "
        "workers to wait at the same time, would hide it.",
    )


def _of_the_loop(before: Stretch, after: Stretch) -> Cause | None:
    slowed = [r for r in after.slowed_gpus if r not in before.slowed_gpus]
    clocks = before.gpu_mhz, after.gpu_mhz
    if slowed and clocks[0] and clocks[1] and clocks[1] < CLOCK_DROP * clocks[0]:
        return Cause(
            kind="gpu-clock",
            text=f"the GPU runs at {clocks[1]:.0f} MHz ({clocks[0]:.0f} before), held down by "
            f"{' and '.join(slowed)}",
            advice="Look at its cooling and power limit: nvidia-smi -q -d PERFORMANCE.",
        )
    old, new = before.step_ms, after.step_ms
    if old is None or new is None:
        return None
    for what, kind, advice in _OWN:
        one, other = before.per_step_ms(what), after.per_step_ms(what)
        if one is not None and other is not None and other - one >= CARRIES * (new - old):
            name = "garbage collection" if kind == "collections" else "the training thread's CPU"
            return Cause(
                kind=kind,
                text=f"{name} takes {fmt.ms(other)} of a step ({fmt.ms(one)} before)",
                advice=advice,
            )
    return None


_OWN: Final[Sequence[tuple[Callable[[Beat], int | None], str, str]]] = (
    (
        lambda b: b.collections.total_ns,
        "collections",
        "Call gc.freeze() after the first step, or gc.disable() and gc.collect() now and then.",
    ),
    (
        lambda b: b.thread_cpu_ns,
        "own-work",
        "The loop itself does more: longer sequences, a larger batch, or what it logs.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one process told besides its times; None: not told."""

    minor_faults: int | None = None  # page faults so far
    major_faults: int | None = None
    ready_batches: int | None = None  # that stood in the queues at the last beat, …
    asked_batches: int | None = None  # … of so many that workers were asked for

    def after(self, beat: Beat) -> Counted:
        """With this one."""
        return Counted(
            minor_faults=_more(self.minor_faults, beat.minor_faults),
            major_faults=_more(self.major_faults, beat.major_faults),
            ready_batches=beat.queue.n_ready if beat.queue is not None else None,
            asked_batches=beat.queue.n_asked if beat.queue is not None else None,
        )

    def since(self, before: Counted) -> Counted:
        """Faults of the time between the two alone."""
        return replace(
            self,
            minor_faults=_less(self.minor_faults, before.minor_faults),
            major_faults=_less(self.major_faults, before.major_faults),
        )


def _more(so_far: int | None, now: int | None) -> int | None:
    return so_far if now is None else (so_far or 0) + now


def _less(so_far: int | None, before: int | None) -> int | None:
    return None if so_far is None else so_far - (before or 0)
