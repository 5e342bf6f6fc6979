"""Recording where the training process itself works for its loaders.

For every DataLoader iterator opened while installed: each draw from the sampler, each batch as the
loop receives it; what its pin-memory thread does; and at 0 workers the making of the batch. An
iterator has a *serial* within the process and counts *epochs* (persistent workers re-use it), so
that (serial, epoch, torch's batch number) names a batch in every process.
"""

from __future__ import annotations

import functools
import multiprocessing.queues
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from torch.utils.data import dataloader as torch_loader
from torch.utils.data._utils import pin_memory as torch_pin

from loaderdoctor.instrument.wire.record_file import (
    DELIVERY,
    DRAW,
    FLUSH_AFTER_NS,
    PIN,
    Kind,
    Outcome,
    RecordWriter,
)
from loaderdoctor.instrument.workers import fetch_clock
from loaderdoctor.instrument.workers.fetch_clock import CLOCK_KEY, FetchClock, pack_batch
from loaderdoctor.instrument.workers.worker_sampling import LineSampler

WRAPPER_KEY: Final = "_loaderdoctor_tap"
MAIN_PROCESS: Final = -1  # `worker` of batches made in the training process
# Draws shorter than this can't be what a step waits for; they never wake the line sampler.
SLOW_DRAW_NS: Final = 1_000_000


class IteratorWrapper:
    """What is known of one iterator while it lives."""

    __slots__ = ("epoch", "idx", "last_arrival", "pin_start_ns", "serial", "slow_draws", "started")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.epoch = 0
        self.started = False
        self.last_arrival = -1
        self.idx = 0  # 0 workers: batch number within the epoch
        self.pin_start_ns = 0
        self.slow_draws = False


class _Recording:
    """One installation: the file, the line sampler and what was patched."""

    def __init__(self, writer: RecordWriter, loader_id: Callable[[Any], str | None]) -> None:
        self.writer = writer
        self.loader_id = loader_id
        self.lines = LineSampler(writer)
        self.pid = os.getpid()
        self.last_flush_ns = 0

    def flush_if_due(self, now_ns: int) -> None:
        if now_ns - self.last_flush_ns > FLUSH_AFTER_NS:
            self.last_flush_ns = now_ns
            self.writer.flush()


_recording: _Recording | None = None
_serials = 0
_serial_lock = threading.Lock()
_opening = threading.local()
_inline = threading.local()  # .wrapper: the 0-worker iterator this thread is fetching with
# By serial. Threads that pin look through it while others open iterators.
_iterators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_patches: list[tuple[Any, str, Any, Any]] = []  # owner, name, what was there, what we put there
_fork_hook_registered = False


def install(writer: RecordWriter, loader_id: Callable[[Any], str | None]) -> None:
    """Patches torch's iterator classes. `remove` first where already installed."""
    global _recording, _fork_hook_registered
    _recording = _Recording(writer, loader_id)
    writer.add_json(
        Kind.PROCESS,
        {"role": "main", "pid": os.getpid(), "started_ns": time.perf_counter_ns()},
    )
    if not _fork_hook_registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)  # can't be unregistered; harmless when idle
        _fork_hook_registered = True
    fetch_clock.install_clocks(None)
    base = torch_loader._BaseDataLoaderIter
    single = torch_loader._SingleProcessDataLoaderIter
    multi = torch_loader._MultiProcessingDataLoaderIter
    _patch(base, "__init__", _opening_iterator)
    _patch(base, "_next_index", _drawing)
    _patch(single, "_next_data", _making)
    _patch(multi, "_reset", _resetting)
    _patch(multi, "_get_data", _receiving)
    _patch(multi, "_next_data", _delivering)
    _patch(torch_pin, "pin_memory", _pinning)


def remove() -> None:
    """Undoes `install` and closes the file."""
    global _recording
    recording, _recording = _recording, None
    while _patches:
        owner, name, before, ours = _patches.pop()
        if vars(owner).get(name) is ours:  # else somebody patched on top: ours passes through
            setattr(owner, name, before)
    fetch_clock.remove_clocks()
    if recording is not None:
        recording.lines.stop()
        recording.writer.close()


def forget() -> None:
    """In a forked child: stops recording as the parent, whose file this is not."""
    global _recording
    recording = _recording
    if recording is not None and recording.pid != os.getpid():
        _recording = None
        recording.writer.abandon()


def flush() -> None:
    recording = _recording
    if recording is not None:
        recording.lines.report()
        recording.writer.flush()


def opening_serial() -> int:
    """Serial of the iterator that this thread opened last; 0 where none was seen."""
    return getattr(_opening, "serial", 0)


def wrapper_of_queue(queue: Any) -> IteratorWrapper | None:
    """The live iterator whose workers put their batches on this queue."""
    for reference in _iterators.valuerefs():  # made in one go, as nothing else of it is
        iterator = reference()
        if iterator is not None and vars(iterator).get("_worker_result_queue") is queue:
            wrapper = vars(iterator).get(WRAPPER_KEY)
            return wrapper if isinstance(wrapper, IteratorWrapper) else None
    return None


def _patch(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    before = vars(owner).get(name)
    if before is None:  # inherited, or gone in this torch: there is nothing to time
        return
    ours = functools.wraps(before)(wrap(before))
    _patches.append((owner, name, before, ours))
    setattr(owner, name, ours)


def _opening_iterator(original: Any) -> Any:
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        recording = _recording
        if recording is None:
            original(self, loader, *args, **kwargs)
            return
        global _serials
        with _serial_lock:
            _serials += 1
            wrapper = IteratorWrapper(_serials)
        self.__dict__[WRAPPER_KEY] = wrapper
        created_ns = time.perf_counter_ns()
        original(self, loader, *args, **kwargs)
        # Only now: opening the sampler may itself have opened another loader.
        _opening.serial = wrapper.serial
        _iterators[wrapper.serial] = self
        described = {
            "serial": wrapper.serial,
            "created_ns": created_ns,
            "num_workers": int(getattr(loader, "num_workers", 0)),
            "prefetch_factor": getattr(loader, "prefetch_factor", None),
            "in_order": bool(getattr(loader, "in_order", True)),
            "pin_memory": bool(getattr(self, "_pin_memory", False)),
            "dataset": id(getattr(loader, "dataset", None)),  # tells epochs over one dataset apart
            "loader": recording.loader_id(loader),
        }
        recording.writer.add_json(Kind.ITERATOR, described)

    return __init__


def _resetting(original: Any) -> Any:
    def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        wrapper = self.__dict__.get(WRAPPER_KEY)
        if wrapper is not None:
            if wrapper.started:
                wrapper.epoch += 1
            wrapper.started = True
        return original(self, *args, **kwargs)

    return _reset


def _drawing(original: Any) -> Any:
    now = time.perf_counter_ns

    def _next_index(self: Any) -> Any:
        recording, state = _recording, self.__dict__
        wrapper = state.get(WRAPPER_KEY)
        if recording is None or wrapper is None:
            return original(self)
        start_ns = now()
        if wrapper.slow_draws:
            recording.lines.begin(threading.get_ident(), None, wrapper.serial)
        try:
            index = original(self)
        finally:
            if wrapper.slow_draws:
                recording.lines.end()
        end_ns = now()
        if end_ns - start_ns > SLOW_DRAW_NS:
            wrapper.slow_draws = True
        idx = state.get("_send_idx", wrapper.idx)
        recording.writer.add(
            Kind.DRAW, DRAW.pack(wrapper.serial, wrapper.epoch, idx, start_ns, end_ns)
        )
        fetcher = state.get("_dataset_fetcher")  # 0 workers: making the batch comes next
        if fetcher is not None:
            clock = fetcher.__dict__.get(CLOCK_KEY)
            if clock is not None:
                recording.lines.begin(threading.get_ident(), clock, wrapper.serial)
                index = clock.begin(index)
        return index

    return _next_index


def _making(original: Any) -> Any:
    now = time.perf_counter_ns

    def _next_data(self: Any) -> Any:
        recording, state = _recording, self.__dict__
        wrapper = state.get(WRAPPER_KEY)
        if recording is None or wrapper is None:
            return original(self)
        fetcher = state.get("_dataset_fetcher")
        clock = fetcher.__dict__.get(CLOCK_KEY) if fetcher is not None else None
        if clock is None:
            return original(self)
        if not wrapper.started:
            wrapper.started = True
            recording.lines.report_transforms_of(clock, wrapper.serial)
        cpu_ns, outer = time.thread_time_ns(), getattr(_inline, "wrapper", None)
        start_ns = now()
        wrapper.pin_start_ns = 0
        _inline.wrapper = wrapper
        outcome = Outcome.ERROR
        try:
            data = original(self)
            outcome = Outcome.OK
            return data
        except StopIteration:
            outcome = Outcome.EXHAUSTED
            raise
        finally:
            end_ns = now()
            _inline.wrapper = outer
            if clock.in_batch:
                recording.lines.end()
                clock.end()
                cpu_ns = time.thread_time_ns() - cpu_ns
                _record_made(recording, wrapper, clock, outcome, start_ns, end_ns, cpu_ns)

    return _next_data


def _record_made(
    recording: _Recording,
    wrapper: IteratorWrapper,
    clock: FetchClock,
    outcome: Outcome,
    start_ns: int,
    end_ns: int,
    cpu_ns: int,
) -> None:
    """One batch of a 0-worker iterator: made, perhaps pinned, received."""
    writer, thread = recording.writer, threading.get_native_id()
    made_ns = wrapper.pin_start_ns or end_ns
    name = (wrapper.serial, wrapper.epoch, wrapper.idx)
    payload = pack_batch(
        *name, MAIN_PROCESS, outcome, start_ns, clock.begin_ns, made_ns, cpu_ns, cpu_ns, clock
    )
    writer.add(Kind.BATCH, payload)
    if outcome is Outcome.OK:
        if wrapper.pin_start_ns:
            writer.add(Kind.PIN, PIN.pack(*name, made_ns, made_ns, end_ns, thread))
        writer.add(Kind.DELIVERY, DELIVERY.pack(*name, start_ns, end_ns, thread))
        wrapper.idx += 1
    recording.flush_if_due(end_ns)


def _pinning(original: Any) -> Any:
    def pin_memory(*args: Any, **kwargs: Any) -> Any:
        wrapper = getattr(_inline, "wrapper", None)
        # torch calls this again for each element
        if wrapper is not None and not wrapper.pin_start_ns:
            wrapper.pin_start_ns = time.perf_counter_ns()
        return original(*args, **kwargs)

    return pin_memory


def _receiving(original: Any) -> Any:
    def _get_data(self: Any) -> Any:
        item = original(self)
        wrapper = self.__dict__.get(WRAPPER_KEY)
        if wrapper is not None:
            wrapper.last_arrival = item[0]
        return item

    return _get_data


def _delivering(original: Any) -> Any:
    now = time.perf_counter_ns

    def _next_data(self: Any) -> Any:
        recording, state = _recording, self.__dict__
        wrapper = state.get(WRAPPER_KEY)
        if recording is None or wrapper is None:
            return original(self)
        start_ns = now()
        data = original(self)
        end_ns = now()
        idx = state["_rcvd_idx"] - 1 if state.get("_in_order", True) else wrapper.last_arrival
        thread = threading.get_native_id()
        recording.writer.add(
            Kind.DELIVERY,
            DELIVERY.pack(wrapper.serial, wrapper.epoch, idx, start_ns, end_ns, thread),
        )
        recording.flush_if_due(end_ns)
        return data

    return _next_data


class RecordedPinLoop:
    """Stands in for torch's `_pin_memory_loop`: records, and runs the original."""

    def __init__(self, original: Callable[..., None]) -> None:
        functools.update_wrapper(self, original)
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Runs in the pin-memory thread until torch ends it."""
        writer = _recording.writer if _recording is not None else None
        sources = [q for q in args if isinstance(q, multiprocessing.queues.Queue)]
        targets = [q for q in args if isinstance(q, queue.Queue)]
        wrapper = wrapper_of_queue(sources[0]) if sources else None
        if writer is None or wrapper is None or not targets:
            self.original(*args, **kwargs)
            return
        watch = _PinWatch(writer, wrapper, sources[0], targets[0])
        ours = (id(sources[0]), id(targets[0]))
        self.original(*(watch if id(a) in ours else a for a in args), **kwargs)


class _PinWatch:
    """Both queues as the loop sees them, of made batches and of pinned ones: times what it does."""

    def __init__(
        self, writer: RecordWriter, wrapper: IteratorWrapper, source: Any, target: Any
    ) -> None:
        self._writer, self._wrapper = writer, wrapper
        self._source, self._target = source, target
        self._wait_ns = self._start_ns = 0
        self._thread = threading.get_native_id()

    def get(self, *args: Any, **kwargs: Any) -> Any:
        if not self._wait_ns:
            self._wait_ns = time.perf_counter_ns()
        item = self._source.get(*args, **kwargs)
        self._start_ns = time.perf_counter_ns()
        return item

    def put(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        end_ns = time.perf_counter_ns()
        if self._start_ns and isinstance(item[0], int):
            # Before the loop has it and may end the recording.
            of = self._wrapper.serial, self._wrapper.epoch, item[0]
            times = self._wait_ns, self._start_ns, end_ns
            self._writer.add(Kind.PIN, PIN.pack(*of, *times, self._thread))
            self._start_ns = 0  # torch puts the same batch again where the queue stays full
        result = self._target.put(item, *args, **kwargs)
        self._writer.flush_if_due(end_ns)
        self._wait_ns = 0
        return result
