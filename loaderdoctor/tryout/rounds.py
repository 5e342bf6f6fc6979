"""Measures the trials of a sweep: shuffled rounds in a running loop, within a time budget.

    plain → calibration → ablation → ranked rounds → confirmation → more ablation → traces → plain

The calibration round (short windows) finds what each trial costs; the ranked rounds are planned
from that and re-planned after each. Then the candidate is measured against the loop's own
settings again, in pairs, since the best of many is partly luck. Traces come last: once
torch.profiler has been used, its hooks into the accelerator's runtime stay and slow small steps.
A trial that fails is a row with its reason. What was measured by an interruption stands.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from loaderdoctor.errors import RunError
from loaderdoctor.facts.own_settings import n_changes, own_settings
from loaderdoctor.findings.model import MIN_GAIN_SHARE
from loaderdoctor.instrument.command.script_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import elimination, schedule, windows
from loaderdoctor.tryout.fresh import FreshRuns
from loaderdoctor.tryout.measuring import Measurer, SweepOverError
from loaderdoctor.tryout.outcome import Ablate, Options, Outcome, PhaseName, Progress
from loaderdoctor.tryout.ranking import MIN_PAIRS, Ranking, rank
from loaderdoctor.tryout.schedule import Plan
from loaderdoctor.tryout.trials import Phase, Trial
from loaderdoctor.tryout.windows import Cost
from loaderdoctor.units import NS_PER_S

# A calibration window: long enough to rank by in a pinch, short enough for 40 trials in 120 s.
CALIBRATE_WINDOW_S = 0.5
# Slower than the fastest by this factor in its first window, a trial won't be the best: window
# means of one setting spread by a few percent, by 20 % on a busy machine.
BEHIND = 1.5
MAX_PAIRS = 12
# The traced window: enough steps for means; more only costs export time.
TRACED_STEPS = 12
TRACE_EXPORT_S = 1.0
# Each trial of a grid is worth its trace even where timing took longer than planned: tracing may
# pass the budget by this part of it. A preset's rows are many, and keep to theirs.
TRACE_OVERRUN_SHARE = 0.3


class Sweep:
    """Drives one sweep over a bench; `run` it once.

    `withheld` are trials that must not be run, with the reason. `reopen` starts the measuring
    process again after a trial took it down, where it may (the loop is a recipe, or the user said
    so); it returns a bench whose loop is warm. `ablate` is called with the bench and the
    seconds it may take: before the rounds, and again with what they leave.
    """

    def __init__(
        self,
        script_run: ScriptRunLike,
        observed: Observed,
        trials: Sequence[Settings | Trial],
        options: Options,
        *,
        refused: Mapping[Settings, str] = MappingProxyType({}),
        on_progress: Callable[[Progress], None] | None = None,
        reopen: Callable[[], ScriptRunLike] | None = None,
        ablate: Ablate | None = None,
        fresh: FreshRuns | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcome = Outcome(
            trials=[
                one if isinstance(one, Trial) else Trial(index=i, settings=one)
                for i, one in enumerate(trials)
            ]
        )
        self._measurer = Measurer(
            script_run, observed, options, self.outcome, reopen=reopen, clock=clock, fresh=fresh
        )
        self._observed = observed
        self._options = options
        self._refused = refused
        self._on_progress = on_progress
        self._ablate = ablate
        self._clock = clock
        self._rng = random.Random(options.seed)
        self._began = clock()
        self._own = own_settings(observed)
        self._steps_per_epoch = observed.steps_per_epoch
        for trial in self.outcome.trials:
            if trial.script is None:
                trial.fit(self._own, self._steps_per_epoch)
        n_cycle = max(1, observed.batches_per_cycle)
        steps = observed.step_ns[-(len(observed.step_ns) // n_cycle * n_cycle) :]
        self._step_s = max(sum(steps) / max(1, len(steps)) / NS_PER_S, 1e-6)

    def run(self) -> Outcome:
        """Every phase; ends early without an exception where no more can be measured.

        A trial that takes the measuring process down ends it too, where it can't be reopened.
        """
        try:
            for trial in self.outcome.trials:
                if trial.alive and trial.settings in self._refused:
                    trial.fail("skipped", self._refused[trial.settings])
            self._plain()
            self._calibrate()
            # Verdict and claims ask what loading costs: not what the rounds leave decides that.
            first_s = schedule.FIRST_ABLATE_SHARE * self._options.budget_s
            self._compare(first_s, fewest=not self._options.keep_all)
            if self._options.search == "auto":
                self._elimination()
            elif self._options.part != "confirm":
                self._rank()
            if self._options.part != "rank":
                self._confirm()
            if not self._options.keep_all:
                self._compare(self._left_s(schedule.ABLATE_SHARE), fewest=False)
            self._trace()
            self._plain()
        except (SweepOverError, RunError) as over:
            self.outcome.ended = "script-over"
            self.outcome.ended_reason = str(over)
        except KeyboardInterrupt as interrupt:
            self.outcome.ended, self.outcome.interrupt = "interrupted", interrupt
            self.outcome.ended_reason = "interrupted: what was measured until then stands"
        for trial in self.outcome.trials:
            if trial.status == "ok" and not trial.measurements and trial.same_as is None:
                trial.fail("skipped", f"not reached: {self.outcome.ended_reason or 'budget over'}")
        return self.outcome

    def ranking(self) -> Ranking:
        """The ranking of what has been measured so far."""
        return rank(self.outcome.trials, own=self._own, steps_per_epoch=self._steps_per_epoch)

    # ------------------------------------------------------------------ phases

    def _plain(self) -> None:
        """One window of the loop as it is, nothing re-opened: the check on trial 0."""
        cost = self._cost(self.outcome.trials[0])
        self._measurer.plain(cost.steps(CALIBRATE_WINDOW_S), cost)
        self._tell("plain", 1, 1, None)

    def _compare(self, left_s: float, *, fewest: bool) -> None:
        if self._ablate is not None:
            self._tell("ablate", 1, 1, 0)
            self._ablate(self._measurer.script_run, left_s, fewest=fewest)

    def _calibrate(self) -> None:
        """Each trial once, the loop's own settings first; finds crashes and costs."""
        alive = [trial for trial in self._alive() if not trial.measurements]
        share_s = self._end_s(schedule.CALIBRATE_SHARE) / max(1, len(alive))
        searching = self._options.search == "auto"
        # A budget that ends here is to leave a table from its baseline up, not rows at random.
        order = alive if self._options.keep_all else self._shuffled(alive, first=0)
        if searching:  # nor a race among what few would choose
            order.sort(key=lambda trial: n_changes(trial.settings, self._own))
        for trial in order:
            cost = windows.guess(trial, self._observed, step_s=self._step_s)
            window_s = min(CALIBRATE_WINDOW_S, max(0.0, share_s - cost.overhead_s))
            n_steps = elimination.window_steps(cost) if searching else cost.steps(window_s)
            # A search counts these windows but for the first, which meets cold caches.
            phase: Phase = "rank" if searching and trial.index else "calibrate"
            self._measurer.time(trial, phase, 0, n_steps, cost)
            self._tell("calibrate", 1, 1, trial.index)
            if (
                self._left_s(
                    schedule.ELIMINATION_WINDOWS_SHARE if searching else schedule.CONFIRM_SHARE
                )
                <= 0
            ):
                break

    def _rank(self) -> None:
        """Shuffled rounds until the planned number, or the time, is used up."""
        # A sweep that was interrupted goes on with the rounds it lacks.
        last_rounds = [max((v.round for v in t.of("rank")), default=0) for t in self._alive()]
        done = self.outcome.n_ranked_rounds = min(last_rounds, default=0)
        wanted = self._options.n_rounds
        plan = self._plan(max(1, wanted - done) if wanted else None)
        for trial in self.outcome.trials:
            if trial.alive and trial.index not in plan.trials and plan:
                trial.dropped = True
        if not plan:
            self._note_short_budget("the budget leaves no time for rounds to rank by")
            return
        if any(trial.dropped for trial in self.outcome.trials):
            n_dropped = sum(trial.dropped for trial in self.outcome.trials)
            slower = "1 slower trial was" if n_dropped == 1 else f"{n_dropped} slower trials were"
            self._note_short_budget(f"{slower} visited once only")
        number, n_rounds = done + 1, done + plan.n_rounds
        while number <= n_rounds:
            last = 0 if number == n_rounds else None
            for trial in self._shuffled(self._alive(), last=last):
                if any(measurement.round == number for measurement in trial.of("rank")):
                    continue
                cost = self._cost(trial)
                if number > 1 and cost.measurement_s(0.0) > self._left_s(schedule.CONFIRM_SHARE):
                    return
                self._measurer.time(trial, "rank", number, cost.steps(plan.window_s), cost)
                self._tell("rank", number, n_rounds, trial.index)
            self.outcome.n_ranked_rounds = number
            number += 1
            if number <= n_rounds:
                # Costs are known better now: stretch or shorten what is left, same trials.
                plan = self._plan(n_rounds - number + 1) or plan
                fewest = number <= windows.MIN_ROUNDS  # these may take of the confirmation's time
                end = schedule.CONFIRM_SHARE if fewest else schedule.RANK_SHARE
                if self._left_s(end) < self._round_s(plan) and wanted is None:
                    return

    def _elimination(self) -> None:
        """Rounds of short windows among those still in the race (see `race`)."""
        allowance = self._allowance() * (1 - elimination.CONFIRM_SHARE)
        unmeasured = [trial for trial in self._alive() if not trial.measurements]
        for trial in unmeasured:
            trial.dropped = True
        if unmeasured:
            self._note_short_budget(f"{len(unmeasured)} settings were not visited")
        alive = [trial.index for trial in self._alive()]
        number = max((v.round for t in self.outcome.trials for v in t.of("rank")), default=0)
        ending = None
        while ending is None:
            costs = {i: elimination.spend(self._cost(self.outcome.trials[i])) for i in {0, *alive}}
            ranking = self.ranking()
            left_s = self._left_s(schedule.CONFIRM_SHARE) - elimination.pairs_s(ranking, costs)
            left_s = min(left_s, self._left_s(schedule.ELIMINATION_SHARE))
            left = elimination.Spend(steps=allowance - self.outcome.n_timed_steps, seconds=left_s)
            field = elimination.after_round(ranking, alive, costs=costs, left=left)
            for index in set(alive) - set(field.alive) - {0}:  # to confirm, 0 is needed
                self.outcome.trials[index].dropped = True
            alive, ending = list(field.alive), field.ending
            if ending is not None:
                break
            number += 1
            for trial in self._shuffled([self.outcome.trials[i] for i in alive]):
                cost = self._cost(trial)
                self._measurer.time(trial, "rank", number, elimination.window_steps(cost), cost)
                self._tell("race", number, len(alive), trial.index)
            self.outcome.n_ranked_rounds = number
            alive = [trial.index for trial in self._alive()]
        self.outcome.elimination = ending or "spent"

    def _allowance(self) -> float:
        """Steps that a search may take: a share of a whole grid's; infinite where time decides."""
        if self.outcome.grid_steps is None:  # once: later some have dropped out
            costs = {trial.index: self._cost(trial) for trial in self._alive()}
            n_rounds = self._options.n_rounds
            self.outcome.grid_steps = elimination.grid_steps(
                costs, self._plan(n_rounds), n_rounds
            ) + sum(cost.steps(CALIBRATE_WINDOW_S) for cost in costs.values())
        share = self._options.allowance_share
        return math.inf if share is None else share * self.outcome.grid_steps

    def _confirm(self) -> None:
        """The candidate against the loop's own settings, in pairs of alternating order."""
        candidate = 1 if self._options.part == "confirm" else self.ranking().candidate
        if not candidate:
            return
        pair = [self.outcome.trials[0], self.outcome.trials[candidate]]
        if not all(trial.alive for trial in pair):
            return
        costs = {trial.index: self._cost(trial) for trial in pair}
        plan = schedule.NOTHING
        # The answer matters more than its reasons.
        for share in (schedule.CONFIRM_SHARE, schedule.ABLATE_SHARE):
            left_s = self._left_s(share)
            plan = plan or schedule.plan(
                costs, left_s=left_s, wanted_rounds=None, by_speed=list(costs)
            )
        allowed: float = MAX_PAIRS
        searching = self._options.search == "auto"
        if searching:
            left = self._allowance() - self.outcome.n_timed_steps
            window_s = elimination.confirm_window_s(list(costs.values()), left)
            shortest_s = elimination.WINDOW_PART * windows.WINDOW_S
            window_s = min(plan.window_s or shortest_s, window_s)
            plan = Plan(n_rounds=MIN_PAIRS, window_s=window_s, trials=tuple(costs))
            pair_steps = sum(cost.steps(plan.window_s, at_least=1) for cost in costs.values())
            allowed = max(MIN_PAIRS, left / pair_steps)
        for number in range(1, int(min(MAX_PAIRS, allowed)) + 1 if plan else 1):
            if number > MIN_PAIRS:
                pair_s = sum(self._cost(trial).measurement_s(plan.window_s) for trial in pair)
                undecided = self._undecided()
                share = schedule.ABLATE_SHARE if undecided else schedule.CONFIRM_SHARE
                enough = number > plan.n_rounds and not undecided
                if enough or pair_s > self._left_s(share):
                    return
            for trial in pair if number % 2 else reversed(pair):
                cost = self._cost(trial)
                n_steps = cost.steps(plan.window_s, at_least=1 if searching else windows.MIN_STEPS)
                self._measurer.time(trial, "confirm", number, n_steps, cost)
                self._tell("confirm", number, max(number, plan.n_rounds), trial.index)

    def _undecided(self) -> bool:
        """Whether the candidate's gain would matter, but may still be noise."""
        ranking = self.ranking()
        gain = ranking.gain_share
        return gain is not None and gain.value >= MIN_GAIN_SHARE and not ranking.worth_changing

    def _trace(self) -> None:
        """A traced window for each trial, the most interesting first, while there is time."""
        if self._options.trace_dir is None:
            return
        ranking = self.ranking()
        order = [0, ranking.candidate, ranking.best, *self._by_speed()]
        wanted = [self.outcome.trials[i] for i in dict.fromkeys(i for i in order if i is not None)]
        traced = [trial for trial in wanted if trial.status == "ok" and trial.same_as is None]
        if self._options.loader_only:
            traced = traced[:1]
        elif self._options.search == "auto":  # why others lost the race is no question of its
            traced = [trial for trial in traced if not trial.dropped]
        profiler = self._options.profiler
        for trial in traced:
            for repeat in range(profiler.repeat if trial.index == 0 else 1):
                cost = self._cost(trial)
                n_steps = profiler.active or cost.steps(TRACED_STEPS * cost.step_s)
                # The loop's own trace is what the report explains: it is taken in any case.
                expected_s = cost.overhead_s + 2 * n_steps * cost.step_s + TRACE_EXPORT_S
                extra_s = 0.0 if self._options.keep_all else TRACE_OVERRUN_SHARE
                left_s = self._left_s(1.0) + extra_s * self._options.budget_s
                if trial.index and expected_s > left_s:
                    return
                self._measurer.trace(trial, repeat, n_steps, cost)
                n_traced = sum(bool(one.profiles) for one in self.outcome.trials)
                self._tell("trace", n_traced, len(traced), trial.index)

    # ------------------------------------------------------------------ planning

    def _plan(self, wanted_rounds: int | None) -> Plan:
        """Where all trials are to stay, fewer rounds come before fewer trials."""
        costs = {trial.index: self._cost(trial) for trial in self._alive() if trial.measurements}
        fewest = 1 if self._options.keep_all and wanted_rounds else wanted_rounds or 0
        plan = schedule.NOTHING
        for n_rounds in range(wanted_rounds or 0, fewest - 1, -1):
            plan = schedule.plan(
                costs,
                left_s=self._left_s(schedule.RANK_SHARE),
                wanted_rounds=n_rounds or None,
                by_speed=self._by_speed(),
                behind=self._behind(),
            )
            if len(plan.trials) == len(costs):
                return plan
        return plan

    def _cost(self, trial: Trial) -> Cost:
        found = windows.measured(trial, self._observed)
        return found or windows.guess(trial, self._observed, step_s=self._step_s)

    def _round_s(self, plan: Plan) -> float:
        return sum(self._cost(trial).measurement_s(plan.window_s) for trial in self._alive())

    def _by_speed(self) -> list[int]:
        """Indexes of measured trials, fastest first; the loop's own before all others."""
        results = [r for r in self.ranking().results if r.wall_ms is not None]
        results.sort(key=lambda r: r.wall_ms.value if r.index and r.wall_ms else 0.0)
        return [r.index for r in results]

    def _behind(self) -> frozenset[int]:
        """Trials that are clearly slower than the fastest."""
        if self._options.keep_all:
            return frozenset()
        walls = {r.index: r.wall_ms.value for r in self.ranking().results if r.wall_ms is not None}
        fastest = min(walls.values(), default=0.0)
        return frozenset(index for index, ms in walls.items() if ms > BEHIND * fastest)

    def _alive(self) -> list[Trial]:
        return [trial for trial in self.outcome.trials if trial.alive]

    def _shuffled(
        self, trials: list[Trial], *, first: int | None = None, last: int | None = None
    ) -> list[Trial]:
        order = list(trials)
        self._rng.shuffle(order)
        order.sort(key=lambda t: -1 if t.index == first else 1 if t.index == last else 0)
        return order

    def _end_s(self, share: float) -> float:
        return schedule.end_s(share, self._options, ablated=self._ablate is not None)

    def _left_s(self, share: float) -> float:
        # Starting the script again is no measuring.
        spent_s = self._clock() - self._began - self._measurer.reopening_s
        return self._end_s(share) - spent_s

    def _note_short_budget(self, what: str) -> None:
        text = f"{what}: give a larger --budget, or fewer values in --grid"
        self.outcome.notes.append(("budget-too-short", text))

    def _tell(self, phase: PhaseName, number: int, n_rounds: int, trial: int | None) -> None:
        if self._on_progress is None:
            return
        spent_s = self._clock() - self._began
        self._on_progress(
            Progress(
                phase=phase,
                round=number,
                n_rounds=n_rounds,
                trial=trial,
                done_share=min(1.0, spent_s / self._options.budget_s),
                left_s=max(0.0, self._options.budget_s - spent_s),
                trials=self.outcome.trials,
            )
        )
