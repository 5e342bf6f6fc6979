"""A search that spends its steps on the settings that may still win: successive elimination.

Every trial gets one short window. Then, round by round, those alive get one more, and whoever is
clearly behind the leader drops out: where the interval of the difference to the leader, widened
for the number of trials compared, lies above what would be called equal. Where the allowance of
steps, or the time, would not last for LAST_ROUNDS more rounds of all alive, the slower half goes
too (successive halving: K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and
hyperparameter optimization", 2016).

It ends when the leader is separated from the rest, when no trial can still beat the loop's own by
what matters, or when either is spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from loaderdoctor.estimate import MIN_GAIN_SHARE, Noise
from loaderdoctor.tryout import windows
from loaderdoctor.tryout.comparing import EQUAL_SHARE, widening
from loaderdoctor.tryout.ranking import MIN_PAIRS, Ranking
from loaderdoctor.tryout.results import Result
from loaderdoctor.tryout.rounds import Done, Known, Round, Window
from loaderdoctor.tryout.windows import GRID_ROUNDS, MIN_ROUNDS, WINDOW_S, Cost

# Simulated (half of what windows differ by does not shrink with their length): a tenth of a grid's
# steps in windows this short chooses about as well as a fifth of them in windows of 0.25.
# Of the allowance, for the pairs that confirm the winner.
CONFIRM_SHARE = 0.25
# Its windows are this part of the grid's: what counts is how many, each is a sample.
WINDOW_PART = 0.15
# Rounds that the allowance must still pay for before halving.
LAST_ROUNDS = 1
# Nobody drops out by interval before this many windows each.
MIN_WINDOWS = 2

Ending = Literal["separated", "nothing-better", "spent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Who stays after a round; `ending` is set once the search is over."""

    alive: tuple[int, ...]  # trial indexes
    ending: Ending | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What windows take, or what is left for them."""

    steps: float  # infinite where only time counts
    seconds: float


def eliminate(known: Known, last: Round | None) -> Round | Done:
    """Rounds of short windows among those that may still win."""
    unmeasured = [t.index for t in known.alive if not t.measurements] if last is None else []
    note = f"{len(unmeasured)} settings were not measured" if unmeasured else None
    alive = [trial.index for trial in known.alive if trial.index not in unmeasured]
    costs = {i: spend(known.cost(known.trials[i])) for i in {0, *alive}}
    ranking = known.ranking()
    left_s = min(
        known.left_s(windows.CONFIRM_SHARE) - pairs_s(ranking, costs),
        known.left_s(windows.ELIMINATION_SHARE),
    )
    steps = allowance(known) * (1 - CONFIRM_SHARE) - known.n_timed_steps
    field = after_round(ranking, alive, costs=costs, left=Spend(steps=steps, seconds=left_s))
    out = set(alive) - set(field.alive) - {0}  # to confirm, 0 is needed
    dropped = (*unmeasured, *sorted(out))
    if field.ending is not None:
        return Done(reason=field.ending, dropped=dropped, note=note)
    measured = [(i, known.cost(known.trials[i])) for i in field.alive]
    return Round(
        shown="race",
        phase="rank",
        number=1 + max((m.round for t in known.trials for m in t.of("rank")), default=0),
        n_rounds=len(field.alive),
        windows=tuple(
            Window(trial=index, n_steps=window_steps(cost), cost=cost) for index, cost in measured
        ),
        dropped=dropped,
        note=note,
    )


def allowance(known: Known) -> float:
    """Steps that a search may take: a share of a whole grid's; infinite where time decides."""
    share = known.options.allowance_share
    if share is None or known.grid_steps is None:
        return math.inf
    return share * known.grid_steps


def window_steps(cost: Cost) -> int:
    """Steps of one window of the search."""
    return cost.steps(WINDOW_PART * WINDOW_S, at_least=1)


def spend(cost: Cost) -> Spend:
    """What one window of the search takes."""
    steps = window_steps(cost)
    return Spend(steps=steps, seconds=cost.overhead_s + steps * cost.step_s)


def pairs_s(ranking: Ranking, costs: Mapping[int, Spend]) -> float:
    """Seconds of the pairs that confirm the leader so far next to the loop's own settings.

    `costs` are of one more window of each trial alive, and of the loop's own.
    """
    leader = min((ranking.results[i] for i in costs), key=lambda one: one.ranked_ms)
    return MIN_PAIRS * (costs[0].seconds + costs[leader.index].seconds)


def grid_steps(costs: Mapping[int, Cost], plan: windows.Plan, n_rounds: int | None) -> int:
    """Steps of the rounds of a whole grid of these trials, had it the same budget.

    `plan` is what it would do, GRID_ROUNDS of full windows at most. One that has to leave trials
    out is no measure: MIN_ROUNDS of full windows are then.
    """
    whole = sum(cost.steps(WINDOW_S) for cost in costs.values())
    if n_rounds is not None:
        return n_rounds * whole
    if len(plan.trials) < len(costs):
        return MIN_ROUNDS * whole
    planned = plan.n_rounds * sum(cost.steps(plan.window_s) for cost in costs.values())
    return min(GRID_ROUNDS * whole, planned)


def after_round(
    ranking: Ranking, alive: Sequence[int], *, costs: Mapping[int, Spend], left: Spend
) -> Field:
    """The field after a round. `costs` are those of one more window of each trial."""
    ran = [ranking.results[i] for i in alive if ranking.results[i].cost_ms is not None]
    noise = ranking.noise
    if not ran or noise is None:
        return Field(alive=tuple(alive), ending="spent")
    leader = min(ran, key=lambda one: one.ranked_ms)
    # How many were compared from the start: the leader was chosen among them all.
    n_compared = sum(r.cost_ms is not None for r in ranking.results)
    stay = [r for r in ran if not _behind(r, leader, noise, n_compared)]
    own = next((r for r in ran if r.index == 0), None)
    enough = len(leader.by_round) >= MIN_WINDOWS
    if own is not None and enough and not _can_beat(stay, own, noise, n_compared):
        return Field(alive=(0,), ending="nothing-better")
    if enough and all(r.index == leader.index or _equal(r, leader, noise) for r in stay):
        return Field(alive=_indexes(stay), ending="separated")
    stay = _halved(stay, costs, left)
    if not _fit(stay, costs, left, n_rounds=1):
        return Field(alive=_indexes(stay), ending="spent")
    return Field(alive=_indexes(stay))


def _halved(stay: list[Result], costs: Mapping[int, Spend], left: Spend) -> list[Result]:
    """The faster half, as often as it takes for LAST_ROUNDS to be paid for; two at least."""
    kept = sorted(stay, key=lambda one: one.ranked_ms)
    while len(kept) > 2 and not _fit(kept, costs, left, n_rounds=LAST_ROUNDS):
        kept = kept[: max(2, (len(kept) + 1) // 2)]
    return kept


def _fit(stay: Sequence[Result], costs: Mapping[int, Spend], left: Spend, *, n_rounds: int) -> bool:
    """Whether so many rounds of these can still be paid for, in steps and in time."""
    spends = [costs[r.index] for r in stay]
    steps = n_rounds * sum(spend.steps for spend in spends)
    return steps <= left.steps and n_rounds * sum(s.seconds for s in spends) <= left.seconds


def _behind(one: Result, leader: Result, noise: Noise, n_compared: int) -> bool:
    """Surely slower than the leader by more than what is called equal."""
    if one.index == leader.index or len(one.by_round) < MIN_WINDOWS:
        return False
    diff = noise.difference(one.by_round, leader.by_round)
    if diff is None or not diff.bounded:
        return False
    margin = diff.margin * widening(n_compared - 1)
    return diff.value - margin > EQUAL_SHARE * leader.ranked_ms


def _equal(one: Result, leader: Result, noise: Noise) -> bool:
    """Surely no further from the leader than a difference that matters."""
    diff = noise.difference(one.by_round, leader.by_round)
    return diff is not None and diff.bounded and diff.high <= MIN_GAIN_SHARE * leader.ranked_ms


def _can_beat(stay: Sequence[Result], own: Result, noise: Noise, n_compared: int) -> bool:
    """Whether any of them may still gain over the loop's own what is worth a change."""
    for one in stay:
        if one.index == 0:
            continue
        gain = noise.difference(own.by_round, one.by_round)
        if gain is None or not gain.bounded:
            return True
        if gain.value + gain.margin * widening(n_compared - 1) >= MIN_GAIN_SHARE * own.ranked_ms:
            return True
    return False


def _indexes(stay: Sequence[Result]) -> tuple[int, ...]:
    return tuple(sorted(r.index for r in stay))
