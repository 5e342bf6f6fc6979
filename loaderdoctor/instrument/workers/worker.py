"""Recording inside DataLoader workers, and where batches are made in the training process.

`install` replaces the function torch starts its workers with by a picklable callable that records
and then calls that very function, so fork, spawn and forkserver workers all record themselves.
In the worker only two queue methods of the worker's own copies are shadowed (`get` of the index
queue, `put` and the pipe's send of the data queue) and the fetcher is timed by `fetch_clock`.
Nothing of the user's is wrapped.

Each process appends to its own file in the records directory; `worker_records` reads them.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from torch.utils.data._utils import pin_memory as torch_pin
from torch.utils.data._utils import worker as torch_worker

from loaderdoctor.instrument.wire.record_file import (
    SEND,
    Kind,
    Outcome,
    RecordWriter,
    assert_shared_clock,
)
from loaderdoctor.instrument.workers import (
    SummedLoop,
    WorkerLoop,
    fetch_clock,
    find_argument,
    find_queues,
    iterator_wrappers,
)
from loaderdoctor.instrument.workers.fetch_clock import (
    CPU_READS_NS,
    MAX_CPU_READ_SHARE,
    FetchClock,
    pack_batch,
)
from loaderdoctor.instrument.workers.worker_sampling import (
    Collecting,
    HeapFree,
    LineSampler,
    python_threads,
    state,
)

# Native thread pools start with first use: they are counted after this many batches, then again
# at twice as many, and so on.
COUNT_THREADS_AT: Final = 4
MAX_UNREAD: Final = 63
# The training process can have a batch, and end its worker, before the thread that sent it has the
# interpreter back to record that. It gets it as soon as the main thread waits; a pipe that nobody
# reads any more never lets go of it.
SENT_WITHIN_S: Final = 0.1


def install(
    records_dir: Path,
    loader_id: Callable[[Any], str | None] = lambda loader: None,
    *,
    limit_bytes: int | None = None,
) -> None:
    """Starts recording in this process and in every DataLoader worker it starts from now on.

    `loader_id` names the loader that an iterator is of, None where it is none of the script's.
    A process stops once its file has `limit_bytes`.
    Raises RunError where processes share no clock, OSError where the directory can't be written.
    Call it before the loaders are iterated; calling it again moves on to another directory.
    """
    assert_shared_clock()
    remove()
    records_dir.mkdir(parents=True, exist_ok=True)
    iterator_wrappers.install(RecordWriter(records_dir, "main", limit_bytes), loader_id)
    loop = RecordedLoop(torch_worker._worker_loop, str(records_dir), limit_bytes=limit_bytes)
    torch_worker._worker_loop = loop
    torch_pin._pin_memory_loop = iterator_wrappers.RecordedPinLoop(torch_pin._pin_memory_loop)


def flush() -> None:
    """Writes out what this process has recorded so far. Workers write by themselves."""
    iterator_wrappers.flush()


def remove() -> None:
    """Stops recording here and in workers started from now on. Safe to call at any time.

    Workers that are running go on writing to their files until they end.
    """
    loop = torch_worker._worker_loop
    if isinstance(loop, RecordedLoop):
        torch_worker._worker_loop = loop.original
    pin = torch_pin._pin_memory_loop
    if isinstance(pin, iterator_wrappers.RecordedPinLoop):
        torch_pin._pin_memory_loop = pin.original
    iterator_wrappers.remove()


def without_records() -> None:
    """Workers started from now on keep their sums, and record no batches one by one."""
    loop = torch_worker._worker_loop
    remove()  # where ours stands around it, it only closes this process's file
    if isinstance(loop, SummedLoop) and isinstance(loop.original, RecordedLoop):
        torch_worker._worker_loop = SummedLoop(loop.original.original, loop.folder)


class RecordedLoop(WorkerLoop):
    """Writes a record of each batch."""

    def __init__(
        self,
        original: Callable[..., None],
        records_dir: str,
        serial: int | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        super().__init__(original)
        self.records_dir = records_dir
        self._limit_bytes = limit_bytes
        self._serial = serial  # known only in a worker that was not forked

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for spawn and forkserver, in the thread that opens the iterator."""
        serial = iterator_wrappers.opening_serial()
        return (_restore_loop, (self.not_torchs(), self.records_dir, serial, self._limit_bytes))

    def _open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WorkerWrapper | None:
        serial = iterator_wrappers.opening_serial() if self._serial is None else self._serial
        iterator_wrappers.forget()  # a forked worker must not write to the parent's file
        queues = find_queues(self.original, args, kwargs)
        if queues is None:
            return None
        worker = find_argument(self.original, args, kwargs, "worker_id")
        writer = RecordWriter(Path(self.records_dir), "worker", self._limit_bytes)
        wrapper = WorkerWrapper(writer, serial, worker if isinstance(worker, int) else -1)
        wrapper.install(*queues)
        return wrapper


def _restore_loop(
    original: Callable[..., None] | None, records_dir: str, serial: int, limit_bytes: int | None
) -> RecordedLoop:
    return RecordedLoop(original or torch_worker._worker_loop, records_dir, serial, limit_bytes)


class WorkerWrapper:
    """Records one worker, from within its main thread and the feeder thread of its data queue."""

    def __init__(self, writer: RecordWriter, serial: int, worker: int) -> None:
        self._writer = writer
        # What the worker fetches from, once it has a fetcher; not kept alive.
        self._dataset: Callable[[], object] = _nothing
        self._collecting = Collecting()
        self._heap_free = HeapFree()
        self._serial = serial
        self._worker = worker
        self._epoch = 0
        self._lines = LineSampler(writer)
        self._clock: FetchClock | None = None
        self._making = False
        self._ready = False
        self._wait_ns = 0
        self._begin_ns = 0
        self._thread_cpu_ns = 0
        self._process_cpu_ns = 0
        self._n_unread = 0  # batches to come whose CPU time is not read
        self._cpu_shares = (0.0, 0.0)  # of the last one read: thread, process; CPU / wall
        self._n_batches = 0
        self._count_threads_at = COUNT_THREADS_AT
        self._main_thread = threading.get_ident()
        self._sends: deque[tuple[int, int, int]] = deque()  # epoch, idx, put_ns
        self._sending_now = False
        writer.add_json(
            Kind.PROCESS,
            {
                "role": "worker",
                "pid": os.getpid(),
                "worker": worker,
                "serial": serial,
                "started_ns": time.perf_counter_ns(),
            },
        )
        writer.flush()

    def install(self, index_queue: Any, data_queue: Any) -> None:
        """Shadows the queues' methods on this process's own copies of them."""
        fetch_clock.install_clocks(self._use)
        index_queue.get = self._getting(index_queue.get)
        data_queue.put = self._putting(data_queue.put)
        if hasattr(data_queue, "_send_bytes"):  # the feeder thread takes it at the first put
            data_queue._send_bytes = self._sending(data_queue._send_bytes)

    def close(self) -> None:
        self._lines.stop()
        self._describe(exit_ns=time.perf_counter_ns())
        give_up_s = time.perf_counter() + SENT_WITHIN_S
        while self._sending_now and time.perf_counter() < give_up_s:
            time.sleep(0.001)
        self._writer.flush()  # the feeder thread may still send: the file stays open

    def _use(self, clock: FetchClock, dataset: object) -> None:
        if not self._making:  # else a loader inside the user's dataset
            self._clock = clock
            with suppress(TypeError):  # a list, which holds nothing by name
                self._dataset = weakref.ref(dataset)
            self._lines.report_transforms_of(clock, self._serial)

    def _getting(self, get: Callable[..., Any]) -> Callable[..., Any]:
        now = time.perf_counter_ns

        def timed_get(*args: Any, **kwargs: Any) -> Any:
            self._making = False
            self._lines.end()
            if self._writer.full:
                self._lines.stop()
            if not self._wait_ns:
                self._wait_ns = now()
                if not self._ready:
                    self._ready = True
                    self._describe(ready_ns=self._wait_ns)
            request = get(*args, **kwargs)
            if type(request) is not tuple or len(request) != 2:
                if request is not None:  # torch's _ResumeIteration: the next epoch begins
                    self._epoch += 1
                self._wait_ns = 0
                return request
            return request[0], self._begin(request[1])

        return timed_get

    def _begin(self, index: Any) -> Any:
        self._making = True
        clock = self._clock
        self._lines.begin(self._main_thread, clock, self._serial)
        if not self._n_unread:
            self._thread_cpu_ns = time.thread_time_ns()
            self._process_cpu_ns = time.process_time_ns()
        if clock is None:
            self._begin_ns = time.perf_counter_ns()
            return index
        index = clock.begin(index)
        self._begin_ns = clock.begin_ns
        return index

    def _putting(self, put: Callable[..., Any]) -> Callable[..., Any]:
        now = time.perf_counter_ns

        def timed_put(item: Any, *args: Any, **kwargs: Any) -> Any:
            end_ns = now()
            if not self._making or type(item) is not tuple or not isinstance(item[0], int):
                self._sends.append((self._epoch, -1, end_ns))
                return put(item, *args, **kwargs)
            thread_cpu_ns, process_cpu_ns = self._cpu_ns(end_ns - self._begin_ns)
            idx, outcome = item[0], _outcome(item[1])
            self._making = False
            self._lines.end()
            self._sends.append((self._epoch, idx, end_ns))
            result = put(item, *args, **kwargs)
            if self._clock is not None:
                self._clock.end()
            payload = pack_batch(
                self._serial,
                self._epoch,
                idx,
                self._worker,
                outcome,
                self._wait_ns,
                self._begin_ns,
                end_ns,
                thread_cpu_ns,
                process_cpu_ns,
                self._clock,
            )
            self._writer.add(Kind.BATCH, payload)
            self._writer.flush_if_due(end_ns)
            self._wait_ns = 0
            self._n_batches += 1
            if self._n_batches == self._count_threads_at:
                self._count_threads_at *= 2
                self._describe()
            return result

        return timed_put

    def _cpu_ns(self, wall_ns: int) -> tuple[int, int]:
        """CPU time of the batch just made: of the thread that made it, and of the process."""
        if self._n_unread:
            self._n_unread -= 1
            of_thread, of_process = self._cpu_shares
            return round(of_thread * wall_ns), round(of_process * wall_ns)
        thread_ns = time.thread_time_ns() - self._thread_cpu_ns
        process_ns = time.process_time_ns() - self._process_cpu_ns
        wall_ns = max(1, wall_ns)
        self._cpu_shares = (thread_ns / wall_ns, process_ns / wall_ns)
        one_in = math.ceil(CPU_READS_NS / (wall_ns * MAX_CPU_READ_SHARE))
        self._n_unread = min(one_in - 1, MAX_UNREAD)
        return thread_ns, process_ns

    def _sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        now = time.perf_counter_ns
        me = 0  # the feeder's native id, once it is known: a queue has one feeder

        def timed_send(buffer: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal me
            self._sending_now = True
            start_ns = now()
            try:
                return send(buffer, *args, **kwargs)
            finally:
                end_ns = now()
                if self._sends:
                    epoch, idx, put_ns = self._sends.popleft()
                    if idx >= 0:
                        if not me:
                            me = threading.get_native_id()
                            python_threads.add(me)
                        record = SEND.pack(
                            self._serial,
                            epoch,
                            idx,
                            put_ns,
                            start_ns,
                            end_ns,
                            len(buffer),
                            me,
                        )
                        self._writer.add(Kind.SEND, record)
                        self._writer.flush_if_due(end_ns)
                self._sending_now = False

        return timed_send

    def _describe(self, **more: int) -> None:
        """Records what this worker may use and uses: after its start, now and then, at its end."""
        self._writer.add_json(
            Kind.PROCESS,
            {
                **state(self._n_batches, self._dataset(), self._collecting, self._heap_free),
                "described_ns": time.perf_counter_ns(),
                **more,
            },
        )


def _nothing() -> None:
    return None


def _outcome(data: Any) -> Outcome:
    name = type(data).__name__
    if name == "ExceptionWrapper":
        return Outcome.ERROR
    return Outcome.EXHAUSTED if name == "_IterableDatasetStopIteration" else Outcome.OK
