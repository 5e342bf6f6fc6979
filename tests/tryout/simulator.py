"""A simulated run with known costs and seeded noise, on a virtual clock: no process, no waiting."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.wire.protocol import Ended, Note, Observed, WindowDone, WindowRequest
from loaderdoctor.instrument.wire.records import (
    Environment,
    LoaderRecord,
    SafetyRecord,
    TensorRecord,
)
from loaderdoctor.settings import Settings

BATCH = 64


def observed(
    *,
    step_ms: float = 10.0,
    own: Settings | None = None,
    usable_cpus: float = 2.0,
    device: str | None = None,
    steps_per_epoch: int | None = 100,
    safety: SafetyRecord | None = None,
    shm_free_bytes: int | None = 2**32,
    accumulation: int = 1,
) -> Observed:
    """A warm loop with one loader."""
    own = own or Settings(num_workers=0)
    loader = LoaderRecord(
        id="train.py:41",
        role="train",
        settings=own,
        n_samples=6400,
        batch_size=BATCH,
        steps_per_epoch=steps_per_epoch,
        batch=(
            TensorRecord(path="[0]", shape=(BATCH, 1, 28, 28), dtype="float32", n_bytes=200_704),
            TensorRecord(path="[1]", shape=(BATCH,), dtype="int64", n_bytes=512),
        ),
        safety=safety or SafetyRecord(),
    )
    environment = Environment(
        torch="2.14.1",
        python="3.11.2",
        platform="Linux",
        device_name="GPU" if device else None,
        device_memory_bytes=None,
        cuda=None,
        usable_cpus=usable_cpus,
        n_threads=1,
        memory_available_bytes=2**34,
        shm_free_bytes=shm_free_bytes,
        open_files_limit=20_000,
        start_method="fork",
        host="here",
    )
    return Observed(
        definition="one batch of train.py:41",
        step_ns=(int(step_ms * 1e6),) * 20,
        loaders=(loader,),
        transfers=(),
        boundaries=(),
        n_steps_so_far=20,
        device=device,
        batches_per_cycle=max(1, own.num_workers or 0) * accumulation,
        environment=environment,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What one setting really costs."""

    step_ms: float
    startup_s: float = 0.0
    boundary_ms: float = 0.0
    crash: str | None = None
    dies: bool = False  # takes the measuring process with it
    hangs: bool = False


@dataclass(slots=True)
class SimulatedRun:
    """Answers every request from `truth`; time passes on `now` only.

    `noise` is the relative spread of a window's mean; `drift_per_s` makes everything slower with
    time, as a warming machine does. `slow_start` multiplies the first two windows of all.
    """

    truth: Callable[[Settings], Truth]
    own: Truth
    seed: int = 0
    noise: float = 0.0
    drift_per_s: float = 0.0
    slow_start: float = 1.0
    plain_factor: float = 1.0  # of the loop as it is, against its loader opened again
    interrupt_after: int | None = None
    ends_after: int | None = None
    own_reopens: bool = True
    now: float = 0.0
    log: list[WindowRequest] = field(default_factory=list)
    observed: Observed | None = None
    ended: Ended | None = None
    notes: list[Note] = field(default_factory=list)
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def clock(self) -> float:
        return self.now

    def stop(self, to_end: bool = False) -> None:
        self.ended = Ended(how="stopped", exit_code=0, n_steps=0)

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: Any = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        return [done for request in requests if (done := self._one(request, timeout_s)) is not None]

    def _one(self, request: WindowRequest, timeout_s: float | None) -> WindowDone | None:
        self.log.append(request)
        if self.interrupt_after is not None and len(self.log) > self.interrupt_after:
            raise KeyboardInterrupt
        if self.ends_after is not None and len(self.log) > self.ends_after:
            self.ended = Ended(how="script-ended", exit_code=0, n_steps=0)
            return None
        as_is = request.settings is None or not request.settings.changed()
        truth = self.own if as_is or request.settings is None else self.truth(request.settings)
        if request.mode == "trial" and as_is and not self.own_reopens:
            return WindowDone(id=request.id, mode="trial", status="skipped", reason="one pass")
        if truth.dies:
            self.ended = Ended(how="script-failed", exit_code=139, n_steps=0)
            return None
        if truth.hangs:
            self.now += timeout_s or 120.0
            raise RunError("no window ended in time")
        if truth.crash is not None:
            return WindowDone(id=request.id, mode="trial", status="failed", reason=truth.crash)
        factor = 1 + self._rng.gauss(0, self.noise) + self.drift_per_s * self.now
        if len(self.log) <= 2:
            factor *= self.slow_start
        factor *= self.plain_factor if request.mode == "plain" else 1.0
        step_ns = int(truth.step_ms * factor * 1e6)
        reopened = request.mode == "trial"
        boundary_ms = truth.boundary_ms if request.measure_boundary else 0.0
        self.now += (truth.startup_s if reopened else 0.0) + boundary_ms / 1000
        self.now += (request.n_steps + 2) * step_ns / 1e9
        if request.trace_path:
            self.now += 0.5
        return WindowDone(
            id=request.id,
            mode=request.mode,
            status="ok",
            n_steps=request.n_steps,
            n_samples=request.n_steps * BATCH,
            host_step_ns=(step_ns,) * request.n_steps,
            startup_ns=int(truth.startup_s * 1e9) if reopened else None,
            boundary_ns=int(truth.boundary_ms * 1e6) if request.measure_boundary else None,
            trace_path=request.trace_path,
            host_bytes=2**30,
        )
