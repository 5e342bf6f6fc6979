"""The loop as it is, against synthetic batches: rounds of windows until the verdict is settled.

What was measured so far is always reportable; more rounds may be asked for later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.attribution.ablation import Round, ablation_facts, kept_without_loader
from loaderdoctor.attribution.claims import claimed
from loaderdoctor.attribution.mechanisms import mechanisms
from loaderdoctor.attribution.step import (
    before_steady,
    boundaries_of_step,
    own_boundary_ms,
    pooled_boundary_ms,
    usable,
    waited_ms,
    window_times,
)
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.facts.step import SETTLED_TO_SHARE
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.wire.protocol import (
    WINDOW_IDS,
    Ended,
    Mode,
    Observed,
    WindowDone,
    WindowRequest,
)
from loaderdoctor.instrument.wire.records import WallRecord
from loaderdoctor.tryout.windows import MIN_ROUNDS, Sizes, limit_s

NO_TIME = "there was no time for it within the budget"  # why there is no round
# Rounds in which repeated batches cost the same are enough to say so.
FEWEST_WORTH = 2
MAX_ROUNDS = 10
# With time left over and the verdict uncertain, so many in all: three times the rounds narrow an
# interval to about a half. What 30 have not settled is no matter of measuring longer.
MAX_LONGER_ROUNDS = 30
# Shares of the step at which the verdict changes; a share is settled once its interval holds
# none of them, or is no wider than two points.
VERDICT_EDGES = (0.05, 0.20)
SETTLED_WIDTH = 2 * SETTLED_TO_SHARE


@dataclass(slots=True, kw_only=True)
class LoopEvidence:
    """What has been measured so far; grows as windows end."""

    observed: Observed
    sizes: Sizes
    plain: list[WindowDone] = field(default_factory=list)
    profiled: WindowDone | None = None
    profiled_reason: str | None = None  # why there is none
    # Windows of stack samples: no times are taken from them.
    sampled: list[WindowDone] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    ablation_reason: str | None = None
    ended_wall: WallRecord | None = None  # of the whole run, once it is over
    earlier_ids: frozenset[int] | None = None  # one choice for all ranks; None: by these windows

    @property
    def all_plain(self) -> list[WindowDone]:
        """Plain windows of every phase, in order."""
        return [*self.plain, *(r.plain for r in self.rounds)]

    @property
    def earlier(self) -> list[WindowDone]:
        """Of the usable ones, those before the loop settled at the pace it then kept."""
        if self.earlier_ids is not None:
            return [w for w in self.all_plain if usable(w) and w.id in self.earlier_ids]
        return before_steady(self.all_plain, self.steps_per_epoch)

    @property
    def steady(self) -> list[WindowDone]:
        """The usable ones at that pace: what the step's figures are of."""
        gone = {id(window) for window in self.earlier}
        return [w for w in self.all_plain if usable(w) and id(w) not in gone]

    @property
    def wall(self) -> WallRecord | None:
        """Where the run's time went besides its steps, as far as it has told."""
        pairs = ((r.no_input, r.no_copy) for r in self.rounds)
        windows = (*self.all_plain, self.profiled, *(w for pair in pairs for w in pair))
        told = [self.ended_wall, *(w.wall for w in windows if w is not None)]
        return max((x for x in told if x is not None), key=lambda x: x.n_steps, default=None)

    @property
    def steps_per_epoch(self) -> int | None:
        """Of the loader that feeds the step: as many as were last seen, else what it has."""
        seen = [w.epoch_length for w in self.all_plain if w.epoch_length]
        return seen[-1] if seen else self.observed.steps_per_epoch

    def learn_epoch(self) -> None:
        """How long an epoch is may be seen only behind the loop's warm-up.

        Of a stream, of a loader whose passes the loop leaves early, of one that changes its length.
        """
        main, n = self.observed.main_loader, self.steps_per_epoch
        if main is None or n is None or n == main.steps_per_epoch:
            return
        told = msgspec.structs.replace(main, steps_per_epoch=n)
        loaders = tuple(told if x is main else x for x in self.observed.loaders)
        self.observed = msgspec.structs.replace(self.observed, loaders=loaders)

    def add_loaders(self, ended: Ended | None) -> None:
        """Loaders first iterated after the loop was warm: validation, as a rule; the whole run."""
        if ended is not None and ended.wall is not None:
            self.ended_wall = ended.wall
        known = {x.id for x in self.observed.loaders}
        later = [x for x in (ended.loaders if ended is not None else ()) if x.id not in known]
        if later:
            self.observed = msgspec.structs.replace(
                self.observed, loaders=(*self.observed.loaders, *later)
            )

    def boundary_ms(self) -> float | None:
        """One epoch boundary, pooled over all plain windows and the warm-up."""
        plain = [w for w in self.all_plain if usable(w)]
        return pooled_boundary_ms(plain, boundaries_of_step(self.observed, plain))

    def own_boundary_ms(self) -> float | None:
        """Of it, the loop's own work: what no setting of a loader changes."""
        plain = [w for w in self.all_plain if usable(w)]
        own_ms = own_boundary_ms(plain, boundaries_of_step(self.observed, plain))
        return kept_without_loader(self.rounds, own_ms)

    def ablation(self) -> AblationFacts | None:
        """The ablation so far, of rounds at one pace; None before its first whole round."""
        gone = {id(window) for window in self.earlier}
        rounds = [r for r in self.rounds if id(r.plain) not in gone]
        boundary_ms, own_ms = self.boundary_ms(), self.own_boundary_ms()
        facts = ablation_facts(
            rounds,
            steps_per_epoch=self.steps_per_epoch,
            boundary_ms=boundary_ms,
            own_boundary_ms=own_ms,
            reason=self.ablation_reason,
        )
        if facts is None:
            return None
        of_loader_ms = max(0.0, (boundary_ms or 0.0) - (own_ms or 0.0))
        seen = mechanisms(
            rounds,
            self.steady,
            self.observed,
            boundary_ms=of_loader_ms / self.steps_per_epoch if self.steps_per_epoch else 0.0,
            pages=facts.pages,
        )
        first = next((w for w in self.all_plain if usable(w)), None)
        shed = shed_faults(first, [r.plain for r in rounds]) if first is not None else None
        lost = shed[0] - shed[1] if shed is not None else None
        return replace(facts, mechanisms=seen, shed_faults_per_step=lost)


class Ablation:
    """Sends windows of the loop as it is, and of what is substituted in it, and keeps them."""

    def __init__(
        self,
        script_run: ScriptRunLike,
        evidence: LoopEvidence,
        *,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        on_stage: Callable[[str], None] | None = None,
    ) -> None:
        self.evidence = evidence
        self._tell = on_stage or (lambda what: None)
        self._script_run = script_run
        self._rng = random.Random(seed)
        self._clock = clock
        self._round_s: float | None = None  # the last round, by the clock

    def request(self, mode: Mode, *, n_steps: int | None = None, **more: object) -> WindowRequest:
        """A request with the next id, the planned size and a time limit."""
        n = n_steps if n_steps is not None else self.evidence.sizes.n_steps
        limit = limit_s(n * self.evidence.sizes.step_s)
        return WindowRequest(id=next(WINDOW_IDS), mode=mode, n_steps=n, limit_s=limit, **more)  # type: ignore[arg-type]

    def ablate(
        self,
        *,
        until: float,
        with_copy: bool,
        first_until: float | None = None,
        finer_until: float | None = None,
        most: int = MAX_ROUNDS,
    ) -> None:
        """More rounds of plain, no-input and no-copy windows, until the shares are settled.

        Times are on this gatherer's clock; a round is only begun if the last one's length fits,
        also where that one was of an earlier call. The first round, without which nothing is
        known, may take until `first_until`. Where the shares are settled before `MIN_ROUNDS`, the
        others only make them finer: until `finer_until`.
        """
        rounds = self.evidence.rounds
        round_s = (3 if with_copy else 2) * self.evidence.sizes.window_s
        if not rounds and self._clock() + round_s > max(until, first_until or until):
            self.evidence.ablation_reason = NO_TIME
            return
        while len(rounds) < most:
            end_s = until
            if not rounds:
                end_s = max(until, first_until or until)
            elif self.settled:
                if len(rounds) >= MIN_ROUNDS:
                    break
                end_s = until if finer_until is None else finer_until
            if rounds and self._clock() + self._next_round_s > end_s:
                break
            self._tell(f"comparing with batches already in memory, round {len(rounds) + 1}")
            began = self._clock()
            done = self._one_round(with_copy=with_copy)
            if done is None:
                break
            rounds.append(done)
            self._round_s = self._clock() - began

    @property
    def _next_round_s(self) -> float:
        """As the last one, and after the first the loop's own queue too, which is dropped then."""
        train = self.evidence.observed.main_loader
        n_dropped = 0
        if len(self.evidence.rounds) == 1 and train is not None and train.settings.num_workers:
            n_dropped = 2 * train.settings.queue_length
        return (self._round_s or 0.0) + n_dropped * self.evidence.sizes.step_s

    def _one_round(self, *, with_copy: bool) -> Round | None:
        modes: list[Mode] = ["plain", "no_input", *(["no_copy"] if with_copy else [])]  # type: ignore[list-item]
        self._rng.shuffle(modes)
        train = self.evidence.observed.main_loader
        if with_copy and train is not None and train.shapes_vary:
            # What is handed out again (`_again`) are the batches that were made ahead last.
            modes.sort(key=lambda mode: mode == "no_input")
        done = {w.mode: w for w in self._measure([self.request(mode) for mode in modes])}
        for window in done.values():
            if window.status in ("failed", "skipped") and window.reason:
                self.evidence.ablation_reason = window.reason
        plain = done.get("plain")
        no_input = done.get("no_input")
        if plain is None or not usable(plain):
            return None
        if no_input is None or not usable(no_input):
            self.evidence.plain.append(plain)
            return None
        return Round(
            plain=plain,
            no_input=no_input,
            no_copy=done.get("no_copy"),
            again=self._again(no_input),
        )

    def _again(self, no_input: WindowDone) -> WindowDone | None:
        """The same batches once more, where the loop had not been given their like before.

        What it then spares is what it does once for each new shape. Not measured on where that was
        seen to be next to nothing.
        """
        if no_input.ready is None or not no_input.ready.n_new:
            return None
        seen = [
            abs(window_times(r.no_input).within_ms - window_times(r.again).within_ms)
            / window_times(r.plain).within_ms
            for r in self.evidence.rounds
            if r.no_input is not None and r.again is not None
        ]
        if len(seen) >= FEWEST_WORTH and max(seen[-FEWEST_WORTH:]) < VERDICT_EDGES[0]:
            return None
        found = self._measure([self.request("no_input", again=True)])
        return found[0] if found and usable(found[0]) else None

    @property
    def settled(self) -> bool:
        """Whether more rounds would not change the verdict."""
        facts = claimed(self.evidence.ablation())
        if facts is None:
            return True
        return all(
            _share_settled(part, facts.plain_ms.value)
            for part in (facts.input_ms, facts.copy_ms)
            if part is not None
        )

    def _measure(self, requests: list[WindowRequest]) -> list[WindowDone]:
        return self._script_run.measure(requests)


def _share_settled(part: Estimate, wall_ms: float) -> bool:
    share = part.scaled(1.0 / wall_ms)
    if not share.bounded:
        return False
    if share.high - share.low <= SETTLED_WIDTH:
        return True
    return not any(share.low < edge < share.high for edge in VERDICT_EDGES)


# A loop whose first steps are slower than those that follow: what to say of it, and why it is.

# Page faults a step from which memory that is given back and fetched again counts: a fault costs
# some 2.5 µs (1,600 a step took 4 ms on recipe mnist; none with glibc's trimming switched off).
MANY_FAULTS = 100
FEWER = 4.0  # fallen by this factor: no longer each step's


def slow_start(evidence: LoopEvidence) -> str | None:
    """What to say where the first plain windows of a diagnosis are slower than all later ones.

    None where they are not (see `attribution.step`).
    """
    earlier, steady = evidence.earlier, evidence.steady
    if not earlier:
        return None
    first_ms, later_ms = (
        fmean(window_times(window).within_ms for window in windows) for windows in (earlier, steady)
    )
    left_out = sum(window.n_steps for window in earlier)
    memory = memory_anew(earlier[0], steady)
    whose = "which a run by itself may not come to" if memory else "which the rest of training has"
    return (
        f"the loop took {fmt.number(first_ms)} ms a step at first "
        f"({fmt.count(left_out, 'step')} in {fmt.count(len(earlier), 'window')}) and "
        f"{fmt.number(later_ms)} from then on; all figures of the step are of the later pace, "
        f"{whose}{memory}"
    )


def memory_anew(first: WindowDone, later: Sequence[WindowDone]) -> str:
    """That the allocator fetched memory again in each step, where page faults show it; else ""."""
    shed = shed_faults(first, later)
    if shed is None:
        return ""
    return (
        ". Until something larger was freed, by measuring here or by a validation, each step gave "
        f"memory back to the system and fetched it again: {shed[0]:,.0f} page faults a step at "
        f"first, {shed[1]:,.0f} later. With MALLOC_TRIM_THRESHOLD_=1000000000 and "
        "MALLOC_MMAP_THRESHOLD_=33554432 in its environment the script keeps it from the start"
    )


def shed_faults(first: WindowDone, later: Sequence[WindowDone]) -> tuple[float, float] | None:
    """Page faults a step at first and later, where most of them are gone; None where not.

    glibc keeps freed memory once a larger block was freed (its mmap threshold grows to that): what
    we do in the loop frees such blocks, and a run of its own may never.
    """
    before = _faults(first)
    # Validation between steps needs memory of its own: the window without any has the fewest.
    known = [faults for window in later if (faults := _faults(window)) is not None]
    if before is None or not known or before < max(MANY_FAULTS, FEWER * min(known)):
        return None
    return before, min(known)


def waited_more_ms(first: WindowDone, later: WindowDone) -> float:
    """How much longer a step of the first window stood ready without a CPU; 0 where not told."""
    told = waited_ms(first), waited_ms(later)
    return max(0.0, told[0] - told[1]) if told[0] is not None and told[1] is not None else 0.0


def _faults(window: WindowDone) -> float | None:
    """Page faults of the training thread, a step."""
    faults = window.cpu.thread_faults if window.cpu is not None else None
    return faults / window.n_steps if faults is not None else None
