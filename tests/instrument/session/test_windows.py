"""Windows of a running loop: what is measured, what is substituted, and where they end."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings
from tests.instrument.watched import (
    Slow,
    Trainer,
    counting_loop,
    loader_of,
    mean_ms,
    request,
    watch,
)

alone = pytest.mark.alone


@alone
def test_no_input_takes_the_loader_out_and_plain_brings_it_back() -> None:
    loader: DataLoader[object] = DataLoader(Slow(64, 5.0), 4)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 5, lengths),
        request(1, "plain"),
        request(2, "no_input"),
        request(3, "plain"),
    )
    first, without, again = run.windows
    assert [w.status for w in run.windows] == ["ok", "ok", "ok"]
    assert mean_ms(first) > 20.0  # four sleeps of 5 ms
    assert mean_ms(again) > 20.0
    assert mean_ms(without) < mean_ms(first) / 3
    assert lengths == [16] * 5


@alone
def test_a_trial_is_a_loader_with_other_settings_under_the_same_loop() -> None:
    loader: DataLoader[object] = DataLoader(Slow(200, 5.0), 4)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 3, lengths),
        request(1, "plain"),
        request(2, "trial", settings=Settings(num_workers=2), measure_boundary=True),
        request(3, "plain"),
    )
    plain, trial, after = run.windows
    assert trial.status == "ok", trial.reason
    assert mean_ms(trial) < 0.8 * mean_ms(plain)
    assert trial.startup_ns
    assert trial.boundary_ns
    assert mean_ms(after) > 1.2 * mean_ms(trial)
    assert lengths == [50] * 3


@alone
def test_a_trials_own_epochs_end_inside_steps_that_say_so() -> None:
    # Epochs of 10 batches: a window of 30 steps crosses three ends of the trial's own data, each
    # of which starts two workers anew.
    loader: DataLoader[object] = DataLoader(Slow(40, 1.0), 4)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 12, lengths),
        WindowRequest(
            id=1, mode="trial", n_steps=30, settings=Settings(num_workers=2), drop_batches=False
        ),
    )
    (trial,) = run.windows
    assert trial.status == "ok", trial.reason
    assert len(trial.crossed_steps) == 3
    # The loop's own epochs end too, at other steps: its batches are others.
    assert 2 <= len(trial.boundary_steps) <= 3
    at_boundaries = [trial.host_step_ns[i] for i in trial.crossed_steps]
    between = [t for i, t in enumerate(trial.host_step_ns) if i not in trial.crossed_steps]
    assert sorted(at_boundaries)[len(at_boundaries) // 2] > 2 * sorted(between)[len(between) // 2]


def test_a_trial_that_crashes_is_a_result() -> None:
    class Fails(Slow):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if torch.utils.data.get_worker_info() is not None:
                raise RuntimeError("no workers here")
            return super().__getitem__(index)

    loader: DataLoader[object] = DataLoader(Fails(120, 0.1), 2)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 2, lengths),
        request(1, "trial", settings=Settings(num_workers=1)),
        request(2, "plain"),
    )
    trial, plain = run.windows
    assert trial.status == "failed"
    assert "no workers here" in (trial.reason or "")
    assert plain.status == "ok"
    assert lengths == [60, 60]


@alone
def test_only_the_named_loader_is_replaced() -> None:
    fast, slow = loader_of(80), DataLoader(Slow(160, 4.0), 2)
    trainer = Trainer()

    def loop() -> None:
        for (x, _), (z, _) in zip(fast, slow, strict=True):
            trainer.step(x + z)

    ids = [r.id for r in watch(loop).observed.loaders]
    run = watch(
        loop,
        request(1, "plain"),
        request(2, "no_input", loader=ids[0]),
        request(3, "no_input", loader=ids[1]),
    )
    plain, without_fast, without_slow = run.windows
    assert mean_ms(plain) > 8.0  # two sleeps of 4 ms
    assert mean_ms(without_fast) > 8.0
    assert mean_ms(without_slow) < 0.7 * mean_ms(without_fast)


@alone
def test_a_background_thread_gets_substituted_batches_too() -> None:
    from prefetch_generator import BackgroundGenerator

    loader: DataLoader[object] = DataLoader(Slow(400, 2.0), 4)
    trainer = Trainer()

    def loop() -> None:
        for x, _y in BackgroundGenerator(loader):
            trainer.step(x)

    run = watch(loop, request(1, "plain"), request(2, "no_input"), request(3, "plain"))
    plain, without, again = run.windows
    assert mean_ms(without) < mean_ms(plain) / 3
    assert mean_ms(again) > 2 * mean_ms(without)


def test_a_profiled_window_leaves_a_trace_with_one_span_a_step(tmp_path: Path) -> None:
    from loaderdoctor.trace import read_trace

    path = tmp_path / "trace.json"
    loader = loader_of(10)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 12, lengths), request(1, "profiled", 25, trace_path=str(path))
    )
    window = run.windows[0]
    assert window.status == "ok", window.reason
    assert window.trace_path == str(path)
    trace = read_trace(path)
    names = [trace.names[i] for i in trace.spans.name]
    steps = {n for n in names if n.startswith("ProfilerStep#")}
    marks = dict(window.clock_marks)
    assert steps <= set(marks) | {"ProfilerStep#0"}
    # None holds the profiler's own end, which would look like the longest step of all.
    assert len(steps) == window.n_steps >= 25
    assert sum(n == "loaderdoctor: create iterator" for n in names) == len(window.boundaries)


def test_a_profiler_of_the_scripts_own_is_left_alone(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    loader = loader_of(60)
    lengths: list[int] = []
    inner = counting_loop(loader, 1, lengths)

    def loop() -> None:
        with profile(activities=[ProfilerActivity.CPU]):
            inner()

    run = watch(
        loop, request(1, "profiled", trace_path=str(tmp_path / "t.json")), request(2, "plain")
    )
    profiled, plain = run.windows
    assert profiled.status == "failed"
    assert "profiler" in (profiled.reason or "")
    assert plain.status == "ok"


def test_a_window_cut_by_the_end_of_the_script_keeps_its_steps() -> None:
    lengths: list[int] = []
    run = watch(
        counting_loop(loader_of(30), 1, lengths),
        request(1, "plain", 1000),
        request(2, "plain", 10),
    )
    (cut,) = run.windows
    assert cut.status == "short"
    assert 0 < cut.n_steps < 30
    assert run.ended.how == "script-ended"


def test_windows_are_whole_worker_cycles() -> None:
    lengths: list[int] = []
    run = watch(counting_loop(loader_of(60, num_workers=3), 2, lengths), request(1, "plain", 10))
    assert run.windows[0].n_steps == 12


class Stamped(Slow):
    """Notes on the clock of all processes when each sample was made."""

    def __init__(self, n: int, ms: float) -> None:
        super().__init__(n, ms)
        self.n_made = multiprocessing.Value("q", 0)
        self.made_ns = multiprocessing.Array("q", 4096)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        with self.n_made.get_lock():
            self.made_ns[self.n_made.value] = time.perf_counter_ns()
            self.n_made.value += 1
        return sample


@alone
def test_workers_have_filled_their_queues_before_a_window_with_ready_batches() -> None:
    data = Stamped(800, 8.0)
    loader: DataLoader[object] = DataLoader(data, 4, num_workers=1, prefetch_factor=8)
    trainer = Trainer()

    def loop() -> None:
        for x, _y in loader:
            trainer.step(x)
            time.sleep(0.002)

    run = watch(loop, request(1, "plain"), request(2, "no_input", n_steps=60))
    plain, ready = run.windows
    assert ready.status == "ok", ready.reason
    made_ns = data.made_ns[: data.n_made.value]
    assert any(plain.start_ns <= at < plain.end_ns for at in made_ns)
    # Eight batches of four were outstanding, of which 120 ms hold 15 samples; one batch is
    # forgiven to a worker that got no CPU.
    assert sum(ready.start_ns <= at < ready.end_ns for at in made_ns) <= 4
