"""What recording costs a step or a batch, counted rather than timed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.instrument.wire.record_file import RecordWriter
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import fetch_clock, worker
from loaderdoctor.instrument.workers.worker import MAX_UNREAD, SENT_WITHIN_S, WorkerWrapper
from tests.instrument.watched import Trainer, loader_of, watch

# Our Python functions entered in a plain step, on a machine without an accelerator. Each costs 0.1
# to 0.3 µs; waking the driver costs nine of them (it was 23 a step when it was woken each step).
MAX_CALLS_A_STEP = 16


class Clock:
    """CPU clocks that run at a fixed share of wall time; counts how often they are read."""

    def __init__(self) -> None:
        self.now_ns = self.n_reads = 0

    def thread_time_ns(self) -> int:
        self.n_reads += 1
        return self.now_ns * 3 // 4

    def process_time_ns(self) -> int:
        self.n_reads += 1
        return self.now_ns * 3 // 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    names = SimpleNamespace(
        perf_counter_ns=lambda: made.now_ns,
        thread_time_ns=made.thread_time_ns,
        process_time_ns=made.process_time_ns,
    )
    monkeypatch.setattr(worker, "time", names)
    return made


def cpu_of_batches(
    wrapper: WorkerWrapper, clock: Clock, lengths: list[int]
) -> Iterator[tuple[int, int]]:
    for wall_ns in lengths:
        wrapper._begin([0])
        clock.now_ns += wall_ns
        yield wrapper._cpu_ns(wall_ns)


def wrapper_in(folder: Path) -> WorkerWrapper:
    wrapper = WorkerWrapper(RecordWriter(folder, "worker"), 1, 0)
    wrapper._lines.begin = lambda *_: None  # type: ignore[method-assign]  # no thread for this
    return wrapper


@contextmanager
def sending(wrapper: WorkerWrapper, send: Callable[[bytes], None]) -> Iterator[None]:
    """A batch is made and on its way, in a thread that calls `send`, and ends when that returns."""
    data = SimpleNamespace(put=lambda item: None, _send_bytes=send)
    wrapper.install(SimpleNamespace(get=lambda: None), data)
    wrapper._begin([0])
    data.put((0, None))
    feeder = threading.Thread(target=data._send_bytes, args=(b"batch",))
    feeder.start()
    try:
        yield
    finally:
        feeder.join()
        fetch_clock.remove_clocks()


def test_a_worker_that_ends_writes_the_batch_it_has_just_sent(tmp_path: Path) -> None:
    in_pipe, ended = threading.Event(), threading.Event()

    def send(buffer: bytes) -> None:  # the loop has the batch; this thread waits its turn
        in_pipe.set()
        ended.wait(10)
        time.sleep(0.02)

    wrapper = wrapper_in(tmp_path)
    with sending(wrapper, send):
        assert in_pipe.wait(10)
        ended.set()
        wrapper.close()
        assert read(tmp_path).batches.n_bytes.tolist() == [len(b"batch")]


def test_a_worker_whose_pipe_nobody_reads_ends_all_the_same(tmp_path: Path) -> None:
    in_pipe, read_at_last = threading.Event(), threading.Event()

    def send(buffer: bytes) -> None:
        in_pipe.set()
        read_at_last.wait(60)

    wrapper = wrapper_in(tmp_path)
    with sending(wrapper, send):
        assert in_pipe.wait(10)
        started = time.perf_counter()
        wrapper.close()
        took_s = time.perf_counter() - started
        read_at_last.set()
    assert took_s < 100 * SENT_WITHIN_S


def test_long_batches_have_their_cpu_clocks_read_each(clock: Clock, tmp_path: Path) -> None:
    told = list(cpu_of_batches(wrapper_in(tmp_path), clock, [40_000_000] * 50))
    assert clock.n_reads == 4 * 50
    assert set(told) == {(30_000_000, 60_000_000)}


def test_short_batches_are_read_now_and_then_and_their_sum_holds(
    clock: Clock, tmp_path: Path
) -> None:
    lengths = [20_000 + 100 * (n % 7) for n in range(640)]
    told = list(cpu_of_batches(wrapper_in(tmp_path), clock, lengths))
    assert clock.n_reads <= 4 * (640 // (MAX_UNREAD + 1) + 1)
    assert sum(thread for thread, _ in told) == pytest.approx(0.75 * sum(lengths), rel=0.01)
    assert sum(process for _, process in told) == pytest.approx(1.5 * sum(lengths), rel=0.01)


def test_a_plain_step_enters_few_functions_of_ours() -> None:
    n_calls: list[int] = []
    count = 0

    def counting(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "/loaderdoctor/instrument/" in frame.f_code.co_filename

    def loop() -> None:
        nonlocal count
        trainer = Trainer()
        try:
            for n, (x, _) in enumerate(loader_of(200)):
                trainer.step(x)
                if n == 40:
                    sys.setprofile(counting)
                n_calls.append(count)
                count = 0
        finally:
            sys.setprofile(None)

    run = watch(loop, WindowRequest(id=1, mode="plain", n_steps=150, host_memory=False))
    assert run.windows[0].n_steps == 150
    # The median: now and then the driver is woken, to look at its connection and the time.
    inside = sorted(n_calls[50:150])
    assert 0 < inside[len(inside) // 2] <= MAX_CALLS_A_STEP


def test_a_worker_writes_rarely_and_leaves_nothing_behind_when_it_goes_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_writes = 0
    write = RecordWriter._write

    def counting(writer: RecordWriter, chunk: bytes) -> None:
        nonlocal n_writes
        n_writes += 1
        write(writer, chunk)

    monkeypatch.setattr(RecordWriter, "_write", counting)
    wrapper = WorkerWrapper(RecordWriter(tmp_path, "worker"), 1, 0)
    started = n_writes
    until = time.perf_counter() + 1.0
    n_batches = 0
    put = wrapper._putting(lambda item: None)
    while time.perf_counter() < until:
        wrapper._begin([0])
        time.sleep(0.005)
        put((n_batches, None))
        n_batches += 1
    assert n_batches > 40
    assert n_writes - started <= 10  # every 0.2 s, and reports of the looking thread
    while time.perf_counter() < until + 10 and not wrapper._lines._asleep:
        time.sleep(0.01)
    assert len(read(tmp_path).batches) == n_batches
    wrapper.close()
