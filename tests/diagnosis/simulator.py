"""A simulated run with known cost and noise, in place of a measuring process."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from loaderdoctor.instrument.wire.measured import CopyRecord, CpuRecord, StackRecord
from loaderdoctor.instrument.wire.protocol import Ended, Note, Observed, WindowDone, WindowRequest
from tests.attribution.builders import observed, window


class SimulatedRun:
    """Answers window requests from a table of true step times, with noise and a clock."""

    def __init__(
        self,
        true_ms: Mapping[str, float],
        *,
        trial_ms: Callable[[Mapping[str, Any]], float] | None = None,
        noise: float = 0.02,
        drift_per_window: float = 0.0,
        seed: int = 1,
        device: str | None = None,
        ends_after: int | None = None,
        failing: frozenset[str] = frozenset(),
        n_threads: int = 1,
        waiting_threads: float = 0.0,
        n_slow: int = 0,
        slow: float = 1.0,
    ) -> None:
        """The first `n_slow` windows, whatever is measured in them, take `slow` times as long."""
        self.true_ms = dict(true_ms)
        self.trial_ms = trial_ms
        self.rng = random.Random(seed)
        self.n_slow, self.slow = n_slow, slow
        self.noise, self.drift = noise, drift_per_window
        self.now_s = 0.0
        self.asked: list[WindowRequest] = []
        self.stopped: bool | None = None
        self.n_samples = 400  # of the stack, in each window of them
        self.ends_after = ends_after
        self.failing = failing
        self.ended: Ended | None = None
        self.notes: list[Note] = []
        seen = observed(step_ms=self.true_ms["plain"], device=device)
        environment = msgspec.structs.replace(seen.environment, n_threads=n_threads)
        self.observed = msgspec.structs.replace(seen, environment=environment)
        wall_ns = 10**9
        waited_ns = round(waiting_threads * wall_ns)
        self.cpu = CpuRecord(wall_ns=wall_ns, main_ns=wall_ns, waited_ns=waited_ns)

    def wait_observed(self, timeout_s: float) -> Observed:
        return self.observed

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: Callable[[Any], None] | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        done = []
        for request in requests:
            if self.ends_after is not None and len(self.asked) >= self.ends_after:
                self.ended = Ended(how="script-ended", exit_code=0, n_steps=len(self.asked))
                break
            self.asked.append(request)
            done.append(self._one(request))
        return done

    def stop(self, to_end: bool = False) -> None:
        self.stopped = to_end

    def _one(self, request: WindowRequest) -> WindowDone:
        if request.mode in self.failing:
            return WindowDone(id=request.id, mode=request.mode, status="failed", reason="broken")
        if request.mode == "trial":
            assert self.trial_ms is not None and request.settings is not None
            true = self.trial_ms(request.settings.changed())
        else:
            true = self.true_ms.get(request.mode, self.true_ms["plain"])
        true *= (1.0 + self.drift) ** len(self.asked)
        true *= self.slow if len(self.asked) <= self.n_slow else 1.0
        # No time is taken of a window of stack samples: it has none of the noise drawn for others.
        noise = 0.0 if request.stack_samples else self.rng.gauss(0.0, self.noise)
        mean = true * (1.0 + noise)
        self.now_s += 1.5 * mean * request.n_steps / 1e3
        copies = CopyRecord(n_hits=2 * request.n_steps)
        record = window(request.mode, [mean] * request.n_steps, copies=copies)
        return WindowDone(
            **{
                f: getattr(record, f)
                for f in record.__struct_fields__
                if f not in ("id", "trace_path", "cpu", "stacks")
            },
            cpu=self.cpu,
            stacks=StackRecord(n=self.n_samples) if request.stack_samples else None,
            id=request.id,
            trace_path=request.trace_path,
        )
