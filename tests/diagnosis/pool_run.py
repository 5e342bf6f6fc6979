"""A loop with a pool of workers that falls short, batch by batch, on a virtual clock."""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise

import msgspec

from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest
from tests.attribution.builders import observed, window
from tests.diagnosis.simulator import SimulatedRun

PREFETCH = 2
EXPORT_S = 2.0  # of a profiled window, and of reading stacks


class PoolRun(SimulatedRun):
    """Workers make a batch in `batch_ms` each, the rest of a step takes `rest_ms`.

    As the measuring process does it: to open a trial's pool takes `start_s`, twice its queue is
    dropped, a cycle warms up; the loop's own queue, which filled meanwhile, is dropped as well.
    Making a batch varies by `vary`; all of a window by `noise`, as other programs' turns do.
    """

    def __init__(
        self,
        *,
        rest_ms: float,
        batch_ms: float,
        workers: int,
        cpus: float = 16.0,
        start_s: float = 1.0,
        vary: float = 0.1,
        noise: float = 0.05,
        seed: int = 1,
    ) -> None:
        self.rest_ms, self.batch_ms, self.workers, self.cpus = rest_ms, batch_ms, workers, cpus
        self.start_s, self.vary = start_s, vary
        self._draw = random.Random(seed + 100)
        self._switched = False  # whether the loop's own pool stood still before this window
        super().__init__({"plain": self.true_step_ms(workers)}, noise=noise, seed=seed)
        n = max(16, 2 * workers)
        seen = observed(
            step_ms=self.true_ms["plain"],
            n=n,
            steps_per_epoch=300,
            workers=workers,
            device="cuda:0",
        )
        environment = msgspec.structs.replace(seen.environment, usable_cpus=cpus)
        self.observed = msgspec.structs.replace(seen, environment=environment)

    def true_step_ms(self, workers: int) -> float:
        """By the mean, over all steps."""
        if not workers:
            return self.rest_ms + self.batch_ms
        return max(self.rest_ms, self.batch_ms / min(workers, self.cpus))

    def _steps(
        self, workers: int, n_steps: int, pace: float, *, switched: bool
    ) -> tuple[list[float], float]:
        """The last `n_steps` of a pool, ms each, and seconds until then; a new one is empty.

        Where it was not `switched` to, it runs as before: what is dropped takes no time.
        """
        n_before = 2 * PREFETCH * workers + max(3, workers)

        def made_ms() -> float:
            off = self._draw.gauss(0.0, self.vary)
            crowded = max(1.0, workers / self.cpus)
            return self.batch_ms * pace * crowded * max(0.3, 1.0 + off)

        if not workers:
            return [made_ms() + self.rest_ms * pace for _ in range(n_steps)], 0.0
        finished: deque[float] = deque([0.0] * workers)  # when each worker is free, in turn
        taken: deque[float] = deque([0.0] * PREFETCH * workers)  # when a place was free for it
        now, begun = 0.0, [0.0]
        for n in range(n_before + n_steps):
            ready = max(finished.popleft(), taken.popleft()) + made_ms()
            finished.append(ready)
            now = max(now, ready)
            taken.append(now)
            dropped = n < 2 * PREFETCH * workers
            now += 0.0 if dropped else self.rest_ms * pace
            begun.append(now)
        ends = begun[n_before:]
        before_s = ends[0] / 1e3 if switched else (ends[1] - ends[0]) / 1e3
        return [b - a for a, b in pairwise(ends)], before_s

    def _one(self, request: WindowRequest) -> WindowDone:
        pace = max(0.3, 1.0 + self.rng.gauss(0.0, self.noise))
        workers, before_s = self.workers, 0.0
        if request.mode == "no_input":
            steps = [
                self.rest_ms * pace * (1 + self._draw.gauss(0, 0.02))
                for _ in range(request.n_steps)
            ]
            before_s = PREFETCH * self.workers * self.true_ms["plain"] / 1e3
        else:
            if request.mode == "trial" and request.settings is not None:
                asked = request.settings.num_workers
                workers = self.workers if asked is None else asked
                before_s += self.start_s
                before_s += self.start_s if request.measure_boundary else 0.0
            switched = self._switched or request.mode == "trial"
            steps, drop_s = self._steps(workers, request.n_steps, pace, switched=switched)
            before_s += drop_s
        before_s += EXPORT_S if request.mode == "profiled" or request.stack_samples else 0.0
        self.now_s += before_s + sum(steps) / 1e3
        self._switched = request.mode in ("no_input", "trial")
        waits = [max(0.0, x - self.rest_ms) for x in steps]
        done = window(request.mode, steps, waits_ms=waits)
        return msgspec.structs.replace(
            done, id=request.id, trace_path=request.trace_path, device_step_ns=done.host_step_ns
        )
