"""Tries the candidate settings in the running loop: alone first, then the winners together."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from loaderdoctor.attribution.step import usable, window_times
from loaderdoctor.diagnosis.gather import Gatherer
from loaderdoctor.estimate import Estimate, mean, paired_difference
from loaderdoctor.facts.epochs import measured_whole
from loaderdoctor.facts.loop import ThreadTrial
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings, invalid_reason
from loaderdoctor.units import NS_PER_MS

ROUNDS = 3  # visits to each candidate; the fewest that give an interval worth having
# Where time is left, so many more for candidates that look better by this much of a step and are
# not shown to be: below it, a gain is not worth the time.
EXTRA_ROUNDS = 3
WORTH_DECIDING = 0.05
# A trial that is this close to the rest of the step has nothing left to gain: the noise of a
# window mean on a quiet machine is about 2 % (see diagnosis.plan.WINDOW_S).
REACHED = 1.03
# Trials need less than a diagnosis: they are compared with one another in the same round.
WINDOW_PART = 0.5
# A visit pays for worker start-up and dropped batches too; before one is measured, assume this.
MEASUREMENT_FACTOR = 2.5
# Two pools of workers started and ended, the second for the epoch boundary: four forked workers
# take 0.2 s each time on two busy cores.
MEASUREMENT_OPEN_S = 0.5
LONGEST_EPOCH_S = 2.0  # of those that are measured whole
# Making samples to keep, for the trial of that: so long at most, and this part of what is left.
# Two seconds make 20,000 MNIST digits or 300 photos: far more than caches of the CPU hold.
MAX_CACHE_S = 2.0
CACHE_PART = 0.05


@dataclass(slots=True, kw_only=True)
class Tried:
    """One combination of settings, tried beside plain windows of the same rounds."""

    settings: Settings
    in_code: bool = False  # written into the dataset's code: never added to other settings
    measurements: list[WindowDone] = field(default_factory=list)
    plain_ms: list[float] = field(default_factory=list)  # of the same rounds
    step_ms: list[float] = field(default_factory=list)
    failed: str | None = None
    refused: bool = False  # it was not run: `failed` says what would have been lost

    @property
    def step(self) -> Estimate | None:
        """Milliseconds a step with these settings; None where every visit failed."""
        return mean(self.step_ms) if self.step_ms else None

    @property
    def own_ms(self) -> float | None:
        """The loop as it is in the same rounds, milliseconds a step."""
        return fmean(self.plain_ms) if self.step_ms else None

    @property
    def part(self) -> float:
        """The step with it as a part of the plain one in the same rounds; inf where it failed."""
        return fmean(self.step_ms) / fmean(self.plain_ms) if self.step_ms else float("inf")

    @property
    def gain(self) -> Estimate | None:
        """Plain minus this, paired by round, milliseconds a step."""
        return paired_difference(self.plain_ms, self.step_ms) if self.step_ms else None

    @property
    def decided(self) -> bool:
        """Whether enough was seen to say that it helps, or that it was not shown to."""
        return self.failed is not None or self.helps or len(self.step_ms) >= ROUNDS

    @property
    def promising(self) -> bool:
        """Whether it looks better by an amount that matters, and is not shown to be."""
        gain = self.gain
        return (
            gain is not None
            and not self.helps
            and gain.value >= WORTH_DECIDING * fmean(self.plain_ms)
        )

    @property
    def helps(self) -> bool:
        """Whether the gain is beyond the noise."""
        return self.gain is not None and self.gain.low > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Everything tried, and the combination to recommend: None where nothing helps."""

    tried: tuple[Tried, ...]
    best: Tried | None
    complete: bool  # False: the time ran out before every candidate was tried


class Verifier:
    """Runs the rounds. `until` is on the clock given; nothing is begun that would pass it."""

    def __init__(
        self,
        gatherer: Gatherer,
        measure: Callable[[Sequence[WindowRequest]], list[WindowDone]],
        *,
        until: float,
        clock: Callable[[], float],
        has_accelerator: bool,
        trial_limit_s: float | None = None,
        seed: int = 0,
    ) -> None:
        self._trial_limit_s = trial_limit_s
        self._gatherer, self._measure = gatherer, measure
        self._until, self._clock = until, clock
        self._has_accelerator = has_accelerator
        self._rng = random.Random(seed)
        sizes = gatherer.evidence.sizes
        cycle = sizes.cycle
        self._n_steps = max(cycle, round(sizes.n_steps * WINDOW_PART / cycle) * cycle)
        self._cache_limit_s = min(MAX_CACHE_S, CACHE_PART * max(0.0, until - clock()))
        self._measurement_s = MEASUREMENT_FACTOR * self._n_steps * sizes.step_s + MEASUREMENT_OPEN_S

    def verify(
        self,
        candidates: Sequence[Settings],
        *,
        rest_ms: float | None,
        in_code: Sequence[Settings] = (),
    ) -> Verification:
        """Try each candidate alone, then the winners added up one by one, best first.

        Those `in_code` (samples kept in memory) are tried in the same rounds, where there is time
        for them, and stay apart. Time that is left over then goes to candidates that it did not
        seem to suffice for.
        """
        tried = [Tried(settings=s) for s in candidates]
        code = [Tried(settings=s, in_code=True) for s in in_code]
        ablation = self._gatherer.evidence.ablation()
        plain_ms = ablation.plain_ms.value if ablation is not None else None
        # Where there is time for two only, these are the best of either kind.
        single = [*tried[:1], *code[:1], *tried[1:], *code[1:]]
        self._compete(single)
        winners = _winners(single)
        if not winners:
            self._catch_up(single)
            winners = _winners(single)
        if not winners:
            return _verification(single, None)
        combined: list[Tried] = []
        best = winners[0]
        # What is left of the step is of its own threads: with others, loader settings may matter.
        if best.settings.num_threads is not None or not _reached(best, rest_ms, plain_ms):
            together = self._additions(winners)
            if together:
                combined = [Tried(settings=s) for s in (best.settings, *together)]
                self._compete(combined)
                held = _ranked([t for t in combined if t.helps])
                best = _simplest_of_the_best(held) if held else best
            self._catch_up(single)
            late = [t for t in _winners(single) if t not in winners]
            best = min([best, *late], key=lambda t: t.part)
        shown = [*single, *(t for t in combined if t.settings != winners[0].settings)]
        return _verification(shown, best)

    def _additions(self, winners: Sequence[Tried]) -> list[Settings]:
        """The best with the second's changes, with the third's too, …: valid ones only."""
        total = winners[0].settings
        found: list[Settings] = []
        for winner in winners[1:]:
            merged = total.over(
                winner.settings
            )  # what is set already stays as the better one set it
            if merged != total and not invalid_reason(
                merged, has_accelerator=self._has_accelerator
            ):
                found.append(merged)
                total = merged
        return found

    def _compete(self, tried: Sequence[Tried]) -> None:
        """Rounds of plain and every candidate, shuffled.

        Where the time left is short, the slowest so far drop out: few candidates with an interval
        say more than many without.
        """
        left = list(tried)
        for n in range(ROUNDS + EXTRA_ROUNDS):
            left = [t for t in left if t.failed is None]
            if n >= ROUNDS:
                left = [t for t in left if t.promising]
            rounds = max(1, ROUNDS - n)
            room = max(1, int((self._until - self._clock()) / self._measurement_s / rounds) - 1)
            left = _fitting(_ranked(left) if n and len(left) > room else left, room)
            if left and not self._round(left):
                break

    def _catch_up(self, tried: Sequence[Tried]) -> None:
        """Visits to candidates left out, where those before them took less time than planned."""
        while waiting := [t for t in tried if not t.decided]:
            n_measurements = sum(len(t.measurements) for t in tried)
            pair_s = 2 * self._measurement_s
            fewest = min(ROUNDS - len(t.step_ms) for t in waiting)
            if self._clock() + fewest * pair_s > self._until:
                return
            self._compete(waiting)
            if sum(len(t.measurements) for t in tried) == n_measurements:
                return

    def _trial_steps(self, tried: Tried) -> int:
        """Of one window: whole epochs where workers fill most of one ahead."""
        evidence = self._gatherer.evidence
        train = evidence.observed.main_loader
        full = tried.settings.over(train.settings) if train is not None else tried.settings
        queue = (full.num_workers or 0) * (full.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
        step_s = tried.step.value / 1e3 if tried.step is not None else evidence.sizes.step_s
        epoch = evidence.steps_per_epoch
        if epoch and measured_whole(epoch, queue=queue, step_s=step_s, longest_s=LONGEST_EPOCH_S):
            return math.ceil(self._n_steps / epoch) * epoch
        return self._n_steps

    def _round(self, tried: Sequence[Tried]) -> bool:
        if not tried or self._clock() + self._measurement_s * (len(tried) + 1) > self._until:
            return False
        began = self._clock()
        plain = self._gatherer.request("plain", n_steps=self._n_steps)
        requests = {plain.id: plain}
        owner: dict[int, Tried] = {}
        for t in tried:
            request = self._gatherer.request(
                "trial",
                n_steps=self._trial_steps(t),
                settings=t.settings,
                measure_boundary=not t.settings.only_threads,
                fetch_limit_s=self._trial_limit_s,
                cache_limit_s=self._cache_limit_s if t.settings.cache else None,
            )
            requests[request.id] = request
            owner[request.id] = t
        order = list(requests.values())
        self._rng.shuffle(order)
        done = {w.id: w for w in self._measure(order)}
        self._measurement_s = (self._clock() - began) / len(order)
        if plain.id not in done or not usable(done[plain.id]):
            return False
        evidence = self._gatherer.evidence
        boundary_ms = evidence.boundary_ms()
        plain_ms = window_times(done[plain.id]).wall_ms(evidence.steps_per_epoch, boundary_ms)
        for id_, t in owner.items():
            window = done.get(id_)
            if window is None:
                continue
            if not usable(window):
                t.failed = window.reason or "the trial failed"
                t.refused = window.status == "skipped"
                continue
            t.measurements.append(window)
            t.plain_ms.append(plain_ms)
            own_ms = evidence.own_boundary_ms() or 0.0
            kept = boundary_ms if t.settings.only_threads else None
            t.step_ms.append(
                trial_step_ms(window, evidence.steps_per_epoch, kept, own_boundary_ms=own_ms)
            )
        return True


def trial_step_ms(
    window: WindowDone,
    steps_per_epoch: int | None,
    boundary_ms: float | None = None,
    *,
    own_boundary_ms: float = 0.0,
) -> float:
    """A trial's step with its own epoch boundary spread over the real epoch.

    `boundary_ms` is the loop's, for a trial that leaves the loader alone. The trial's was timed
    beside the window: the loop's own work between epochs (`own_boundary_ms`) comes on top.
    """
    if window.boundary_ns is not None:
        boundary_ms = window.boundary_ns / NS_PER_MS + own_boundary_ms
    return window_times(window).wall_ms(steps_per_epoch, boundary_ms)


def _verification(tried: Sequence[Tried], best: Tried | None) -> Verification:
    return Verification(
        tried=tuple(t for t in tried if t.measurements or t.failed is not None),
        best=best,
        complete=all(t.decided for t in tried),
    )


def _winners(tried: Sequence[Tried]) -> list[Tried]:
    """Settings that help, fastest first; changes of code stay apart."""
    return _ranked([t for t in tried if t.helps and not t.in_code])


def thread_trials(tried: Sequence[Tried]) -> tuple[ThreadTrial, ...]:
    """What is known of other numbers of threads, everything else as it is."""
    return tuple(
        ThreadTrial(n_threads=n, step_ms=step, gain_ms=gain, decided=t.decided)
        for t in tried
        if t.settings.only_threads
        and (n := t.settings.num_threads) is not None
        and (step := t.step) is not None
        and (gain := t.gain) is not None
    )


def _ranked(tried: Sequence[Tried]) -> list[Tried]:
    """Fastest first, each beside the plain windows of its own rounds."""
    return sorted(tried, key=lambda t: t.part)


def _fitting(tried: Sequence[Tried], room: int) -> list[Tried]:
    """The first that there is room for; settings of the loader's are among them."""
    kept = list(tried[:room])
    if kept and all(t.in_code for t in kept):
        kept[-1:] = [t for t in tried if not t.in_code][:1] or kept[-1:]
    return kept


def _reached(tried: Tried, rest_ms: float | None, plain_ms: float | None) -> bool:
    """Whether nothing is left to gain; `rest_ms` was measured beside steps of `plain_ms`."""
    if rest_ms is None or tried.step is None:
        return False
    step_ms = tried.step.value if plain_ms is None else tried.part * plain_ms
    return step_ms <= REACHED * rest_ms


def _simplest_of_the_best(ranked: Sequence[Tried]) -> Tried:
    """The fewest changes among those that the best does not beat beyond the noise."""
    best = ranked[0]
    tied = [
        t
        for t in ranked
        if len(t.step_ms) == len(best.step_ms)
        and paired_difference(t.step_ms, best.step_ms).low <= 0.0
    ]
    return min(tied, key=lambda t: len(t.settings.changed())) if tied else best
