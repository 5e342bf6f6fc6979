"""Tries the candidate settings in the running loop: alone first, then the winners together.

Beside other programs a trial is said to gain no more than ready batches would. A neighbour rests in
one round and runs in another, and a trial of few rounds may have met the first more often than the
loop as it is: a loop of 65 ms a step beside twelve busy processes read 3.0x for a worker, where
batches that lie ready bring 1.3x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from loaderdoctor.attribution.cpu import others_cores
from loaderdoctor.combinations import invalid_reason
from loaderdoctor.errors import RunError
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts, own_settings
from loaderdoctor.facts.loop import LoopTrials, PoolTrial, ThreadTrial
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Options, Trial
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.comparing import (
    WORTH_DECIDING,
    Boundaries,
    Compared,
    by_speed,
    compared,
    is_tied,
)
from loaderdoctor.tryout.competition import Competition
from loaderdoctor.tryout.measuring import Equipment, OverError
from loaderdoctor.tryout.ranking import SIMPLER_SHARE, simplest
from loaderdoctor.tryout.rounds import Driver, Loop
from loaderdoctor.tryout.windows import MIN_STEPS

# A trial that is this close to the rest of the step has nothing left to gain: the noise of a
# window mean on a quiet machine is about 2 % (see tryout.windows.WINDOW_S).
REACHED = 1.03
# Trials need less than a diagnosis: they are compared with one another in the same round.
WINDOW_PART = 0.5
# Of epochs as short as this what workers have under way at their ends is a good part: a window that
# is no whole epoch lies at the same place of one each time, and stands for no other. Two scripts on
# two CPUs, epochs of 15 and 20 steps, were promised 1.54x and 1.83x by windows of half an epoch,
# and became 1.14x as fast.
SHORT_EPOCH = 32
# Making samples to keep, for the trial of that: so long at most, and this part of what is left.
# Two seconds make 20,000 MNIST digits or 300 photos: far more than caches of the CPU hold.
MAX_CACHE_S = 2.0
CACHE_PART = 0.05
# They change how batches come and nothing of what the loop does with them.
_OF_LOADER = frozenset(
    {
        "num_workers",
        "prefetch_factor",
        "persistent_workers",
        "in_order",
        "start_method",
        "worker_cpus",
        "worker_gc",
        "background",
        "reuse_buffers",
        "threads",
        "spdl",
        "keep_iterator",
        "cache",
        "batched",
        "storage",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Everything tried, and the combination to recommend: None where nothing helps."""

    tried: tuple[Compared, ...]
    best: Compared | None
    complete: bool  # False: the time ran out before every candidate was tried


class Verifier:
    """Tries candidates for at most `left_s` seconds; nothing is begun that would take longer.

    Where that ends without an answer, `go_on` takes more.
    """

    def __init__(
        self,
        evidence: LoopEvidence,
        equipment: Equipment,
        *,
        left_s: float,
        trial_limit_s: float | None = None,
    ) -> None:
        self._observed, self._equipment = evidence.observed, equipment
        self._ablation = evidence.ablation()
        sizes = evidence.sizes
        cycles = max(sizes.n_steps * WINDOW_PART, MIN_STEPS) / sizes.cycle
        self._n_steps = max(1, round(cycles)) * sizes.cycle
        epoch = evidence.steps_per_epoch
        if epoch and self._n_steps <= epoch <= SHORT_EPOCH and sizes.n_steps >= epoch:
            self._n_steps = epoch
        self._boundaries = Boundaries(
            steps_per_epoch=evidence.steps_per_epoch,
            loop_ms=evidence.boundary_ms(),
            own_work_ms=evidence.own_boundary_ms(),
            own_workers=own_settings(evidence.observed).num_workers or 0,
        )
        self._single: tuple[int, ...] = ()  # candidates, each alone
        self._code_first = False
        self._combined: tuple[int, ...] = ()
        self._chosen: list[Compared] = []  # of them, as they were when winners were combined
        self._driver = Driver(
            Loop.of(evidence.observed),
            [Trial(index=0, settings=Settings())],
            Options(
                budget_s=left_s,
                trial_limit_s=trial_limit_s,
                as_it_runs=True,
                cache_limit_s=min(MAX_CACHE_S, CACHE_PART * max(0.0, left_s)),
            ),
            equipment,
        )

    def verify(
        self,
        candidates: Sequence[Settings],
        *,
        rest_ms: float | None,
        in_code: Sequence[Settings] = (),
        code_first: bool = False,
    ) -> Verification:
        """Try each candidate alone, then the winners added up one by one, best first.

        Those `in_code` (samples kept in memory) are tried in the same rounds, where there is time
        for them, and stay apart; `code_first`: the first of them before any setting. What can no
        longer change the answer is not measured, whatever time is left. Raises RunError where the
        measuring process hangs.
        """
        settings = self._added(candidates)
        code = self._added(in_code, in_code=True)
        self._code_first = code_first
        self._single = single = self._in_turn(settings, code)
        with self._over():
            self._compete(single)
            self._chosen = self._winners(single)
            if self._chosen and not self._reached(self._chosen[0], rest_ms):
                if together := self._additions(self._chosen, self._tried(single)):
                    self._combined = self._added([self._chosen[0].settings, *together])
                    self._compete(self._combined)
                self._compete(single)
        return self._verification(single, self._combined, self._chosen)

    def go_on(self, left_s: float) -> Verification:
        """For so many seconds more, until one of the candidates is shown to help, or none does.

        Raises RunError where the measuring process hangs.
        """
        self._allow(left_s)
        with self._over():
            for one in self.undecided:
                if any(tried.helps for tried in self._tried(self._single)):
                    break
                self._compete([one])
        self._chosen = self._chosen or self._winners(self._single)
        return self._verification(self._single, self._combined, self._chosen)

    def confirm(self, one: Compared, left_s: float) -> Verification:
        """Measure what helps again, for so many seconds at most, until its own step is known.

        Raises RunError where the measuring process hangs.
        """
        self._allow(left_s)
        with self._over():
            self._compete([one.trial.index])
        return self._verification(self._single, self._combined, self._chosen)

    def _allow(self, left_s: float) -> None:
        driver = self._driver
        driver.options = replace(driver.options, budget_s=driver.known().spent_s + left_s)

    @property
    def undecided(self) -> list[int]:
        """What may still be the answer: settings that look faster, then what was not looked at.

        Code that was looked at is not, unless it was to be tried first.
        """
        tried = [
            one
            for one in self._tried(self._single)
            if not one.decided
            if not one.n_rounds or (one.promising and (self._code_first or not one.in_code))
        ]
        settings = by_speed([one for one in tried if not one.in_code])
        code = [one.trial.index for one in tried if one.in_code]
        return list(self._in_turn([one.trial.index for one in settings], code))

    def _in_turn(self, settings: Sequence[int], code: Sequence[int]) -> tuple[int, ...]:
        """Where there is time for two only, these are the best of either kind."""
        first = (*code[:1], *settings[:1]) if self._code_first else (*settings[:1], *code[:1])
        return (*first, *settings[1:], *code[1:])

    @contextmanager
    def _over(self) -> Iterator[None]:
        """The end of the run, or an interruption of it, ends the trials; what was seen stays."""
        try:
            yield
        except OverError as over:
            if isinstance(over.__cause__, RunError):
                raise over.__cause__ from None
        except KeyboardInterrupt:
            ended = self._equipment.script_run.ended
            if ended is None or ended.how != "interrupted":
                raise

    def _verification(
        self, single: Sequence[int], combined: Sequence[int], winners: Sequence[Compared]
    ) -> Verification:
        """What came of it, whether or not all was tried.

        Of `winners` what is known by now, where they were measured again since.
        """
        alone = self._tried(single)
        winners = [one for one in self._tried([w.trial.index for w in winners]) if _still_wins(one)]
        winner = winners[0] if winners else next(iter(self._winners(single)), None)
        if winner is None:
            return _shown(alone, None)
        together = self._tried(combined)
        held = by_speed([one for one in together if one.helps])
        best = self._simplest(held) if held else winner
        late = [one for one in self._winners(single) if one.settings not in _settings(winners)]
        best = min([best, *late], key=lambda one: one.part)
        return _shown([*alone, *(t for t in together if t.settings != winner.settings)], best)

    def _simplest(self, ranked: Sequence[Compared]) -> Compared:
        """Of those that cannot be told from the fastest, and take hardly longer."""
        best = ranked[0]
        tied = [
            one
            for one in ranked
            if one.part <= best.part * (1 + SIMPLER_SHARE)
            if one is best or is_tied(one.steps, best.steps, best.noise, len(ranked))
        ]
        return tied[simplest([one.settings for one in tied], self._driver.loop.own)]

    def _added(self, settings: Sequence[Settings], *, in_code: bool = False) -> tuple[int, ...]:
        """Trials of these settings, by index."""
        trials = self._driver.outcome.trials
        first = len(trials)
        trials += [
            Trial(index=first + i, settings=one, in_code=in_code) for i, one in enumerate(settings)
        ]
        return tuple(range(first, len(trials)))

    def _tried(self, among: Sequence[int]) -> list[Compared]:
        found = compared(self._driver.outcome.trials, self._boundaries)
        return [found[index - 1] for index in among]

    def _winners(self, among: Sequence[int]) -> list[Compared]:
        """Settings that help, the best first; changes of code stay apart."""
        found = by_speed([one for one in self._tried(among) if one.helps and not one.in_code])
        best = self._simplest(found) if found else None
        return sorted(found, key=lambda one: one is not best)

    def _competition(self, among: Sequence[int]) -> Competition:
        return Competition(among=tuple(among), n_steps=self._n_steps, boundaries=self._boundaries)

    def _compete(self, among: Sequence[int]) -> None:
        self._driver.carry_out(self._competition(among))

    def _additions(self, winners: Sequence[Compared], tried: Sequence[Compared]) -> list[Settings]:
        """The best with the second's changes, with the third's too, …: valid ones only.

        What looks better alone, and was measured too seldom to tell, shows in it what it is worth.
        """
        perhaps = by_speed([one for one in tried if one.promising and not one.in_code])
        total = winners[0].settings
        found: list[Settings] = []
        for winner in (*winners[1:], *perhaps):
            # What is set already stays as the better one set it.
            merged = total.over(winner.settings)
            has_accelerator = self._observed.device is not None
            if merged != total and not invalid_reason(merged, has_accelerator=has_accelerator):
                found.append(merged)
                total = merged
        return found

    def _reached(self, one: Compared, rest_ms: float | None) -> bool:
        """Whether nothing is left to gain; `rest_ms` was measured next to steps of the ablation."""
        # What is left may be the fighting of its own threads, or collecting garbage: without that,
        # loaders may matter.
        process = one.settings.num_threads is not None or one.settings.gc is not None
        if rest_ms is None or one.step is None or process:
            return False
        plain = self._ablation.plain_ms if self._ablation is not None else None
        step_ms = one.step.value if plain is None else one.part * plain.value
        return step_ms <= REACHED * rest_ms


def loop_trials(tried: Sequence[Compared]) -> LoopTrials:
    """What is known of other numbers of threads, and of workers, everything else as it is."""
    return LoopTrials(threads=_thread_trials(tried), pools=_pool_trials(tried))


def _pool_trials(tried: Sequence[Compared]) -> tuple[PoolTrial, ...]:
    return tuple(
        PoolTrial(
            num_workers=n,
            own_ms=own_ms,
            step_ms=step,
            gain_ms=gain,
            spans_ns=tuple(
                (m.window.start_ns, m.window.end_ns)
                for m in one.trial.measurements
                if m.window.status in ("ok", "short")
            ),
        )
        for one in tried
        if set(one.settings.changed()) <= {"num_workers", "persistent_workers"}
        and (n := one.settings.num_workers) is not None
        and (own_ms := one.own_ms) is not None
        and (step := one.step) is not None
        and (gain := one.gain) is not None
    )


def _thread_trials(tried: Sequence[Compared]) -> tuple[ThreadTrial, ...]:
    return tuple(
        ThreadTrial(n_threads=n, step_ms=step, gain_ms=gain, decided=one.decided)
        for one in tried
        if set(one.settings.changed()) == {"num_threads"}
        and (n := one.settings.num_threads) is not None
        and (step := one.step) is not None
        and (gain := one.gain) is not None
    )


def _still_wins(one: Compared) -> bool:
    """Whether what was shown to help does so still, once it was measured again.

    Where rounds differ a lot, a second may widen the interval that the first had shown it by: it
    stays if each of them was faster with it by an amount that matters.
    """
    parts = [x.value / own.value for (_, own), (_, x) in zip(one.own, one.steps, strict=True)]
    return one.helps or max(parts, default=1.0) <= 1.0 - WORTH_DECIDING


def _settings(tried: Sequence[Compared]) -> list[Settings]:
    return [one.settings for one in tried]


def _shown(tried: Sequence[Compared], best: Compared | None) -> Verification:
    return Verification(
        tried=tuple(one for one in tried if one.steps or one.trial.status != "ok"),
        best=best,
        complete=all(one.decided or _beaten(one, best) for one in tried),
    )


def _beaten(one: Compared, best: Compared | None) -> bool:
    return best is not None and bool(one.steps) and not one.may_beat(best)


def within_reach(tried: Compared | None, facts: Facts) -> tuple[Estimate | None, float | None]:
    """The step with it, no shorter than an instant loader may make it; None where all failed.

    And what its windows took (ms), where that was shorter.

    The bound is the upper end of what the loader costs, at the pace that the loop had in the
    trial's rounds. It holds where other programs have the CPUs too, and for settings of the loader
    alone: with CPUs to itself a trial is the surer of both.
    """
    if tried is None or tried.step is None:
        return None, None
    step, least_ms = tried.step, _least_ms(tried.settings, tried.own_ms, facts)
    if least_ms is None or step.value >= least_ms:
        return step, None
    bounded = replace(step, value=least_ms, low=least_ms, high=max(least_ms, step.high))
    return bounded, step.value


def _least_ms(settings: Settings, own_ms: float | None, facts: Facts) -> float | None:
    ablation, machine = facts.ablation, facts.machine
    cost = ablation.input_ms if ablation is not None else None
    if ablation is None or cost is None or not cost.bounded or machine is None or not own_ms:
        return None
    changed = settings.changed()
    if not _OF_LOADER.issuperset(changed) or changed.get("background") == "device":
        return None
    if others_cores(facts.step, machine.usable_cpus) is None:
        return None
    return own_ms * max(0.0, 1.0 - cost.high / ablation.plain_ms.value)
