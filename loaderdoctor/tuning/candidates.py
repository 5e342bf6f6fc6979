"""Which settings may bring something, given what the present best does; what came of them.

Candidates are one change away from the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from loaderdoctor.estimate import Estimate
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings, StartMethod
from loaderdoctor.tuning.step_windows import PACE_WINDOWS, Served

State = Literal["watching", "trying", "resting", "confirming", "returning", "done"]
Verdict = Literal["kept", "slower", "not-separable", "too-dear", "failed", "refused"]

# A loop that waits less than this for its batches gains nothing that could be told from noise.
MIN_WAIT_SHARE = 0.03
# A step predicted to be this much of the present one is worth a trial out of turn.
WORTH_IT = 0.97
# What epochs' beginnings must cost of a whole epoch for workers to be worth keeping.
MIN_BOUNDARY_SHARE = 0.01
# A batch that takes less of a step to make needs no worker.
INSTANT = 0.05
# So many more workers than would just do, if they share nothing: batches differ.
SPARE_WORKERS = 1.1
MAX_PREFETCH_FACTOR = 16
LAST_WINDOWS = 4
# What opening a pool takes, until one was opened: a forked worker 30 ms on two cores.
FORKED_WORKER_MS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Settings to go over to: at the next batch, or where the next epoch begins."""

    settings: Settings  # complete
    at_epoch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One setting that was tried, or would have been."""

    settings: Settings  # complete
    verdict: Verdict
    at_step: int
    step_ms: Estimate | None = None
    against_ms: Estimate | None = None  # the best before it
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What tuning came to so far."""

    state: State
    own: Settings
    chosen: Settings
    chosen_at_step: int | None  # None: the loop's own settings stay
    proven: bool  # held against the loop's own once more
    own_ms: Estimate | None
    chosen_ms: Estimate | None
    n_steps: int
    lost_steps: float  # to trying, in steps of the pace that the run has
    lost_ms: float
    run_ms: float  # since tuning began
    saved_ms: float  # against the loop's own pace, of the steps that were made; trying included
    tried: tuple[Tried, ...]


def tried(
    settings: Settings, verdict: Verdict, at_step: int, now: Served, was: Served, reason: str
) -> Tried:
    """A trial that came to this, beside the last windows of what served before it."""
    return Tried(
        settings=settings,
        verdict=verdict,
        at_step=at_step,
        step_ms=now.step_ms(),
        against_ms=was.step_ms(PACE_WINDOWS),
        reason=reason,
    )


def in_vain(settings: Settings, trials: Iterable[Tried]) -> bool:
    """Whether the same with workers that are kept was tried, and was no better."""
    kept = replace(settings, persistent_workers=True)
    worse = ("slower", "not-separable", "too-dear")
    return kept != settings and any(x.settings == kept and x.verdict in worse for x in trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLoop:
    """What is known of the loop before anything is tried."""

    own: Settings  # complete: the loader's own
    n_cpus: int  # that this process and its workers may use; of several ranks, their part
    start_method: StartMethod = "fork"  # of workers, where the loader has none yet
    has_accelerator: bool = False
    steps_per_epoch: int | None = None
    worker_start_ms: float | None = None  # what opening a pool takes for each worker, where seen


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost:
    """What making a batch takes, mean of the latest."""

    make_ms: float
    cpu_ms: float  # of it; the rest waits, for storage or for a CPU


def candidates(
    loop: TunedLoop,
    best: Settings,
    measured: Mapping[Settings, Served],
    cost: BatchCost | None = None,
) -> Iterator[Settings]:
    """Settings one change away from the best so far, most promising first.

    `measured` is what is known of it and of others, `cost` is of the best's batches, where known.
    Which may be tried is asked elsewhere.
    """
    known = measured[best]
    step = known.step_ms(LAST_WINDOWS)
    if step is None:
        return
    wait_share = known.wait_share(LAST_WINDOWS)
    waits = wait_share >= MIN_WAIT_SHARE
    rest_ms = step.value * (1 - wait_share)
    n = best.num_workers or 0
    boundary = boundary_share(loop, known)
    keeps = n > 0 and not best.persistent_workers and boundary >= MIN_BOUNDARY_SHARE
    if n and cost is not None and waits:
        none = _with_workers(best, 0, loop)
        if predicted_ms(loop, none, best, known, cost) < WORTH_IT * step.value:
            yield none  # handing a batch over costs more than making it
    if keeps and boundary > wait_share:
        yield replace(best, persistent_workers=True)
    if waits:
        enough = workers_for(n, step.value, wait_share, loop.n_cpus, cost)
        if enough != n:
            yield from _opened(best, enough, loop, rest_ms)
    if loop.has_accelerator and not best.pin_memory:
        yield replace(best, pin_memory=True)
    if waits:
        # The loop may do with less than a CPU of its own.
        all_cpus = min(loop.n_cpus, _needed(n, step.value, wait_share, loop.n_cpus, cost))
        more = (all_cpus,) if all_cpus > n else ()
        for up in (*more, *_next_up(n, loop.n_cpus)):
            yield from _opened(best, up, loop, rest_ms)
        if n and (best.prefetch_factor or DEFAULT_PREFETCH_FACTOR) < MAX_PREFETCH_FACTOR:
            yield replace(best, prefetch_factor=2 * (best.prefetch_factor or 2))
    # Workers take CPU from the step, and batches that cost little are made faster at once.
    if n and (waits or 2 * n > loop.n_cpus):
        batch_ms = _batch_ms(measured)
        for fewer in dict.fromkeys(_fewer(n, step.value, loop.n_cpus, cost)):
            if batch_ms is None or batch_ms <= step.value * max(fewer, 0.5):
                yield _with_workers(best, fewer, loop)
    if keeps:
        yield replace(best, persistent_workers=True)


def on_the_way(best: Settings, wanted: Settings) -> Iterator[Settings]:
    """Fewer workers than `wanted`, the most first: twice those of the best, and two, at least."""
    n = (wanted.num_workers or 0) // 2
    while n >= max(2, 2 * (best.num_workers or 0)):
        yield replace(wanted, num_workers=n)
        n //= 2


def predicted_ms(
    loop: TunedLoop, settings: Settings, best: Settings, known: Served, cost: BatchCost
) -> float:
    """A step with these, at best: workers share nothing, and handing batches over is free.

    `known` is of `best`, whose steps have been seen, and `cost` of its batches.
    """
    step = known.step_ms(LAST_WINDOWS)
    assert step is not None
    rest_ms = step.value * (1 - known.wait_share(LAST_WINDOWS))
    # Workers that outnumber CPUs wait for one another, by so much at most.
    alone_ms = cost.make_ms * min(1.0, loop.n_cpus / (1 + (best.num_workers or 0)))
    alone_ms = max(alone_ms, cost.cpu_ms)
    n = settings.num_workers or 0
    return max(rest_ms, alone_ms / n) if n else rest_ms + alone_ms


def crowds(loop: TunedLoop, settings: Settings, best: Settings, cost: BatchCost) -> bool:
    """Whether more workers than `best` has may fight for CPUs with one another and the loop."""
    n, busy = settings.num_workers or 0, cost.cpu_ms / max(cost.make_ms, 1e-6)
    return n > (best.num_workers or 0) and 1 + n * busy > loop.n_cpus


def workers_for(
    n: int, step_ms: float, wait_share: float, n_cpus: int, cost: BatchCost | None = None
) -> int:
    """Workers that make batches as fast as the loop takes them, as far as there are CPUs for them.

    A loop that waits for n workers is served one batch by each in n steps, where no `cost` says
    it better. One CPU is left to the loop; workers that wait for storage share one, and up to
    twice as many as CPUs are taken.
    """
    busy = 1.0
    if cost is not None and cost.make_ms > 0:
        busy = min(1.0, max(cost.cpu_ms / cost.make_ms, 1e-3))
    most = min(2 * n_cpus, math.floor((n_cpus - 1) / busy))
    return max(1, min(most, _needed(n, step_ms, wait_share, n_cpus, cost)))


def _needed(n: int, step_ms: float, wait_share: float, n_cpus: int, cost: BatchCost | None) -> int:
    """The same if they share nothing."""
    batch_ms = cost.make_ms if cost is not None else step_ms * (n if n else wait_share)
    rest_ms = max(step_ms * (1 - wait_share), batch_ms / (2 * n_cpus), 1e-3)
    return max(1, math.ceil(SPARE_WORKERS * batch_ms / rest_ms))


def boundary_share(loop: TunedLoop, known: Served) -> float:
    """What an epoch's beginning costs beyond a step, as a share of the epoch; 0 where not known."""
    step, boundary = known.step_ms(), known.boundary_ms
    if step is None or boundary is None or not loop.steps_per_epoch:
        return 0.0
    extra = max(0.0, boundary - step.value)
    return extra / (extra + loop.steps_per_epoch * step.value)


def _next_up(n: int, n_cpus: int) -> tuple[int, ...]:
    """More workers: twice as many, or all that there are CPUs for; then twice as many as CPUs.

    Those that wait for storage need no CPU: four beside two CPUs made a step of 13.6 ms one of 8.4.
    """
    more = max(1, 2 * n)
    if more <= n_cpus:
        return (more,)
    return (n_cpus,) if n < n_cpus else ((2 * n_cpus,) if n < 2 * n_cpus else ())


def _fewer(n: int, step_ms: float, n_cpus: int, cost: BatchCost | None) -> Iterator[int]:
    """Fewer workers: as many as are needed, where that is known and CPUs are short; then half."""
    if cost is not None and n >= n_cpus:
        if cost.make_ms < INSTANT * step_ms:
            yield 0
        yield min(n - 1, workers_for(n, step_ms, 0.0, n_cpus, cost))
    yield n // 2
    if n <= n_cpus:
        yield n - 1


def _batch_ms(measured: Mapping[Settings, Served]) -> float | None:
    """What a worker takes for a batch, at most, by settings that the loop waited for; or None."""
    found = []
    for settings, served in measured.items():
        step, wait_share = served.step_ms(LAST_WINDOWS), served.wait_share(LAST_WINDOWS)
        if step is not None and wait_share >= MIN_WAIT_SHARE:
            found.append(step.value * (settings.num_workers or wait_share))
    return min(found, default=None)


def _opened(best: Settings, n: int, loop: TunedLoop, step_ms: float) -> Iterator[Settings]:
    """So many workers; the first that the loop gets stay, if epochs are short for starting them."""
    made = _with_workers(best, n, loop)
    epoch_ms = step_ms * (loop.steps_per_epoch or 0)
    if not best.num_workers and 0 < epoch_ms * MIN_BOUNDARY_SHARE < n * FORKED_WORKER_MS:
        yield replace(made, persistent_workers=True)
    yield made


def _with_workers(settings: Settings, n: int, loop: TunedLoop) -> Settings:
    """The same with so many workers; what means nothing without workers goes, or comes anew."""
    if not n:
        return Settings(num_workers=0, pin_memory=settings.pin_memory)
    if settings.num_workers:
        return replace(settings, num_workers=n)
    own = loop.own
    return Settings(
        num_workers=n,
        pin_memory=settings.pin_memory,
        prefetch_factor=own.prefetch_factor or DEFAULT_PREFETCH_FACTOR,
        persistent_workers=own.persistent_workers or False,
        in_order=True,
        start_method=own.start_method or loop.start_method,
    )
