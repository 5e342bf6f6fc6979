"""A training loop with workers, step by step: queues, CPUs that are shared, hand-overs, noise.

Batch b is made by worker b mod n, which begins when it is free and b is within the queue's length
of what the loop has taken. More processes than CPUs slow each other down, the step too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings
from loaderdoctor.tuning import Tuner
from loaderdoctor.tuning.candidates import BatchCost, TunedLoop
from loaderdoctor.tuning.step_windows import Step

BEAT_MS = 2000.0


@dataclass
class Machine:
    """What a loop costs; ms."""

    compute_ms: float
    fetch_ms: float  # of one batch, alone on a CPU
    n_cpus: int = 8
    cpu_share: float = 1.0  # of making a batch that burns CPU; the rest waits on storage
    step_cpu: float = 1.0  # CPUs that the step itself takes
    copy_ms: float = 0.0  # of a batch that is not pinned
    start_ms: float = 25.0  # of one worker, on the training thread
    noise: float = 0.05
    seed: int = 0
    has_accelerator: bool = False
    fails: Callable[[Settings], bool] = lambda settings: False
    slower_from: tuple[int, float] = (2**62, 1.0)  # a step, and how much longer fetches take then
    drift: Callable[[float], float] = lambda now: 1.0  # how much longer everything takes then
    now: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def jitter(self) -> float:
        """Around 1, never far below, sometimes well above."""
        return max(0.5, self.random.gauss(1.0, self.noise)) * self.drift(self.now)

    def crowded(self, settings: Settings) -> float:
        """How much longer everything takes that needs a CPU."""
        needed = self.step_cpu + (settings.num_workers or 0) * self.cpu_share
        return max(1.0, needed / self.n_cpus)


@dataclass
class Pool:
    """Workers with certain settings, from when they were started."""

    settings: Settings
    free_at: list[float]
    ready: list[float] = field(default_factory=list)  # when each batch is there


class SimulatedLoop:
    """The loop; `step` makes one and says what the tuner would be told."""

    def __init__(self, machine: Machine, own: Settings, steps_per_epoch: int) -> None:
        self.machine, self.own, self.steps_per_epoch = machine, own, steps_per_epoch
        self.now = 0.0
        self.n = 0
        self.wanted = own
        self.at_epoch = False  # what is wanted waits for the next
        self.failed: Settings | None = None
        self._left: list[float] = []  # of the pool before: when its batches are there
        self._left_settings = own
        self._costs: dict[Settings, BatchCost] = {}
        self._pool = self._open(own)

    def _open(self, settings: Settings) -> Pool:
        n = settings.num_workers or 0
        self.now += n * self.machine.start_ms
        return Pool(settings=settings, free_at=[self.now] * n)

    def _fetch_ms(self) -> float:
        at, factor = self.machine.slower_from
        return self.machine.fetch_ms * (factor if self.n >= at else 1.0) * self.machine.jitter()

    def step(self) -> Step:
        """One step of the loop: get a batch, compute."""
        began = self.machine.now = self.now
        first = self.n % self.steps_per_epoch == 0
        self.failed = None
        if self.wanted != self._pool.settings and (first or not self.at_epoch):
            self._switch(begins=first)
        elif first and self.n and not self._pool.settings.persistent_workers:
            self._pool = self._open(self._pool.settings)
        self._feed()
        settings = self._pool.settings
        asked = self.now
        if self._left:
            self.now = max(self.now, self._left.pop(0))
            settings = self._left_settings
        elif settings.num_workers:
            self.now = max(self.now, self._pool.ready.pop(0))
        else:
            self.now += self._fetch_ms()
        wait = self.now - asked
        copy = 0.0 if settings.pin_memory else self.machine.copy_ms
        crowded = self.machine.crowded(self._pool.settings)
        self.now += (self.machine.compute_ms * crowded + copy) * self.machine.jitter()
        self.n += 1
        return Step(
            ms=self.now - began,
            wait_ms=wait,
            serving=settings,
            settled=not self._left and settings == self._pool.settings,
            first=first,
        )

    def cost(self, settings: Settings) -> BatchCost | None:
        """Of their latest batches, known while they serve; beside a busy CPU they take longer."""
        if settings == self._pool.settings and not self._left:
            at, factor = self.machine.slower_from
            ms = self.machine.fetch_ms * (factor if self.n >= at else 1.0)
            busy, crowded = self.machine.cpu_share, self.machine.crowded(settings)
            made = BatchCost(make_ms=ms * (1 + busy * (crowded - 1)), cpu_ms=ms * busy)
            self._costs[settings] = made
        return self._costs.get(settings)

    def _switch(self, *, begins: bool) -> None:
        if self.machine.fails(self.wanted):
            self.failed, self.wanted = self.wanted, self._pool.settings
            return
        if not begins:
            self._left, self._left_settings = self._left + self._pool.ready, self._pool.settings
        self._pool = self._open(self.wanted)

    def _feed(self) -> None:
        """Workers begin what there is room for."""
        pool, n = self._pool, self._pool.settings.num_workers or 0
        length = n * (pool.settings.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
        machine = self.machine
        crowded = 1 + machine.cpu_share * (machine.crowded(pool.settings) - 1)
        while len(pool.ready) < length:
            worker = pool.free_at.index(min(pool.free_at))
            begins = max(pool.free_at[worker], self.now)
            pool.free_at[worker] = begins + self._fetch_ms() * crowded
            pool.ready.append(max([pool.free_at[worker], *pool.ready[-1:]]))

    def tuned(
        self,
        n_steps: int,
        *,
        refusal: Callable[[Settings], str | None] = lambda settings: None,
        each: Callable[[Tuner, Step], None] | None = None,
        together: bool = False,
    ) -> tuple[Tuner, list[Step]]:
        """Run with a tuner; `each` sees it after each step.

        `together`: it is told of steps when it has to be, and at beats, as a Recorder does.
        """
        loop = TunedLoop(
            own=self.own,
            n_cpus=self.machine.n_cpus,
            has_accelerator=self.machine.has_accelerator,
            steps_per_epoch=self.steps_per_epoch,
            worker_start_ms=self.machine.start_ms if self.own.num_workers else None,
        )
        tuner = Tuner(loop, refusal, self.cost)
        steps: list[Step] = []
        untold: list[Step] = []
        told_in, beat_at = 1, self.now + BEAT_MS
        for n in range(1, n_steps + 1):
            step = self.step()
            steps.append(step)
            untold.append(step)
            told_in -= 1
            if together and n < n_steps and told_in > 0 and not step.first and self.now < beat_at:
                continue
            if self.now >= beat_at:
                beat_at = self.now + BEAT_MS
            wanted = None
            if step.first and untold[:-1]:
                wanted = tuner.step(summed(untold[:-1]))
                untold = [step]
            step, untold = summed(untold), []
            if self.failed is not None:
                wanted = tuner.failed(self.failed, "a worker died")
            wanted = tuner.step(step) or wanted
            if wanted is not None:
                self.wanted, self.at_epoch = wanted.settings, wanted.at_epoch
            told_in = 1 if step.first else tuner.n_quiet
            if each is not None:
                each(tuner, step)
        return tuner, steps


def drifting(share: float, over_ms: float, seed: int) -> Callable[[float], float]:
    """A machine's pace by time: normal in its logarithm, alike for about so long."""
    drawn = random.Random(seed)
    waves = [
        (math.tan(math.pi * (drawn.random() - 0.5)) / over_ms, math.tau * drawn.random())
        for _ in range(32)
    ]
    size = share * math.sqrt(2 / len(waves))
    return lambda now: math.exp(size * sum(math.cos(at * now + phase) for at, phase in waves))


def summed(steps: list[Step]) -> Step:
    """Those in a row as one."""
    last = steps[-1]
    return last._replace(
        ms=sum(step.ms for step in steps),
        wait_ms=sum(step.wait_ms for step in steps),
        n=len(steps),
    )


def pace(machine: Machine, settings: Settings, steps_per_epoch: int, n_steps: int = 2000) -> float:
    """Milliseconds a step in a long run with these settings, epochs' beginnings included."""
    again = Machine(**{k: v for k, v in vars(machine).items() if k != "random"} | {"seed": 1234})
    loop = SimulatedLoop(again, settings, steps_per_epoch)
    began = loop.now
    for _ in range(n_steps):
        loop.step()
    return (loop.now - began) / n_steps


def best_of(machine: Machine, own: Settings, steps_per_epoch: int) -> tuple[Settings, float]:
    """The fastest of a whole grid."""
    grid = [Settings(num_workers=0, pin_memory=p) for p in (False, True)] + [
        Settings(
            num_workers=n,
            prefetch_factor=k,
            persistent_workers=w,
            pin_memory=p,
            in_order=True,
            start_method="fork",
        )
        for n in range(1, 2 * machine.n_cpus + 1)
        for k in (2, 4, 8)
        for w in (False, True)
        for p in (False, True)
        if machine.has_accelerator or not p
    ]
    paces = {x: pace(machine, x, steps_per_epoch) for x in [own, *grid]}
    best = min(paces, key=paces.__getitem__)
    return best, paces[best]
