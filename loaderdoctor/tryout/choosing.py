"""What to measure next: policies of a sweep's phases, each a pure function of what is known.

    calibrate → ranked (or `elimination.eliminate`) → confirmed → traced

The calibration round (short windows) finds what each trial costs; the ranked rounds are planned
from that and planned again after each. Where time is short, those go that could change the answer
least.

The last rounds confirm: what may be recommended, the fastest of the rounds, and the loop as it is.
The best of many is partly luck, so the candidate's gain is measured again, next to the loop's own
settings. The candidate is the simplest of those that are equally fast, which noise can hide or
feign, so the fastest runs beside it (of a preset, whose time is its rows', where rounds of three
fit, and for as long as simplicity looks dear there): where the candidate is shown to be slower than
it by more than simplicity is worth, the next simplest takes its place (`ranking.rank` says which).
"""

from __future__ import annotations

import math
from dataclasses import replace

from loaderdoctor.facts import n_changes
from loaderdoctor.tryout import Trial, elimination, windows
from loaderdoctor.tryout.ranking import MIN_PAIRS, Ranking
from loaderdoctor.tryout.rounds import Done, Known, Round, Window
from loaderdoctor.tryout.windows import MAX_ROUNDS, MIN_ROUNDS, MIN_STEPS, NOTHING, WINDOW_S, Plan

# A calibration window: long enough to rank by in a pinch, short enough for 40 trials in 120 s.
CALIBRATE_WINDOW_S = 0.5
# Slower than the fast ones by this factor in its first window, a trial won't be the best. By that
# window noise decides who is the fastest of many: where windows vary by 20 %, 1.5 times the fastest
# dropped the simplest of 19 that are alike in 3 of 9 simulated sweeps. So the fast ones are the
# fastest quarter.
BEHIND = 2.0
QUARTER = 0.25
# The traced window: enough steps for means; more only costs export time.
TRACED_STEPS = 12
TRACE_EXPORT_S = 1.0
# Each trial of a grid is worth its trace even where timing took longer than planned: tracing may
# pass the budget by this part of it. A preset's rows are many, and keep to theirs.
TRACE_OVERRUN_SHARE = 0.3


def calibrate(known: Known, last: Round | None) -> Round | Done:
    """Each trial once, the loop's own settings first; finds crashes and costs."""
    if last is not None:
        return Done()
    alive = [trial for trial in known.alive if not trial.measurements]
    share_s = known.end_s(windows.CALIBRATE_SHARE) / max(1, len(alive))
    found = []
    for trial in alive:
        cost = known.cost(trial)
        window_s = min(CALIBRATE_WINDOW_S, max(0.0, share_s - cost.overhead_s))
        searching = known.searching
        found.append(
            Window(
                trial=trial.index,
                n_steps=elimination.window_steps(cost) if searching else cost.steps(window_s),
                cost=cost,
                # Nor a search among what few would choose, where the budget ends here.
                place=n_changes(trial.settings, known.loop.own) if searching else trial.index > 0,
                least_s=0.0 if trial.index else -math.inf,
            )
        )
    end = windows.ELIMINATION_WINDOWS_SHARE if known.searching else windows.CONFIRM_SHARE
    return Round(
        shown="calibrate",
        # A search counts these windows but for the loop's own, which meets cold caches.
        phase="rank" if known.searching else "calibrate",
        number=0,
        n_rounds=1,
        windows=tuple(found),
        # A budget that ends here is to leave a table from its baseline up, not rows at random.
        shuffled=not known.options.keep_all,
        until_s=known.end_s(end),
    )


def ranked(known: Known, last: Round | None) -> Round | Done:
    """Shuffled rounds until the planned number, or the time, is used up."""
    wanted = known.options.n_rounds
    if last is None:
        # A sweep that was interrupted goes on with the rounds it lacks.
        done = rounds_done(known)
        plan = rounds_that_fit(known, max(1, wanted - done) if wanted else None)
        if not plan:
            return Done(note="the budget leaves no time for rounds to rank by")
        dropped = tuple(t.index for t in known.alive if t.index not in plan.trials)
        n_dropped = len(dropped) + sum(trial.dropped for trial in known.trials)
        trials = "1 trial was" if n_dropped == 1 else f"{n_dropped} trials were"
        note = f"{trials} measured once only" if n_dropped else None
        return _ranked(known, plan, done + 1, done + plan.n_rounds, dropped=dropped, note=note)
    number = last.number + 1
    if known.cut or number > last.n_rounds:
        return Done()
    # Costs are known better now: stretch or shorten what is left, same trials.
    plan = rounds_that_fit(known, last.n_rounds - last.number) or last.plan
    # The first may take of the confirmation's time.
    end = windows.CONFIRM_SHARE if number <= MIN_ROUNDS else windows.RANK_SHARE
    round_s = sum(known.cost(trial).measurement_s(plan.window_s) for trial in known.alive)
    if wanted is None and known.left_s(end) < round_s:
        return Done()
    return _ranked(known, plan, number, last.n_rounds)


def _ranked(
    known: Known,
    plan: Plan,
    number: int,
    n_rounds: int,
    *,
    dropped: tuple[int, ...] = (),
    note: str | None = None,
) -> Round:
    found = []
    for trial in known.alive:
        if trial.index in dropped or any(m.round == number for m in trial.of("rank")):
            continue
        cost = known.cost(trial)
        found.append(
            Window(
                trial=trial.index,
                n_steps=cost.steps(plan.window_s),
                cost=cost,
                # The loop's own comes last of all: the pairs that confirm follow.
                place=float(number == n_rounds and not trial.index),
                least_s=cost.measurement_s(0.0) if number > 1 else -math.inf,
            )
        )
    return Round(
        shown="rank",
        phase="rank",
        number=number,
        n_rounds=n_rounds,
        windows=tuple(found),
        until_s=known.end_s(windows.CONFIRM_SHARE),
        plan=plan,
        dropped=dropped,
        note=note,
    )


def rounds_done(known: Known) -> int:
    """Ranked rounds that every trial has been measured in."""
    return min(
        (max((m.round for m in trial.of("rank")), default=0) for trial in known.alive), default=0
    )


def rounds_that_fit(known: Known, wanted_rounds: int | None) -> Plan:
    """Rounds of the trials that were measured once.

    Where all trials are to stay, fewer rounds come before fewer trials.
    """
    keep_all = known.options.keep_all
    costs = {trial.index: known.cost(trial) for trial in known.alive if trial.measurements}
    fewest = 1 if keep_all and wanted_rounds else wanted_rounds or 0
    plan = NOTHING
    for n_rounds in range(wanted_rounds or 0, fewest - 1, -1):
        plan = windows.plan(
            costs,
            left_s=known.left_s(windows.RANK_SHARE),
            wanted_rounds=n_rounds or None,
            in_order=known.by_relevance(),
            behind=frozenset() if keep_all else _behind(known),
        )
        if len(plan.trials) == len(costs):
            return plan
    return plan


def grid_steps(known: Known) -> int:
    """Steps that the whole grid would take, first windows and all: what a search is measured by."""
    costs = {trial.index: known.cost(trial) for trial in known.alive}
    n_rounds = known.options.n_rounds
    rounds = elimination.grid_steps(costs, rounds_that_fit(known, n_rounds), n_rounds)
    return rounds + sum(cost.steps(CALIBRATE_WINDOW_S) for cost in costs.values())


def _behind(known: Known) -> frozenset[int]:
    """Trials that are clearly slower than the fast ones."""
    results = known.ranking().results
    walls = {r.index: r.wall_ms.value for r in results if r.wall_ms is not None}
    in_order = sorted(walls.values())
    fast_ms = in_order[int(QUARTER * len(in_order))] if in_order else 0.0
    return frozenset(index for index, ms in walls.items() if ms > BEHIND * fast_ms)


def traced(known: Known, last: Round | None) -> Round | Done:
    """A traced window for each trial, the most interesting first, while there is time."""
    wanted = _worth_a_trace(known)
    number = 1 if last is None else last.number + 1
    if number > len(wanted):
        return Done()
    trial, options = wanted[number - 1], known.options
    cost = known.cost(trial)
    n_steps = options.profiler.active or cost.steps(TRACED_STEPS * cost.step_s)
    expected_s = cost.overhead_s + 2 * n_steps * cost.step_s + TRACE_EXPORT_S
    extra_s = 0.0 if options.keep_all else TRACE_OVERRUN_SHARE * options.budget_s
    # The loop's own trace is what the report explains: it is taken in any case.
    if trial.index and expected_s > known.left_s(1.0) + extra_s:
        return Done()
    one = Window(trial=trial.index, n_steps=n_steps, cost=cost)
    return Round(
        shown="trace",
        phase=None,
        number=number,
        n_rounds=len(wanted),
        windows=(one,) * (1 if trial.index else max(1, options.profiler.repeat)),
        shuffled=False,
    )


def _worth_a_trace(known: Known) -> list[Trial]:
    if known.options.trace_dir is None:
        return []
    ranking = known.ranking()
    order = [0, ranking.candidate, ranking.best, *known.by_speed()]
    wanted = [known.trials[i] for i in dict.fromkeys(i for i in order if i is not None)]
    found = [trial for trial in wanted if trial.status == "ok" and trial.same_as is None]
    if known.options.loader_only:
        return found[:1]
    if known.searching:  # why others were eliminated is no question of its
        return [trial for trial in found if not trial.dropped]
    return found


# The last rounds. Two questions are open: whether the candidate gains, and whether it is slower
# than the fastest by more than simplicity is worth. If it is, the next simplest takes its place; if
# it doesn't gain, the fastest. Each is asked until the rounds that time still allows could hardly
# change its answer, and what runs is what an open one needs.

MAX_PAIRS = 12  # of a search
# Of a grid: as many as it takes, while there is time. Where windows vary by 20 %, a gain of
# 10 % is beyond the noise after about 60.
MOST_PAIRS = 100
# Where more rounds could change the answer, measuring goes on until so many times the budget:
# beyond it for what seems to gain, and where noise hides more than simplicity is worth.
SECOND_CAP = 2.0
# Of a preset not beyond this: it fits in ten minutes.
PRESET_MOST_S = 540.0
# How many windows there are counts more than how long they are: a window's own pace, by which those
# of real sweeps differ (`benchmarks/same_answer.py`), does not average out within it.
PAIR_WINDOW_S = elimination.WINDOW_PART * WINDOW_S


def confirmed(known: Known, last: Round | None) -> Round | Done:
    """The candidate, the loop's own settings and the fastest in rounds of alternating order."""
    beside = known.options.beside_fastest
    rest = _rest(known, last)
    ranking = known.ranking(proposing=True, rest=rest)
    if rest and beside and not _worth_more_time(known, ranking, rest):
        rest = 0
        ranking = known.ranking(proposing=True)
    candidate = 1 if known.options.part == "confirm" else ranking.candidate
    if not candidate:
        return Done()
    third = [ranking.best] if beside and ranking.best else []
    among = [known.trials[i] for i in dict.fromkeys((0, candidate, *third))]
    if not all(trial.alive for trial in among):
        return Done()
    plan = last.plan if last is not None else _rounds(known, among)
    n_most = last.n_most if last is not None else _most(known, plan, among)
    done = len(known.trials[candidate].of("confirm"))
    if not plan or done >= n_most:
        return Done()
    may_be_slow = beside and ranking.slowness_is_open(candidate, rest)
    may_gain = ranking.gain_is_open(rest)
    if done >= plan.n_rounds:
        if not (may_be_slow or may_gain):
            return Done()
        among = among if may_be_slow and may_gain else among[:2] if may_gain else among[1:]
    fewest = max(1, MIN_PAIRS - done)  # fewer tell nothing; of another candidate there were enough
    if last is not None and fewest * _round_s(known, among, plan) > _left_s(known):
        return Done()
    # Rounds of a sweep that was interrupted have theirs: windows of two times are no pair.
    before = (m.round for trial in known.trials for m in trial.of("confirm"))
    number = 1 + (max(before, default=0) if last is None else last.number)
    at_least = 1 if known.searching else MIN_STEPS
    costs = [(trial.index, known.cost(trial)) for trial in among]
    found = [
        Window(trial=index, n_steps=cost.steps(plan.window_s, at_least=at_least), cost=cost)
        for index, cost in (costs if number % 2 else reversed(costs))
    ]
    return Round(
        shown="confirm",
        phase="confirm",
        number=number,
        n_rounds=max(number, plan.n_rounds),
        windows=tuple(found),
        shuffled=False,
        plan=plan,
        n_most=n_most,
    )


def _rest(known: Known, last: Round | None) -> int:
    """How many more rounds like the last there may be."""
    if last is None:
        return MOST_PAIRS
    among = [known.trials[window.trial] for window in last.windows]
    fitting = _left_s(known) / max(1e-9, _round_s(known, among, last.plan))
    done = max(len(trial.of("confirm")) for trial in among if trial.index)
    return max(0, min(last.n_most - done, int(fitting)))


def _worth_more_time(known: Known, ranking: Ranking, rest: int) -> bool:
    """Whether what is open matters enough, where the budget is used up."""
    if known.left_s(windows.ABLATE_SHARE) > 0 or not ranking.candidate:
        return True
    gains = ranking.seems_to_gain and ranking.gain_is_open(rest)
    return gains or ranking.is_blind(ranking.candidate)


def _round_s(known: Known, among: list[Trial], plan: Plan) -> float:
    return sum(known.cost(trial).measurement_s(plan.window_s) for trial in among)


def _left_s(known: Known) -> float:
    """Seconds until the cap: the answer matters more than its reasons."""
    options = known.options
    if not options.beside_fastest:
        return known.left_s(windows.ABLATE_SHARE)
    most_s = SECOND_CAP * options.budget_s
    if options.keep_all:
        most_s = max(options.budget_s, min(most_s, PRESET_MOST_S))
    return most_s - known.spent_s


def _rounds(known: Known, among: list[Trial]) -> Plan:
    """Rounds that fit."""
    trials = tuple(trial.index for trial in among)
    plan = Plan(n_rounds=MIN_PAIRS, window_s=PAIR_WINDOW_S, trials=trials)
    if known.searching:
        return plan
    round_s = _round_s(known, among, plan)
    n_rounds = int(known.left_s(windows.CONFIRM_SHARE) / round_s)
    if n_rounds < MIN_PAIRS <= _left_s(known) / round_s:
        n_rounds = MIN_PAIRS
    return replace(plan, n_rounds=min(MAX_ROUNDS, n_rounds)) if n_rounds >= MIN_PAIRS else NOTHING


def _most(known: Known, plan: Plan, among: list[Trial]) -> int:
    """The most rounds that may be measured."""
    if not known.searching:
        return MOST_PAIRS if known.options.beside_fastest else MAX_PAIRS
    left = elimination.allowance(known) - known.n_timed_steps
    pair_steps = sum(known.cost(x).steps(plan.window_s, at_least=1) for x in among)
    return int(min(MAX_PAIRS, max(MIN_PAIRS, left / pair_steps)))
