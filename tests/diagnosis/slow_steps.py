"""A starved loop whose windows cost what they cost a real one: drops, starts, waits."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest
from tests.attribution.builders import observed, window
from tests.diagnosis.simulator import SimulatedRun

PREFETCH = 2
START_S = 0.6  # interpreter, pool and first batch of a trial's workers, opened twice
EXPORT_S = 1.0  # of a profiled window


class StarvedRun(SimulatedRun):
    """`step_ms` a step, of which computing takes a third; batches are made in the loop itself.

    Workers share the making among them. Steps vary by `vary` each, neighbours alike, and windows by
    `noise`; after a switch queues are used up before a window begins.
    """

    def __init__(
        self, step_ms: float, *, vary: float = 0.1, noise: float = 0.02, seed: int = 1
    ) -> None:
        self.rest_ms, self.batch_ms, self.vary = step_ms / 3, step_ms * 2 / 3, vary
        super().__init__(
            {"plain": step_ms, "no_input": self.rest_ms},
            trial_ms=self.with_settings,
            noise=noise,
            seed=seed,
        )
        seen = observed(step_ms=step_ms)
        environment = msgspec.structs.replace(seen.environment, usable_cpus=8.0)
        self.observed = msgspec.structs.replace(seen, environment=environment)
        self._steps = random.Random(seed + 100)
        self._mode = "plain"

    def with_settings(self, changed: Mapping[str, Any]) -> float:
        """What a step takes, milliseconds."""
        workers = int(changed.get("num_workers") or 0)
        if changed.get("background") == "host":
            return max(self.rest_ms, self.batch_ms) * 1.05
        if not workers:
            return self.true_ms["plain"]
        return max(self.rest_ms, self.batch_ms / workers)

    def _one(self, request: WindowRequest) -> WindowDone:
        done = super()._one(request)
        now_s = self.now_s - 1.5 * sum(done.host_step_ns) / 1e9
        mean_ms = sum(done.host_step_ns) / done.n_steps / 1e6
        alike, off = 0.5, 0.0
        steps = []
        for _ in range(request.n_steps):
            off = alike * off + self._steps.gauss(0.0, self.vary * (1 - alike**2) ** 0.5)
            steps.append(mean_ms * max(0.1, 1 + off))
        starved = request.mode in ("plain", "profiled")
        waits = [self.batch_ms] * request.n_steps if starved else [0.1] * request.n_steps
        made = window(request.mode, steps, waits_ms=waits)
        warm = 3
        workers = request.settings.num_workers or 0 if request.settings is not None else 0
        warm += 2 * PREFETCH * workers + workers
        self.now_s = now_s + sum(steps) / 1e3 + warm * mean_ms / 1e3
        self.now_s += START_S + self.batch_ms / 1e3 if request.mode == "trial" else 0.0
        self.now_s += EXPORT_S if request.mode == "profiled" else 0.0
        return msgspec.structs.replace(
            done,
            host_step_ns=made.host_step_ns,
            fetches=made.fetches,
            end_ns=made.end_ns,
            start_ns=made.start_ns,
        )
