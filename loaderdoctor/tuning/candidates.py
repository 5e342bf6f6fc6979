"""Which settings may bring something, given what the present best does: one change at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings, StartMethod
from loaderdoctor.tuning.step_windows import Served

# A loop that waits less than this for its batches gains nothing that could be told from noise.
MIN_WAIT_SHARE = 0.03
# What epochs' beginnings must cost of a whole epoch for workers to be worth keeping.
MIN_BOUNDARY_SHARE = 0.01
MAX_PREFETCH_FACTOR = 16
LAST_WINDOWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLoop:
    """What is known of the loop before anything is tried."""

    own: Settings  # complete: the loader's own
    n_cpus: int  # that this process and its workers may use; of several ranks, their part
    start_method: StartMethod = "fork"  # of workers, where the loader has none yet
    has_accelerator: bool = False
    steps_per_epoch: int | None = None


def candidates(
    loop: TunedLoop, best: Settings, measured: Mapping[Settings, Served]
) -> Iterator[Settings]:
    """Settings one change away from the best so far, most promising first.

    `measured` is what is known of it and of others. Which may be tried is asked elsewhere.
    """
    known = measured[best]
    step = known.step_ms(LAST_WINDOWS)
    if step is None:
        return
    wait_share = known.wait_share(LAST_WINDOWS)
    waits = wait_share >= MIN_WAIT_SHARE
    n = best.num_workers or 0
    if waits:
        enough = workers_for(n, step.value, wait_share, loop.n_cpus)
        if enough != n:
            yield _with_workers(best, enough, loop)
    if loop.has_accelerator and not best.pin_memory:
        yield replace(best, pin_memory=True)
    if waits:
        yield from (_with_workers(best, x, loop) for x in _next_up(n, loop.n_cpus))
        if n and (best.prefetch_factor or DEFAULT_PREFETCH_FACTOR) < MAX_PREFETCH_FACTOR:
            yield replace(best, prefetch_factor=2 * (best.prefetch_factor or 2))
    # Workers take CPU from the step, and batches that cost little are made faster at once.
    if n and (waits or 2 * n > loop.n_cpus):
        batch_ms = _batch_ms(measured)
        for fewer in dict.fromkeys((n // 2, n - 1) if n <= loop.n_cpus else (n // 2,)):
            if batch_ms is None or batch_ms <= step.value * max(fewer, 0.5):
                yield _with_workers(best, fewer, loop)
    if n and not best.persistent_workers and boundary_share(loop, known) >= MIN_BOUNDARY_SHARE:
        yield replace(best, persistent_workers=True)


def workers_for(n: int, step_ms: float, wait_share: float, n_cpus: int) -> int:
    """Workers that make batches as fast as the loop takes them, if they share nothing.

    A loop that waits for n workers is served one batch by each in n steps. One CPU is left to it.
    """
    batch_ms = step_ms * (n if n else wait_share)
    rest_ms = max(step_ms * (1 - wait_share), batch_ms / (2 * n_cpus))
    return max(1, min(n_cpus - 1, math.ceil(batch_ms / rest_ms)))


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


def _batch_ms(measured: Mapping[Settings, Served]) -> float | None:
    """What a worker takes for a batch, at most, by settings that the loop waited for; or None."""
    found = []
    for settings, served in measured.items():
        step, wait_share = served.step_ms(LAST_WINDOWS), served.wait_share(LAST_WINDOWS)
        if step is not None and wait_share >= MIN_WAIT_SHARE:
            found.append(step.value * (settings.num_workers or wait_share))
    return min(found, default=None)


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
