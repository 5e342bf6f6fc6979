"""How long each visit may be, so that all rounds fit the budget: costs in, steps per window out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loaderdoctor.facts.epochs import measured_whole
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import AXES_BY_NAME, DEFAULT_PREFETCH_FACTOR, Settings
from loaderdoctor.sweep.grid import meaning, own_settings
from loaderdoctor.sweep.trials import Trial

# The same window length as a diagnosis uses: on two shared cores, means of 0.5 s windows of a
# 10 ms step spread by about 2 %, and longer windows buy less than more of them.
WINDOW_S = 1.0
MIN_WINDOW_S = 0.25
MIN_STEPS = 4
MAX_STEPS = 1000
# t at 2 degrees of freedom is 4.3, at 1 it is 12.7: fewer than three rounds separate nothing.
MIN_ROUNDS = 3
MAX_ROUNDS = 8
# Rounds of a whole grid that a search is measured by: what a sweep of 15 trials gets in 120 s.
GRID_ROUNDS = 5
# A process of its own: interpreter, torch, the script's imports and its first warm steps.
PROCESS_S = 8.0
LONGEST_EPOCH_S = 5.0  # of those that are measured whole
# What opening a trial is thought to cost before it was seen: forked workers answer after
# 50–100 ms, spawned ones import torch again (about 3 s).
MIN_WARMUP = 3
OPEN_S = {"fork": 0.1, "forkserver": 1.0, "spawn": 3.0}
FORK_PER_WORKER_S = 0.02
# What the first visit may take beyond that, by axis: the limits of filling a cache and of copying
# files in the measuring process, and what torch.compile takes for a large model.
SLOW_START_S = {"cache": 60.0, "storage": 90.0, "compile": 180.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a visit to one trial costs: a fixed part, and a part for each measured step."""

    overhead_s: float  # opening, warm-up, closing
    step_s: float
    cycle: int  # a window is a whole number of these steps

    def steps(self, window_s: float, *, at_least: int = MIN_STEPS) -> int:
        """Whole cycles that take about `window_s`, never fewer than `at_least` steps."""
        wanted = min(MAX_STEPS, max(at_least, window_s / self.step_s))
        return math.ceil(wanted / self.cycle - 1e-9) * self.cycle

    def measurement_s(self, window_s: float) -> float:
        """Expected length of a visit whose window takes about `window_s`."""
        return self.overhead_s + self.steps(window_s) * self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rounds over some trials, each window about `window_s` long."""

    n_rounds: int
    window_s: float
    trials: tuple[int, ...]  # indexes; the rest is dropped

    def __bool__(self) -> bool:
        return self.n_rounds > 0 and bool(self.trials)


NOTHING = Plan(n_rounds=0, window_s=0.0, trials=())


def guess(trial: Trial, observed: Observed, *, step_s: float) -> Cost:
    """The cost before the first visit: the loop's own step time, and a guess at the opening."""
    full = meaning(trial.settings, own_settings(observed))
    workers = full.num_workers or 0
    # Twice the queue is dropped, then a cycle warms up: what the measuring process does.
    queue = 2 * workers * (full.prefetch_factor or 1)
    warmup = max(MIN_WARMUP, workers)
    opening = OPEN_S.get(full.start_method or observed.environment.start_method, 1.0)
    process_s = PROCESS_S if trial.place == "process" else 0.0
    return Cost(
        overhead_s=process_s
        + (opening + FORK_PER_WORKER_S * workers if workers else 0.0)
        + (queue + warmup + 1) * step_s,
        step_s=step_s,
        cycle=cycle(trial, observed, step_s=step_s),
    )


def cycle(trial: Trial, observed: Observed, *, step_s: float) -> int:
    """Steps after which waits repeat: all workers in turn, and whole accumulation cycles.

    Whole epochs where workers fill most of one ahead, or where one takes no time to speak of.
    """
    own = own_settings(observed)
    full = meaning(trial.settings, own)
    workers = full.num_workers or 0
    queue = workers * (full.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
    epoch = epoch_of(trial, observed)
    if epoch and measured_whole(epoch, queue=queue, step_s=step_s, longest_s=LONGEST_EPOCH_S):
        return epoch
    accumulation = max(1, observed.batches_per_cycle // max(1, own.num_workers or 0))
    return math.lcm(max(1, workers), accumulation)


def epoch_of(trial: Trial, observed: Observed) -> int | None:
    """Steps of the trial's epoch; None where epochs are unknown or one iterator serves all."""
    if trial.settings.keep_iterator:
        return None
    return trial.steps_per_epoch or observed.steps_per_epoch


def measured(trial: Trial, observed: Observed) -> Cost | None:
    """The cost as its visits showed it; None before the first."""
    if not trial.measurements:
        return None
    steps = sum(measurement.times.n_steps for measurement in trial.measurements)
    window_s = sum(measurement.window_s for measurement in trial.measurements)
    step_s = max(window_s / steps, 1e-6)
    overheads = [v.wall_s - v.window_s for v in trial.measurements]
    if slow_start_s(trial.settings):
        # What was compiled, copied or filled at the first visit is there at the next.
        later = guess(trial, observed, step_s=step_s).overhead_s
        overheads = overheads[1:] or [min(later, overheads[0])]
    return Cost(
        overhead_s=max(0.0, fmean(overheads)),
        step_s=step_s,
        cycle=cycle(trial, observed, step_s=step_s),
    )


def slow_start_s(settings: Settings) -> float:
    """How much longer than others the first visit to a trial may take."""
    changed = settings.changed()
    return sum(
        seconds
        for name, seconds in SLOW_START_S.items()
        if name in changed and not AXES_BY_NAME[name].is_idle(changed[name])
    )


def plan(
    costs: Mapping[int, Cost],
    *,
    left_s: float,
    wanted_rounds: int | None,
    by_speed: Sequence[int],
    behind: frozenset[int] = frozenset(),
) -> Plan:
    """Rounds that fit `left_s`, by trial index -> cost; `by_speed` lists indexes, fastest first.

    Prefers many rounds of short windows (each round is an independent sample) over few of long
    ones, never fewer than MIN_ROUNDS unless `wanted_rounds` says so. Where windows would become
    shorter than MIN_WINDOW_S, first trials that are clearly `behind` are dropped, the slowest
    first; then windows become shorter; then others are dropped. Trial 0 always stays. An empty
    plan means that not even trial 0 and the fastest fit.
    """
    fewest, most = (wanted_rounds, wanted_rounds) if wanted_rounds else (MIN_ROUNDS, MAX_ROUNDS)
    kept = [index for index in by_speed if index in costs]
    slowest = [index for index in reversed(kept) if index in behind and index != 0]
    for n_dropped in range(len(slowest) + 1):
        some = [index for index in kept if index not in slowest[:n_dropped]]
        for n_rounds in range(most, fewest - 1, -1):
            found = _plan(costs, some, n_rounds, left_s, at_least=MIN_WINDOW_S)
            if found:
                return found
    kept = [index for index in kept if index not in slowest]
    while len(kept) > 1:
        found = _plan(costs, kept, fewest, left_s, at_least=0.0)
        if found:
            return found
        kept.remove(next(index for index in reversed(kept) if index != 0))
    return NOTHING


def _plan(
    costs: Mapping[int, Cost], kept: Sequence[int], n_rounds: int, left_s: float, *, at_least: float
) -> Plan:
    window_s = _window([costs[index] for index in kept], left_s / n_rounds, at_least=at_least)
    if window_s is None:
        return NOTHING
    return Plan(n_rounds=n_rounds, window_s=window_s, trials=tuple(sorted(kept)))


def _window(costs: Sequence[Cost], round_s: float, *, at_least: float) -> float | None:
    """The longest window (up to WINDOW_S) with which one round takes at most `round_s`."""
    if sum(cost.measurement_s(at_least) for cost in costs) > round_s:
        return None
    low, high = at_least, WINDOW_S
    if sum(cost.measurement_s(high) for cost in costs) <= round_s:
        return high
    for _ in range(20):  # bisection: the visit's length grows with the window's
        middle = (low + high) / 2
        if sum(cost.measurement_s(middle) for cost in costs) <= round_s:
            low = middle
        else:
            high = middle
    return low
