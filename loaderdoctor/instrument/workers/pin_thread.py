"""Recording in the pin-memory thread: waiting for a batch, and pinning it.

The thread gets its queues wrapped in objects with just the methods torch's loop calls, so the
queues themselves, which the training process uses too, stay untouched. Taking a batch off the
queue includes unpickling it and counts as waiting.
"""

from __future__ import annotations

import functools
import multiprocessing.queues
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from loaderdoctor.instrument.wire.record_file import PIN, Kind, RecordWriter
from loaderdoctor.instrument.workers import iterator_wrappers


class RecordedPinLoop:
    """Stands in for torch's `_pin_memory_loop`: records, and runs the original."""

    def __init__(self, original: Callable[..., None]) -> None:
        functools.update_wrapper(self, original)
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Runs in the pin-memory thread until torch ends it."""
        writer = iterator_wrappers.current_writer()
        sources = [q for q in args if isinstance(q, multiprocessing.queues.Queue)]
        targets = [q for q in args if isinstance(q, queue.Queue)]
        wrapper = iterator_wrappers.wrapper_of_queue(sources[0]) if sources else None
        if writer is None or wrapper is None or not targets:
            self.original(*args, **kwargs)
            return
        watch = _PinWatch(writer, wrapper, sources[0], targets[0])
        replaced = {id(sources[0]): _Source(watch), id(targets[0]): _Target(watch)}
        self.original(*(replaced.get(id(a), a) for a in args), **kwargs)


class _PinWatch:
    """Times of the batch in hand."""

    def __init__(
        self,
        writer: RecordWriter,
        wrapper: iterator_wrappers.IteratorWrapper,
        source: Any,
        target: Any,
    ) -> None:
        self.writer = writer
        self.wrapper = wrapper
        self.source = source
        self.target = target
        self.wait_ns = 0
        self.start_ns = 0
        self.thread = threading.get_native_id()

    def record(self, idx: int, end_ns: int) -> None:
        payload = PIN.pack(
            self.wrapper.serial,
            self.wrapper.epoch,
            idx,
            self.wait_ns,
            self.start_ns,
            end_ns,
            self.thread,
        )
        self.writer.add(Kind.PIN, payload)
        self.start_ns = 0  # torch puts the same batch again where the queue stays full


class _Source:
    """The queue of made batches, as the loop sees it."""

    def __init__(self, watch: _PinWatch) -> None:
        self._watch = watch

    def get(self, *args: Any, **kwargs: Any) -> Any:
        watch = self._watch
        if not watch.wait_ns:
            watch.wait_ns = time.perf_counter_ns()
        item = watch.source.get(*args, **kwargs)
        watch.start_ns = time.perf_counter_ns()
        return item


class _Target:
    """The queue of pinned batches, as the loop sees it."""

    def __init__(self, watch: _PinWatch) -> None:
        self._watch = watch

    def put(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        watch = self._watch
        end_ns = time.perf_counter_ns()
        if watch.start_ns and isinstance(item[0], int):
            watch.record(item[0], end_ns)  # before the loop has it and may end the recording
        result = watch.target.put(item, *args, **kwargs)
        watch.writer.flush_if_due(end_ns)
        watch.wait_ns = 0
        return result
