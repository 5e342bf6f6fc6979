"""What workers made while the loop stood still is no speed of the loop's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.instrument.session.profiling import WindowProfiler
from loaderdoctor.instrument.wire.protocol import Measure, Observed, ToRun
from tests.instrument import watched
from tests.instrument.watched import QueuedChannel, Slow, Trainer, Watched, mean_ms, request, watch

pytestmark = pytest.mark.alone

SAMPLE_MS = 30.0
BATCH_MS = 2 * SAMPLE_MS
WORKERS = 2
STEP_MS = BATCH_MS / WORKERS
# A window of four steps in which two batches lay ready is half as long; a loop that came late
# itself for the batch before waits a little less for the next.
LEAST = 0.65


def starved(n_steps: int = 80) -> None:
    loader: DataLoader[object] = DataLoader(Slow(2 * n_steps, SAMPLE_MS), 2, num_workers=WORKERS)
    trainer = Trainer()
    for x, _ in loader:
        trainer.step(x)


def test_a_window_after_a_long_trace_is_as_slow_as_the_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finish = WindowProfiler.finish

    def slowly(self: WindowProfiler) -> None:
        finish(self)
        time.sleep(10 * STEP_MS / 1e3)

    monkeypatch.setattr(WindowProfiler, "finish", slowly)
    traced = request(1, "profiled", trace_path=str(tmp_path / "trace.json"), drop_batches=False)
    done = watch(starved, traced, request(2, "plain", n_steps=4))
    assert mean_ms(done.windows[1]) > LEAST * STEP_MS


@pytest.mark.parametrize("steps", [1.5, 4.0])
def test_a_window_after_a_pause_is_as_slow_as_the_loop(
    monkeypatch: pytest.MonkeyPatch, steps: float
) -> None:
    @dataclass(slots=True)
    class Thinking(QueuedChannel):
        def receive(self, timeout_s: float) -> ToRun | None:
            if timeout_s > 0.0:
                time.sleep(steps * STEP_MS / 1e3)
            return QueuedChannel.receive(self, timeout_s)

        def send(self, message: object) -> None:
            if isinstance(message, Observed):
                more = [Measure(requests=(request(i, "plain", n_steps=4),)) for i in (2, 3)]
                self.requests.extend(more)
            QueuedChannel.send(self, message)  # type: ignore[arg-type]

    monkeypatch.setattr(watched, "QueuedChannel", Thinking)
    done: Watched = watch(starved, request(1, "plain", n_steps=4))
    assert [window.id for window in done.windows] == [1, 2, 3]
    assert min(mean_ms(window) for window in done.windows) > LEAST * STEP_MS
