"""Plain and ready windows -> by what the loader was seen to hold the step up, and how much of it.

A difference of two noisy means is no cost yet: something must carry it. In the training process a
step lasts as long as its thread computes, is ready without a CPU, and stands still; the loader can
add to each of these, and all but the wait are counted in both kinds of windows:

- it waits for the batch, which a plain window times in each fetch. Receiving a batch (unpickling,
  mapping it) is part of that. A step can't lose more by it: an operation held up for so long holds
  everything behind it up for so long at most. Of a wait, what the thread stood ready without a CPU
  is the loader's only as far as its workers had them (`cpu.without_neighbours`).
- threads of the process stand ready while workers have the CPUs: run-queue delay of all of them, as
  a thread of the same product waits for the slowest.
- the same work takes longer: page faults of new memory, caches and memory bandwidth that workers
  take. All of it is CPU time of the training thread outside its fetches.
- another thread of this interpreter (pin-memory, a background loader's, the loop's own) holds its
  lock: no longer than it runs, or stands in the run queue with it, and a hand-over each time.

CPUs, caches and memory the loader takes from the loop only while it runs itself: for its own CPU
time at most. What the run queue or the CPU time grew by beyond that, other programs did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from loaderdoctor.attribution.ablation import Round
from loaderdoctor.attribution.cpu import queued_ns
from loaderdoctor.attribution.step import MIN_OF_WINDOW, usable
from loaderdoctor.estimate import Estimate, mean, paired_difference
from loaderdoctor.facts.loop import Mechanisms, PageFacts
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone
from loaderdoctor.units import NS_PER_MS

# A thread that asks for the interpreter's lock sleeps, and has to be woken: the loop may lose more
# than the other thread runs. As much again is allowed for that.
LOST_PER_HELD = 2.0

Figure = Callable[[WindowDone], float | None]  # ms of a whole window


def mechanisms(
    rounds: Sequence[Round],
    plain: Sequence[WindowDone],
    observed: Observed,
    *,
    boundary_ms: float = 0.0,
    pages: PageFacts | None = None,
) -> Mechanisms:
    """What can carry the difference of these rounds; the wait is of all `plain` windows.

    `boundary_ms` is the loader's part of an epoch's boundary, spread over the epoch's steps.
    """
    train = frozenset(i for i, x in enumerate(observed.loaders) if x.role == "train")
    names = frozenset(observed.loaders[i].id for i in train)
    waits = [_wait_ms(w, train, names) for w in plain if usable(w) and w.fetches]
    pairs = [
        (r.plain, r.no_input)
        for r in rounds
        if r.no_input is not None and usable(r.plain) and usable(r.no_input)
    ]
    unqueued = _mean(plain, lambda w: _unqueued_ms(w, train, names))
    elsewhere = any(x.in_background for x in observed.loaders if x.role == "train")
    return Mechanisms(
        wait_ms=mean(waits).plus(boundary_ms) if waits else None,  # of one: no interval
        boundary_ms=boundary_ms,
        got_ms=_mean(plain, lambda w: _got_cpu_ms(w, train)),
        queued_ms=_mean(plain, lambda w: _queued_ms(w, train)),
        unqueued_ms=unqueued.plus(boundary_ms) if unqueued is not None else None,
        exposed=observed.device is None and not elsewhere,
        run_queue_ms=_difference(pairs, _run_queue_ms),
        cpu_ms=_difference(pairs, lambda w: _own_cpu_ms(w, train)),
        interpreter_ms=_difference(pairs, _interpreter_ms),
        mapping_ms=pages.mapping_ms if pages is not None else 0.0,
        work_ms=_mean(plain, lambda w: _work_ms(w, train)),
    )


def _wait_ms(window: WindowDone, train: frozenset[int], names: frozenset[str]) -> float:
    """A step's fetches within an epoch: what a boundary costs is added for whole epochs.

    `names` are those of the loaders `train`: a window also has the boundaries of others.
    """
    waited_ns = sum(f.end_ns - f.start_ns for f in window.fetches if f.loader in train)
    own = [b for b in window.boundaries if b.loader in names]
    first_ns = sum(b.first_wait_ns for b in own)
    if len(window.boundary_steps) >= window.n_steps:  # each step makes an iterator
        first_ns = -sum(b.create_ns + b.teardown_ns for b in own)
    return max(0, waited_ns - first_ns) / window.n_steps / NS_PER_MS


def _run_queue_ms(window: WindowDone) -> float | None:
    waited_ns = window.cpu.waited_ns if window.cpu is not None else None
    return None if waited_ns is None else waited_ns / NS_PER_MS


def _own_cpu_ms(window: WindowDone, train: frozenset[int]) -> float | None:
    """Of the thread that trains, outside getting batches and making iterators."""
    ran_ns = window.cpu.thread_ns if window.cpu is not None else None
    got_ms = _got_cpu_ms(window, train)
    if ran_ns is None or got_ms is None:
        return None
    made_ns = sum(b.create_ns + b.teardown_ns for b in window.boundaries)
    return max(0.0, (ran_ns - made_ns) / NS_PER_MS - got_ms)


def _got_cpu_ms(window: WindowDone, train: frozenset[int]) -> float | None:
    """CPU time of getting batches; None where a fetch lacks it."""
    used = [f.cpu_ns for f in window.fetches if f.loader in train]
    known = [ns for ns in used if ns is not None]
    return sum(known) / NS_PER_MS if len(known) == len(used) else None


def _queued_ms(window: WindowDone, train: frozenset[int]) -> float | None:
    """Of getting batches, the thread stood ready without a CPU."""
    ns = queued_ns([f for f in window.fetches if f.loader in train])
    return None if ns is None else ns / NS_PER_MS


def _unqueued_ms(window: WindowDone, train: frozenset[int], names: frozenset[str]) -> float | None:
    queued_ms = _queued_ms(window, train)
    if queued_ms is None:
        return None
    return max(0.0, _wait_ms(window, train, names) * window.n_steps - queued_ms)


def _interpreter_ms(window: WindowDone) -> float | None:
    cpu = window.cpu
    if cpu is None or cpu.python_ns is None or cpu.python_waited_ns is None:
        return None
    # It is put back into the queue with the lock only once it has run for a slice of time.
    queued_ns = min(cpu.python_ns, cpu.python_waited_ns)
    return LOST_PER_HELD * (cpu.python_ns + queued_ns) / NS_PER_MS


def _work_ms(window: WindowDone, train: frozenset[int]) -> float | None:
    cpu = window.cpu
    got_ms = _got_cpu_ms(window, train)
    if cpu is None or cpu.python_ns is None or window.worker_cpu_ns is None or got_ms is None:
        return None
    return (window.worker_cpu_ns + cpu.python_ns) / NS_PER_MS + got_ms


def _mean(windows: Sequence[WindowDone], of_window: Figure) -> Estimate | None:
    """A step, of windows that hold little else; None where fewer than two tell."""
    known = [
        ms / w.n_steps
        for w in windows
        if usable(w) and _is_of_steps(w) and (ms := of_window(w)) is not None
    ]
    return mean(known) if len(known) > 1 else None


def _difference(
    pairs: Sequence[tuple[WindowDone, WindowDone]], of_window: Figure
) -> Estimate | None:
    """A step, plain less ready, paired by round; None where fewer than two rounds tell.

    Of windows that hold little but their steps: what is between them (validation) is no step's.
    """
    known = [
        (a / plain.n_steps, b / ready.n_steps)
        for plain, ready in pairs
        if _is_of_steps(plain) and _is_of_steps(ready)
        if (a := of_window(plain)) is not None and (b := of_window(ready)) is not None
    ]
    if len(known) < 2:
        return None
    return paired_difference([a for a, _ in known], [b for _, b in known])


def _is_of_steps(window: WindowDone) -> bool:
    return sum(window.host_step_ns) >= MIN_OF_WINDOW * (window.end_ns - window.start_ns)


def total(parts: Sequence[Estimate]) -> Estimate:
    """The sum of independent parts: their margins add up as squares, to either side."""
    value = math.fsum(p.value for p in parts)
    below = math.sqrt(math.fsum((p.value - p.low) ** 2 for p in parts))
    above = math.sqrt(math.fsum((p.high - p.value) ** 2 for p in parts))
    n = min((p.n for p in parts), default=0)
    return Estimate(value=value, low=value - below, high=value + above, n=n)
