"""The last rounds: what may be recommended, the fastest of the rounds, and the loop as it is.

The best of many is partly luck, so the candidate's gain is measured again, next to the loop's own
settings. The candidate is the simplest of those that are equally fast, which noise can hide or
feign, so the fastest runs beside it (of a preset, whose time is its rows', where rounds of three
fit, and for as long as simplicity looks dear there): where the candidate is shown to be slower than
it by more than simplicity is worth, the next simplest takes its place (`ranking.rank` says which).
"""

from __future__ import annotations

from loaderdoctor.estimate import MIN_GAIN_SHARE
from loaderdoctor.tryout import Trial, elimination, windows
from loaderdoctor.tryout.ranking import MIN_PAIRS, Ranking
from loaderdoctor.tryout.rounds import Done, Known, Round, Window
from loaderdoctor.tryout.windows import MIN_STEPS, WINDOW_S, Plan

MAX_PAIRS = 12  # of a search, and of a preset
# Of a grid: as many as it takes, while there is time. Where windows vary by 10 %, a gain of
# 10 % is beyond the noise after about 30.
MOST_PAIRS = 60
# Where noise leaves open whether the candidate gains, or is too slow beside the fastest, measuring
# goes on until so many times the budget: with a gain of 10 % where windows vary by 10 %, 7 of 12
# simulated sweeps named it within the budget, and "nothing" was the answer of 4.
SECOND_CAP = 1.5


def confirmed(known: Known, last: Round | None) -> Round | Done:
    """The candidate, the loop's own settings and the fastest in rounds of alternating order."""
    beside = known.options.may_go_on or _is_beside(known, last)
    ranking = known.ranking(proposing=beside)
    candidate = 1 if known.options.part == "confirm" else ranking.candidate
    if not candidate:
        return Done()
    contenders = _contenders(known, ranking, candidate) if beside else (0, candidate)
    among = [known.trials[i] for i in contenders]
    if not all(trial.alive for trial in among):
        return Done()
    plan = last.plan if last is not None else _rounds(known, among)
    n_most = last.n_most if last is not None else _most(known, plan, among)
    done = len(known.trials[candidate].of("confirm"))
    if not plan or done >= n_most:
        return Done()
    may_be_slow = ranking.may_be_too_slow(candidate)
    if done >= MIN_PAIRS and not known.options.may_go_on:  # the gain needs what time there is
        may_be_slow = ranking.looks_too_slow(candidate)
        among = among if may_be_slow else among[:2]
    is_open = may_be_slow or _gain_is_open(ranking)
    if done >= plan.n_rounds:
        if not is_open:
            return Done()
        if not may_be_slow:
            among = among[:2]
        elif not _gain_is_open(ranking):
            among = among[1:]
    round_s = sum(known.cost(trial).measurement_s(plan.window_s) for trial in among)
    if done < MIN_PAIRS:  # fewer tell nothing; of another candidate there were enough
        end_s = SECOND_CAP * known.options.budget_s
        if last is not None and (MIN_PAIRS - done) * round_s > end_s - known.spent_s:
            return Done()
    else:
        slow = ranking.looks_too_slow(candidate) or ranking.may_be_too_slow(candidate, blind=True)
        undecided = slow or _undecided(ranking)
        if round_s > _left_s(known, undecided=undecided, is_open=is_open):
            return Done()
    number = 1 if last is None else last.number + 1
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


def _contenders(known: Known, ranking: Ranking, candidate: int) -> list[int]:
    """The loop's own, the candidate, and the fastest where it is another."""
    if not known.options.beside_fastest or not ranking.best:
        return [0, candidate]
    return list(dict.fromkeys((0, candidate, ranking.best)))


def _is_beside(known: Known, last: Round | None) -> bool:
    """Whether rounds of a preset measure the fastest too: while they do, if time holds it."""
    ranking = known.ranking(proposing=True)
    if last is not None:
        return any(window.trial == ranking.best for window in last.windows)
    if not ranking.candidate:
        return False
    among = [known.trials[i] for i in _contenders(known, ranking, ranking.candidate)]
    plan = _rounds(known, among)
    round_s = sum(known.cost(trial).measurement_s(plan.window_s) for trial in among)
    return MIN_PAIRS * round_s <= known.options.budget_s - known.spent_s


def _left_s(known: Known, *, undecided: bool, is_open: bool) -> float:
    if undecided and known.options.may_go_on:
        return SECOND_CAP * known.options.budget_s - known.spent_s
    if undecided or is_open:  # the answer matters more than its reasons
        return known.left_s(windows.ABLATE_SHARE)
    return known.left_s(windows.CONFIRM_SHARE)


def _rounds(known: Known, among: list[Trial]) -> Plan:
    """Rounds that fit."""
    costs = {trial.index: known.cost(trial) for trial in among}
    if known.searching:
        window_s = elimination.WINDOW_PART * WINDOW_S
        return Plan(n_rounds=MIN_PAIRS, window_s=window_s, trials=tuple(costs))
    plan = windows.NOTHING
    for share in (windows.CONFIRM_SHARE, windows.ABLATE_SHARE):
        in_order, left_s = list(costs), known.left_s(share)
        fitting = windows.plan(costs, left_s=left_s, wanted_rounds=None, in_order=in_order)
        plan = plan or fitting
    return plan


def _most(known: Known, plan: Plan, among: list[Trial]) -> int:
    """The most rounds that may be measured."""
    if not known.searching:
        return MOST_PAIRS if known.options.may_go_on else MAX_PAIRS
    left = elimination.allowance(known) - known.n_timed_steps
    pair_steps = sum(known.cost(x).steps(plan.window_s, at_least=1) for x in among)
    return int(min(MAX_PAIRS, max(MIN_PAIRS, left / pair_steps)))


def _undecided(ranking: Ranking) -> bool:
    """Whether the candidate's gain would matter, but may still be noise."""
    gain = ranking.gain_share
    return gain is not None and gain.value >= MIN_GAIN_SHARE and not ranking.worth_changing


def _gain_is_open(ranking: Ranking) -> bool:
    """Whether noise leaves open that the candidate gains what matters, or that it does not."""
    gain = ranking.gain_share
    return gain is not None and gain.high >= MIN_GAIN_SHARE and not ranking.worth_changing
