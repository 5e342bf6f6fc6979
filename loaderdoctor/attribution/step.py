"""Plain windows -> the step's wall time, epoch boundaries spread over the real epoch.

Only windows at the pace that the loop kept count: the first ones may have been slower. Also what
Python's garbage collector and torch.compile took in them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from loaderdoctor.attribution.cpu import cpu_facts, queued_ns
from loaderdoctor.estimate import NORMAL95, Noise, Sample, t95
from loaderdoctor.facts.loop import UNLIKE_SHARE, CollectionFacts, CompileFacts, StepFacts
from loaderdoctor.instrument.wire.measured import CollectionRecord
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone
from loaderdoctor.instrument.wire.records import BoundaryRecord
from loaderdoctor.units import NS_PER_MS

# Of a window, its steps; the rest was between them. Window means are good to about 2 %.
MIN_OF_WINDOW = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTimes:
    """One window's mean step, milliseconds, by the step clock (device where there is one)."""

    within: Sample  # over steps without an epoch boundary in them
    boundary_ms: float | None  # mean excess of the steps with one; None where none was seen
    n_steps: int
    n_boundaries: int
    crossed_ms: float | None = None  # likewise of those at which a trial's own loader had one
    together: bool = False  # `crossed_ms` holds the loop's own: the two came at the same steps

    @property
    def within_ms(self) -> float:
        """Their mean."""
        return self.within.value

    def wall(self, steps_per_epoch: int | None, boundary_ms: float | None) -> Sample:
        """Within-epoch time plus one boundary spread over an epoch.

        `boundary_ms` is the pooled boundary, used where this window saw none of its own. A window
        of nothing but boundary steps holds them already.
        """
        if self.n_boundaries >= self.n_steps:
            return self.within
        return self._spread(
            steps_per_epoch, self.boundary_ms if self.boundary_ms is not None else boundary_ms
        )

    def wall_of_trial(
        self, steps_per_epoch: int | None, loader_ms: float | None, own_ms: float
    ) -> Sample:
        """Likewise of a trial's window: its loader's boundary, and the loop's own work at one.

        Either is as the window met it, else as given; the two end their epochs at other steps.
        """
        loader = self.crossed_ms if self.crossed_ms is not None else loader_ms
        if self.n_boundaries >= self.n_steps:
            return self.within
        if loader is None:
            return self._spread(steps_per_epoch, self.boundary_ms)
        own = self.boundary_ms if self.boundary_ms is not None else own_ms
        return self._spread(steps_per_epoch, loader + (0.0 if self.together else own))

    def _spread(self, steps_per_epoch: int | None, boundary: float | None) -> Sample:
        if boundary is None or not steps_per_epoch:
            return self.within
        return self.within.plus(boundary / steps_per_epoch)


def usable(window: WindowDone) -> bool:
    """Whether a window's figures stand: measured to its end, or cut short with steps to show."""
    return window.status in ("ok", "short") and window.n_steps > 0


def of_steps_alone(windows: Sequence[WindowDone]) -> list[WindowDone]:
    """Windows that hold hardly anything but their steps, or all where each holds more.

    Validation lies between steps and is none of them; its CPU time is in the window's all the same.
    """
    alone = [w for w in windows if sum(w.host_step_ns) >= MIN_OF_WINDOW * (w.end_ns - w.start_ns)]
    return alone or list(windows)


def window_times(window: WindowDone, *, cycle: int = 1) -> WindowTimes:
    """Split one window's steps at its epoch boundaries. Raises ValueError on an empty window.

    `cycle`: workers whose batches come in turn, so that waits repeat.

    Where every step holds a boundary (an iterator re-created each step) nothing can be told
    apart: the whole mean is `within_ms`, which is what each step costs.
    """
    steps_ns = window.device_step_ns if window.device_step_ns is not None else window.host_step_ns
    if not steps_ns:
        raise ValueError(f"window {window.id} holds no steps")
    own, crossed = set(window.boundary_steps), set(window.crossed_steps)
    at_boundary = own | crossed
    inside = [ns for i, ns in enumerate(steps_ns) if i not in at_boundary]
    across = [ns for i, ns in enumerate(steps_ns) if i in at_boundary]
    if not inside or not across:
        within = Sample.of(steps_ns, cycle=cycle).scaled(1 / NS_PER_MS)
        return WindowTimes(
            within=within, boundary_ms=None, n_steps=len(steps_ns), n_boundaries=len(across)
        )
    within = Sample.of(inside).scaled(1 / NS_PER_MS)

    def excess_ms(some: set[int]) -> float | None:
        if not some:
            return None
        return fmean(steps_ns[i] for i in some) / NS_PER_MS - within.value

    return WindowTimes(
        within=within,
        boundary_ms=excess_ms(own - crossed),
        n_steps=len(steps_ns),
        n_boundaries=len(across),
        crossed_ms=excess_ms(crossed - own or crossed),
        together=bool(crossed) and crossed <= own,
    )


def boundary_cost_ms(record: BoundaryRecord) -> float:
    """Host time of one epoch boundary: creation, first batch, teardown of the old iterator."""
    return (record.create_ns + record.first_wait_ns + record.teardown_ns) / NS_PER_MS


def boundaries_of_step(observed: Observed, windows: Sequence[WindowDone]) -> list[BoundaryRecord]:
    """Those of loaders that train, of the warm-up and of these windows: validation's are none."""
    names = {x.id for x in observed.loaders if x.role == "train"}
    every = (*observed.boundaries, *(b for w in windows for b in w.boundaries))
    return [b for b in every if b.loader in names]


def pooled_boundary_ms(
    windows: Sequence[WindowDone], boundaries: Sequence[BoundaryRecord]
) -> float | None:
    """One epoch boundary's cost: from the windows' own steps, else from the step's boundaries.

    The run's first stands in only where no later one was seen: it also pays for cold caches.
    """
    seen = [t.boundary_ms for t in map(window_times, windows) if t.boundary_ms is not None]
    if seen:
        return max(0.0, fmean(seen))
    later = [b for b in boundaries if not b.first] or list(boundaries)
    return fmean(map(boundary_cost_ms, later)) if later else None


def loader_boundary_ms(
    boundary_ms: float | None, boundaries: Sequence[BoundaryRecord]
) -> float | None:
    """The loader's part of one epoch boundary; the loop may save or draw something there too."""
    later = [b for b in boundaries if not b.first]
    if boundary_ms is None or not later:
        return boundary_ms
    costs = defaultdict[str, list[float]](list)
    for b in later:
        costs[b.loader].append(boundary_cost_ms(b))
    return min(boundary_ms, sum(map(fmean, costs.values())))


def own_boundary_ms(
    windows: Sequence[WindowDone], boundaries: Sequence[BoundaryRecord]
) -> float | None:
    """Of one epoch boundary, the loop's own work there (saving, drawing); None: not told apart.

    `boundaries`: of loaders that feed the step. One that none feeds any more has this work too.
    """
    boundary_ms = pooled_boundary_ms(windows, boundaries)
    of_loader = loader_boundary_ms(boundary_ms, boundaries)
    return boundary_ms - of_loader if boundary_ms is not None and of_loader is not None else None


def _input_ms(
    waited_ms: float,
    first: Sequence[BoundaryRecord],
    n_steps: int,
    boundary_ms: float | None,
    *,
    each_step: bool,
) -> float:
    """Time in getting batches, a step; `boundary_ms`: the loader's, spread over an epoch's steps.

    What the boundaries within the windows (`first`) waited for is taken out: they stand in no
    proportion to those of whole epochs. Where each step has one (`each_step`: each makes an
    iterator) they are what the step costs.
    """
    if each_step and first:
        return waited_ms / n_steps + fmean(b.create_ns + b.teardown_ns for b in first) / NS_PER_MS
    if boundary_ms is None:
        return waited_ms / n_steps
    first_ms = sum(b.first_wait_ns for b in first) / NS_PER_MS
    return max(0.0, waited_ms - first_ms) / n_steps + boundary_ms


def wall_per_window(
    windows: Sequence[WindowDone], steps_per_epoch: int | None, boundary_ms: float | None
) -> list[Sample]:
    """Wall time per step of each window, boundary spread in; same order as `windows`."""
    return [window_times(w).wall(steps_per_epoch, boundary_ms) for w in windows]


def waits_ms(window: WindowDone, loaders: frozenset[int]) -> list[float]:
    """Time in `__next__` of each fetch from these loaders (indexes into Observed.loaders)."""
    return [(f.end_ns - f.start_ns) / NS_PER_MS for f in window.fetches if f.loader in loaders]


def step_facts(
    observed: Observed, windows: Sequence[WindowDone], earlier: Sequence[WindowDone] = ()
) -> StepFacts | None:
    """Facts of the step from the plain windows among `windows`; None if none is usable.

    `earlier` windows had another pace. Of them only epoch boundaries count, which are what a step
    with one took longer than its window's others, and what memory stood at in the first of all.
    """
    plain = [w for w in windows if w.mode == "plain" and usable(w)]
    everything = [*(w for w in earlier if w.mode == "plain" and usable(w)), *plain]
    if not plain:
        return None
    train = frozenset(i for i, x in enumerate(observed.loaders) if x.role == "train")
    steps_per_epoch = observed.steps_per_epoch
    of_step = boundaries_of_step(observed, everything)
    boundary_ms = pooled_boundary_ms(everything, of_step)
    times = [window_times(w) for w in plain]
    of_loader = loader_boundary_ms(boundary_ms, of_step)
    names = {x.id for x in observed.loaders if x.role == "train"}
    within = [b for w in plain for b in w.boundaries if b.loader in names]
    spread = of_loader / steps_per_epoch if of_loader is not None and steps_per_epoch else None
    all_waits = [x for w in plain for x in waits_ms(w, train)]
    n_steps = sum(t.n_steps for t in times)
    n_samples = sum(w.n_samples for w in plain)
    created = Counter(b.loader for b in within).most_common(1)
    alone = of_steps_alone(plain)
    wall_ns = sum(w.end_ns - w.start_ns for w in alone)
    walls = wall_per_window(plain, steps_per_epoch, boundary_ms)
    noise = Noise.of([walls])
    return StepFacts(
        definition=observed.definition,
        wall_ms=noise.mean(walls),
        within_epoch_ms=noise.mean([t.within for t in times]),
        boundary_ms=boundary_ms,
        steps_per_epoch=steps_per_epoch,
        n_steps=n_steps,
        raw_wait_ms=sum(all_waits) / n_steps if all_waits else None,
        waits_ms=tuple(all_waits),
        samples_per_step=n_samples / n_steps if n_samples else None,
        clock="device" if plain[0].device_step_ns is not None else "host",
        n_iterators_created=created[0][1] if created else 0,
        most_iterators_of=created[0][0] if created else None,
        rebuilt=_rebuilt(of_step),
        changed=next((b.changed for b in of_step if b.changed is not None), None),
        worker_cpu_cores=_cores([w.worker_cpu_ns for w in alone], wall_ns),
        main_cpu_cores=_cores([w.main_cpu_ns for w in alone], wall_ns),
        gpu_peak_allocated_bytes=everything[0].gpu_peak_allocated_bytes,
        gpu_peak_reserved_bytes=everything[0].gpu_peak_reserved_bytes,
        loader_boundary_ms=of_loader,
        input_ms=_input_ms(
            sum(all_waits),
            within,
            n_steps,
            spread,
            each_step=all(t.n_boundaries >= t.n_steps for t in times),
        )
        if all_waits
        else None,
        queued_ms=_queued_ms(plain, train),
        windows_ms=tuple(t.within_ms for t in times),
        cpu=cpu_facts(plain, observed.environment.usable_cpus),
        compiling=compile_facts(plain),
        collecting=collection_facts(plain),
    )


def _queued_ms(windows: Sequence[WindowDone], loaders: frozenset[int]) -> float | None:
    """Of getting batches, a step: the thread stood ready and no CPU was free. None: not told."""
    ns = queued_ns([f for w in windows for f in w.fetches if f.loader in loaders])
    return None if ns is None else ns / sum(w.n_steps for w in windows) / NS_PER_MS


def _rebuilt(boundaries: Sequence[BoundaryRecord]) -> frozenset[str]:
    """Loaders whose every later epoch was of a DataLoader object built for it."""
    later = [b for b in boundaries if not b.first]
    return frozenset(b.loader for b in later) - {b.loader for b in later if not b.rebuilt}


def _cores(cpu_ns: Sequence[int | None], wall_ns: int) -> float | None:
    known = [ns for ns in cpu_ns if ns is not None]
    return sum(known) / wall_ns if known and wall_ns > 0 else None


# Windows before the loop settled at a pace: figures of two have no common mean, and an interval
# over both is of neither. What remains of the training runs at the later one.
MIN_LATER = 3  # the fewest windows whose spread says what one more would have been


def before_steady(
    windows: Sequence[WindowDone], steps_per_epoch: int | None = None
) -> list[WindowDone]:
    """The first windows of these, in time, where each of them is slower than all that follow.

    Slower by `UNLIKE_SHARE` and by more than one further window of the later ones would differ,
    without the time that other programs had the CPU. Of several such changes those before the last.
    Empty where too few windows follow: less than an epoch after one, whose parts may differ.
    """
    known = sorted((w for w in windows if usable(w)), key=lambda w: w.start_ns)
    for n in range(len(known) - MIN_LATER, 0, -1):
        first, later = known[:n], known[n:]
        limit_ms = _limit_ms(later)
        n_first, n_later = (sum(w.n_steps for w in part) for part in (first, later))
        parted = steps_per_epoch is not None and n_first >= steps_per_epoch > n_later
        if not parted and all(excess_ms(window, later) > limit_ms for window in first):
            return first
    return []


def excess_ms(window: WindowDone, later: Sequence[WindowDone]) -> float:
    """How much longer its step took than theirs, but for waiting longer for a CPU."""
    excess = window_times(window).within_ms - fmean(window_times(w).within_ms for w in later)
    waited = [ms for w in later if (ms := waited_ms(w)) is not None]
    own = waited_ms(window)
    return excess - max(0.0, own - fmean(waited)) if waited and own is not None else excess


def waited_ms(window: WindowDone) -> float | None:
    """How long the training thread stood ready without a CPU, a step."""
    waited_ns = window.cpu.thread_waited_ns if window.cpu is not None else None
    return waited_ns / window.n_steps / NS_PER_MS if waited_ns is not None else None


def _limit_ms(later: Sequence[WindowDone]) -> float:
    """How far one more window may lie from their mean (95 of 100 do); `UNLIKE_SHARE` at least."""
    times, n = [window_times(w).within_ms for w in later], len(later)
    noise_ms = t95(n - 1) * stdev(times) * math.sqrt(1 + 1 / n)
    return max(noise_ms, UNLIKE_SHARE * fmean(times))


def collection_facts(windows: Sequence[WindowDone]) -> CollectionFacts | None:
    """Over all these windows; None where nothing was collected in them."""
    records = [w.collections for w in windows if w.collections is not None]
    n_steps = sum(w.n_steps for w in windows)
    if not records or not n_steps:
        return None
    steps_ns = [ns for w in windows for ns in w.host_step_ns]
    step_ns = median(steps_ns) if steps_ns else 0.0
    full_ns = [ns for r in records for ns in r.full_ns]
    total_ns = sum(sum(r.ns) for r in records)
    ms_per_step = total_ns / NS_PER_MS / n_steps
    asking = max(records, key=lambda r: r.asked_ns)
    return CollectionFacts(
        n=sum(sum(r.n) for r in records),
        n_full=sum(r.n[-1] for r in records),
        n_steps=n_steps,
        ms_per_step=ms_per_step,
        low_ms_per_step=ms_per_step * _sure_part(records, n_steps),
        full_ms_per_step=sum(r.ns[-1] for r in records) / NS_PER_MS / n_steps,
        asked_ms_per_step=sum(r.asked_ns for r in records) / NS_PER_MS / n_steps,
        longest_ms=max(full_ns) / NS_PER_MS if full_ns else None,
        n_longer_than_step=sum(1 for ns in full_ns if ns > step_ns),
        site=asking.site,
        code=asking.code,
        library=asking.library,
        n_epoch_ends=sum(len(w.boundary_steps) for w in windows),
    )


def _sure_part(records: Sequence[CollectionRecord], n_steps: int) -> float:
    """Lower end of the total's 95 % interval / the total, as of events that come at random.

    A count of n that come at random has a variance of n, less the nearer they are to one in each
    step, which is no chance. Generations differ in what one takes, so each counts by itself.
    """
    n = [sum(r.n[i] for r in records) for i in range(len(records[0].n))]
    ns = [sum(r.ns[i] for r in records) for i in range(len(records[0].n))]
    variance = sum(
        x * x / count * (1.0 - min(1.0, count / n_steps))
        for count, x in zip(n, ns, strict=True)
        if count
    )
    total = sum(ns)
    return max(0.0, 1.0 - NORMAL95 * math.sqrt(variance) / total) if total else 0.0


def compile_facts(windows: Sequence[WindowDone]) -> CompileFacts | None:
    """Over all these windows; None where torch.compile made nothing in them."""
    records = [w.compiles for w in windows if w.compiles is not None]
    n_steps = sum(w.n_steps for w in windows)
    if not records or not n_steps:
        return None
    last = next((r for r in reversed(records) if r.reason is not None), records[-1])
    return CompileFacts(
        n=sum(r.n for r in records),
        n_steps=n_steps,
        ms_per_step=sum(r.ns for r in records) / NS_PER_MS / n_steps,
        reason=last.reason,
        function=last.function,
    )
