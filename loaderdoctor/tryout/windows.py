"""How long a window is: steps from the seconds there are, whole cycles and epochs; and its limits.

All that sizes a window is here: of the loop as it is (`Sizes`), and of a trial (`Cost`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loaderdoctor.facts import meaning, own_settings
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import AXES_BY_NAME, Settings
from loaderdoctor.tryout import Options, Trial

# A window this long averages over scheduler and page-cache hiccups of some milliseconds: on two
# shared cores, window means of 0.5 s windows of a 10 ms step spread by about 2 %.
WINDOW_S = 1.0
MIN_WINDOW_S = 0.25
# Within the whole budget there must be room for three rounds of three windows, each with as much
# again for drop and warm-up, next to profile and verification: about 40 window lengths.
WINDOWS_PER_BUDGET = 40
MIN_STEPS = 4
MAX_STEPS = 1000
# The profiled window needs a whole worker cycle and enough steps for means; more only costs
# export time (about 1 s per 100,000 events) and tells nothing new.
MIN_PROFILED_STEPS = 8
MAX_PROFILED_STEPS = 40
PROFILED_S = 1.0
# Slow steps are profiled fewer at a time, where they would take more than this of the budget.
MAX_PROFILED_SHARE = 0.25
# Epochs of up to this many windows' length are measured whole, so that each window holds its share
# of boundaries. Longer ones would leave time for one or two rounds, which decide nothing: epochs of
# 2.5 s got one round in 45 s. What a boundary costs is told apart from the steps in any case.
WHOLE_EPOCH_WINDOWS = 2.0
# No window may run longer than this many times what was planned, plus a worker pool's slow start:
# a loop that turned slow (a stalled disk, a debugger) must not eat the budget.
LIMIT_FACTOR = 4.0
LIMIT_EXTRA_S = 5.0
LIMIT_BUDGET_SHARE = 0.25
# t at 2 degrees of freedom is 4.3, at 1 it is 12.7: fewer than three rounds separate nothing.
MIN_ROUNDS = 3
MAX_ROUNDS = 8
# Rounds of a whole grid that a search is measured by: what a sweep of 15 trials gets in 120 s.
GRID_ROUNDS = 5
# A process of its own: interpreter, torch, the script's imports and its first warm steps.
PROCESS_S = 8.0
LONGEST_EPOCH_S = 5.0  # of a sweep's that are measured whole
# What opening a trial is thought to cost before it was seen: forked workers answer after
# 50–100 ms, spawned ones import torch again (about 3 s).
MIN_WARMUP = 3
OPEN_S = {"fork": 0.1, "forkserver": 1.0, "spawn": 3.0}
FORK_PER_WORKER_S = 0.02
# What the first measurement may take beyond that, by axis: the limits of filling a cache and of
# copying files in the measuring process, and what torch.compile takes for a large model.
SLOW_START_S = {"cache": 60.0, "storage": 90.0, "compile": 180.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Steps per window, and the time one step takes (seconds)."""

    step_s: float
    n_steps: int
    n_profiled_steps: int
    cycle: int  # batches after which the loader's waits repeat

    @property
    def window_s(self) -> float:
        """Expected length of one window's measured part."""
        return self.step_s * self.n_steps


def step_seconds(step_ns: Sequence[int], cycle: int) -> float:
    """Mean of the last whole worker cycles of the warm-up: waits repeat with the cycle.

    Raises ValueError on no steps.
    """
    if not step_ns:
        raise ValueError("no steps were observed")
    whole = len(step_ns) // cycle * cycle if cycle <= len(step_ns) else len(step_ns)
    return fmean(step_ns[-whole:]) / 1e9


def sizes(observed: Observed, *, budget_s: float) -> Sizes:
    """Window sizes for this loop: whole cycles, whole epochs where epochs are short."""
    cycle = max(1, observed.batches_per_cycle)
    step_s = max(step_seconds(observed.step_ns, cycle), 1e-6)
    window_s = min(WINDOW_S, max(MIN_WINDOW_S, budget_s / WINDOWS_PER_BUDGET))
    n_steps = _whole(window_s / step_s, cycle, low=MIN_STEPS, high=MAX_STEPS)
    fewest = MIN_PROFILED_STEPS
    if fewest * step_s > MAX_PROFILED_SHARE * budget_s:
        fewest = MIN_STEPS + 1
    n_profiled = _whole(PROFILED_S / step_s, cycle, low=fewest, high=MAX_PROFILED_STEPS)
    epoch = observed.steps_per_epoch
    if epoch and epoch * step_s <= WHOLE_EPOCH_WINDOWS * window_s:
        n_steps = _whole(n_steps, epoch, low=epoch, high=max(epoch, MAX_STEPS))
        if epoch <= MAX_PROFILED_STEPS // 2:
            # Two boundaries at least, so that worker start-up shows in the trace.
            n_profiled = _whole(n_profiled, epoch, low=2 * epoch, high=MAX_PROFILED_STEPS)
    return Sizes(step_s=step_s, n_steps=n_steps, n_profiled_steps=n_profiled, cycle=cycle)


def _whole(steps: float, unit: int, *, low: int, high: int) -> int:
    """`steps` within low..high, then up to a whole number of `unit`s."""
    wanted = min(high, max(low, math.ceil(steps)))
    return math.ceil(wanted / unit) * unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a measurement of one trial costs: a fixed part, and a part for each measured step."""

    overhead_s: float  # opening, warm-up, closing
    step_s: float
    cycle: int  # a window is a whole number of these steps

    def steps(self, window_s: float, *, at_least: int = MIN_STEPS) -> int:
        """Whole cycles that take about `window_s`, never fewer than `at_least` steps."""
        wanted = min(MAX_STEPS, max(at_least, window_s / self.step_s))
        return math.ceil(wanted / self.cycle - 1e-9) * self.cycle

    def measurement_s(self, window_s: float) -> float:
        """Expected length of a measurement whose window takes about `window_s`."""
        return self.overhead_s + self.steps(window_s) * self.step_s


def guess(trial: Trial, observed: Observed, *, step_s: float) -> Cost:
    """The cost before it was measured: the loop's own step time, and a guess at the opening."""
    full = meaning(trial.settings, own_settings(observed))
    workers = full.num_workers or 0
    # Twice the queue is dropped, then a cycle warms up: what the measuring process does.
    queue = 2 * full.queue_length
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
    epoch = epoch_of(trial, observed)
    if epoch and measured_whole(
        epoch, queue=full.queue_length, step_s=step_s, longest_s=LONGEST_EPOCH_S
    ):
        return epoch
    accumulation = max(1, observed.batches_per_cycle // max(1, own.num_workers or 0))
    return math.lcm(max(1, workers), accumulation)


def epoch_of(trial: Trial, observed: Observed) -> int | None:
    """Steps of the trial's epoch; None where epochs are unknown or one iterator serves all."""
    if trial.settings.keep_iterator:
        return None
    return trial.steps_per_epoch or observed.steps_per_epoch


def measured(trial: Trial, observed: Observed) -> Cost | None:
    """The cost as its measurements showed it; None before the first."""
    if not trial.measurements:
        return None
    steps = sum(measurement.times.n_steps for measurement in trial.measurements)
    window_s = sum(measurement.window_s for measurement in trial.measurements)
    step_s = max(window_s / steps, 1e-6)
    overheads = [v.wall_s - v.window_s for v in trial.measurements]
    if slow_start_s(trial.settings):
        # What was compiled, copied or filled at the first measurement is there at the next.
        later = guess(trial, observed, step_s=step_s).overhead_s
        overheads = overheads[1:] or [min(later, overheads[0])]
    return Cost(
        overhead_s=max(0.0, fmean(overheads)),
        step_s=step_s,
        cycle=cycle(trial, observed, step_s=step_s),
    )


def slow_start_s(settings: Settings) -> float:
    """How much longer than others the first measurement of a trial may take."""
    changed = settings.changed()
    return sum(
        seconds
        for name, seconds in SLOW_START_S.items()
        if name in changed and not AXES_BY_NAME[name].is_idle(changed[name])
    )


def limit_s(
    expected_s: float, *, budget_s: float | None = None, at_most: float | None = None
) -> float:
    """When a window must end: far beyond what was planned, but within the budget's reach."""
    found = LIMIT_FACTOR * expected_s + LIMIT_EXTRA_S
    if budget_s is not None:
        found = min(found, max(2 * expected_s, LIMIT_BUDGET_SHARE * budget_s))
    return found if at_most is None else min(found, at_most)


# Epochs that a window has to hold whole: where a part of one says nothing about the rest.

# An epoch of at most this many queues is measured whole: workers fill most of it at once, and a
# part of it shows either their filled queue or their start. Windows of 4 to 8 steps of such epochs
# on an H200 read 28 to 65 ms a step for a true 6. The steps behind a start are slow in any epoch.
SHORT_EPOCH = 4
CHEAP_EPOCH_S = 0.5  # so short an epoch is measured whole in any case: there is time for many


def measured_whole(
    steps_per_epoch: int | None, *, queue: int, step_s: float, longest_s: float
) -> bool:
    """Whether windows should be whole epochs; `queue` is batches, 0 where no workers are started.

    Never where an epoch takes longer than `longest_s` seconds.
    """
    if not steps_per_epoch or not queue:
        return False
    epoch_s = steps_per_epoch * step_s
    return epoch_s <= (longest_s if steps_per_epoch <= SHORT_EPOCH * queue else CHEAP_EPOCH_S)


# Where the seconds go: the ends of the phases, and the rounds that fit what is left.

# Parts of the budget: the calibration round aims at the first, ranking ends by the second,
# confirmation by the third, ablation by the fourth; traces take the rest. Where there are no
# traces, or no ablation either, the others stretch.
CALIBRATE_SHARE = 0.15
RANK_SHARE = 0.67
CONFIRM_SHARE = 0.79
ABLATE_SHARE = 0.87
# Of a search, its first windows and its rounds: what is left then confirms the winner. Fewer
# settings measured leave a winner; first windows alone (34 of them took 75 s on an H200 with 16
# CPUs) do not.
ELIMINATION_WINDOWS_SHARE = 0.42
ELIMINATION_SHARE = 0.65
# A preset's phases end later.
PRESET_STRETCH = 1.15
# Before the rounds: of a preset all of its ablation, else the fewest rounds an interval needs.
FIRST_ABLATE_SHARE = 0.12


def end_s(share: float, options: Options, *, ablated: bool) -> float:
    """Seconds from the start at which the phase with this share should end."""
    if options.trace_dir is not None:
        # A preset has many rows to time, and few worth a trace.
        scale = PRESET_STRETCH if options.keep_all else 1.0
    else:
        scale = 1.0 / (ABLATE_SHARE if ablated else CONFIRM_SHARE)
    return min(1.0, share * scale) * options.budget_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rounds over some trials, each window about `window_s` long."""

    n_rounds: int
    window_s: float
    trials: tuple[int, ...]  # indexes; the rest is dropped

    def __bool__(self) -> bool:
        return self.n_rounds > 0 and bool(self.trials)


NOTHING = Plan(n_rounds=0, window_s=0.0, trials=())


def plan(
    costs: Mapping[int, Cost],
    *,
    left_s: float,
    wanted_rounds: int | None,
    in_order: Sequence[int],
    behind: frozenset[int] = frozenset(),
) -> Plan:
    """Rounds that fit `left_s`, by trial index -> cost; what matters most is first `in_order`.

    Prefers many rounds of short windows (each round is an independent sample) over few of long
    ones, never fewer than MIN_ROUNDS unless `wanted_rounds` says so. Where windows would become
    shorter than MIN_WINDOW_S, first trials that are clearly `behind` are dropped, the last
    first; then windows become shorter; then others are dropped. Trial 0 always stays. An empty
    plan means that not even trial 0 and the next fit.
    """
    fewest, most = (wanted_rounds, wanted_rounds) if wanted_rounds else (MIN_ROUNDS, MAX_ROUNDS)
    kept = [index for index in in_order if index in costs]
    last = [index for index in reversed(kept) if index in behind and index != 0]
    for n_dropped in range(len(last) + 1):
        some = [index for index in kept if index not in last[:n_dropped]]
        for n_rounds in range(most, fewest - 1, -1):
            found = _plan(costs, some, n_rounds, left_s, at_least=MIN_WINDOW_S)
            if found:
                return found
    kept = [index for index in kept if index not in last]
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
    for _ in range(20):  # bisection: its length grows with the window's
        middle = (low + high) / 2
        if sum(cost.measurement_s(middle) for cost in costs) <= round_s:
            low = middle
        else:
            high = middle
    return low
