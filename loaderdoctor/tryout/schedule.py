"""Where the seconds go: the ends of the phases, and the rounds that fit what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaderdoctor.tryout.outcome import Options
from loaderdoctor.tryout.windows import MAX_ROUNDS, MIN_ROUNDS, MIN_WINDOW_S, WINDOW_S, Cost

# Parts of the budget: the calibration round aims at the first, ranking ends by the second,
# confirmation by the third, ablation by the fourth; traces take the rest. Where there are no
# traces, or no ablation either, the others stretch.
CALIBRATE_SHARE = 0.15
RANK_SHARE = 0.67
CONFIRM_SHARE = 0.79
ABLATE_SHARE = 0.87
# Of a search, its first visits and its race: what is left then confirms the winner. Fewer settings
# visited leave a winner; first visits alone (34 of them took 75 s on an H200 with 16 CPUs) do not.
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
