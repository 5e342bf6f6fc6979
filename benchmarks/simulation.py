"""A training loop in simulated time: workers, the training thread, a device, and the profiler.

Costs are those of recorded traces (H100, H200, torch 2.11): 7 to 10 µs of host time an operator, 4
to 9 µs more where it is recorded, 5.5 GB/s from pageable memory, 50 from pinned.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

PID, BACKWARD_TID, PIN_TID, STREAM = 100, 101, 102, 7
NEXT = "enumerate(DataLoader)#_{}ProcessDataLoaderIter.__next__"
LATENCY_US = 4.0  # from a launch to its kernel, at the least
PROFILER_CALL_US = 1.0  # that recording a call of the runtime takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop. Times in microseconds unless named otherwise; a step is one batch."""

    # The model: operators that launch one kernel each, with operators that launch none around them.
    n_kernels: int = 70
    kernel_us: float = 70.0
    ops_per_kernel: float = 3.2
    op_us: float = 8.0
    profiler_us: float = 4.5  # that recording an operator takes
    # The loader
    workers: int = 4
    prefetch: int = 2
    make_ms: float = 5.0
    slow_every: int = 0  # each so-manieth batch takes `slow_ms` more
    slow_ms: float = 0.0
    cpus: float = 16.0
    receive_us: float = 150.0
    steps_per_epoch: int = 100_000
    startup_ms: float = 80.0
    persistent: bool = False
    crowding: bool = False  # busy workers beyond the CPUs slow down the loop's thread as well
    # The copies
    batch_bytes: int = 5_000_000
    n_copies: int = 2
    pinned: bool = True
    non_blocking: bool = True
    side_stream: bool = False
    pageable_gb_per_s: float = 5.5
    # Memory of a worker's batch that nobody pinned: mapped as it is first read, freed when dropped
    # (0.06 and 0.24 ms a MB on an H200; the training thread's time, and no event).
    map_ms_per_mb: float = 0.0
    free_ms_per_mb: float = 0.0
    dropped_by: str = "fetch"  # behind which it is freed: fetch | copy
    # The loop's own
    item: bool = False
    accumulate: int = 1
    work_ms: float = 0.0  # Python between batch and forward pass
    work_in: str = "train.py(40): augment"  # its frame, where there are stacks; "": the loop's own
    pause_every: int = 0  # a collection each so many steps
    pause_ms: float = 0.0
    stacks: bool = False
    frame_us: float = 2.5
    frames_per_op: float = 4.0
    memory_events: bool = False
    mark_steps: bool = True
    n_steps: int = 14
    about: str = ""


@dataclass(slots=True)
class Recording:
    """Events as torch.profiler writes them."""

    events: list[dict[str, Any]] = field(default_factory=list)
    on: bool = False
    ids: int = 0

    def add(self, cat: str, name: str, start: float, end: float, tid: int, **args: Any) -> None:
        if self.on:
            pid = 0 if cat in ("kernel", "gpu_memcpy", "gpu_memset") else PID
            self.events.append(
                {
                    "ph": "X",
                    "cat": cat,
                    "name": name,
                    "pid": pid,
                    "tid": tid,
                    "ts": round(1000.0 + start, 3),
                    "dur": round(max(end - start, 0.0), 3),
                    "args": args,
                }
            )

    def next_id(self) -> int:
        self.ids += 1
        return self.ids


class Simulation:
    """One run: `how` full | cached | resident | copies-free, with the profiler or without."""

    def __init__(self, loop: Loop, how: str, *, profiled: bool, seed: int = 0) -> None:
        self.loop, self.how, self.profiled = loop, how, profiled
        self.record = Recording()
        self.random = random.Random(seed)
        self.now = 0.0  # the training thread
        self.free = 0.0  # the stream of the device
        self.copy_free = 0.0  # a stream beside it
        self.n_fetched = 0
        self.epoch_begin = 0
        self.worker_free = [0.0] * max(1, loop.workers)
        self.taken: list[float] = []  # when each batch was taken
        self.ready: list[float] = []
        # More workers than CPUs share them; the loop keeps one, unless it is crowded too.
        crowd = max(1.0, (loop.workers + 1) / loop.cpus)
        self.make_us = loop.make_ms * 1e3 * crowd
        new = how in ("full", "copies-free") and loop.workers > 0 and not loop.pinned
        self.new_mb = loop.batch_bytes / 1e6 if new else 0.0

    def run(self, n_steps: int) -> float:
        """Microseconds a step, by the device's end where it is later than the host's."""
        warm = 24
        begin = 0.0
        for step in range(warm + n_steps):
            if step == warm:
                self.drain()  # as torch.profiler does where it starts
                begin = self.now
                self.record.on = self.profiled
            self.step(step, step - warm)
        self.record.on = False
        return (max(self.now, self.free) - begin) / n_steps

    def drain(self) -> None:
        self.now = max(self.now, self.free)

    # -- one step --------------------------------------------------------------------------------

    def step(self, step: int, number: int) -> None:
        loop, begin = self.loop, self.now
        ready = self.fetch()
        if loop.dropped_by == "fetch":
            self.drop()
        self.copies(ready)
        if loop.dropped_by == "copy":
            self.drop()
        if loop.work_ms:
            begun = self.now
            self.now += loop.work_ms * 1e3 * self.jitter(0.02)
            if loop.stacks and loop.work_in:
                self.record.add("python_function", loop.work_in, begun + 1, self.now - 1, PID)
        n_forward = loop.n_kernels // 3
        pause_at = -1
        if loop.pause_every and step % loop.pause_every == 0:
            pause_at = self.random.randrange(n_forward)
        forward = self.now
        for i in range(n_forward):
            self.op("aten::conv2d" if i % 2 else "aten::batch_norm", PID)
            if i == pause_at:
                self.now += loop.pause_ms * 1e3
        self.frames(forward, self.now)
        for _ in range(loop.n_kernels - n_forward - 4):
            self.op("autograd::engine::evaluate_function: ConvolutionBackward0", BACKWARD_TID)
        if (step + 1) % loop.accumulate == 0:
            start = self.now
            for _ in range(4):
                self.op("aten::_foreach_add_", PID)
            self.record.add(
                "user_annotation", "Optimizer.step#SGD.step", start - 2, self.now + 2, PID
            )
            self.now += 5
        if loop.item:
            start = self.now
            self.now += 3 * self.op_cost()
            end = max(self.now, self.free) + 3.0
            ids = self.record.next_id()
            self.record.add(
                "cuda_runtime", "cudaMemcpyAsync", self.now, self.now + 6, PID, correlation=ids
            )
            self.record.add(
                "gpu_memcpy",
                "Memcpy DtoH (Device -> Pageable)",
                end - 1.5,
                end,
                STREAM,
                correlation=ids,
                device=0,
                stream=STREAM,
                bytes=4,
            )
            self.record.add(
                "cuda_runtime",
                "cudaStreamSynchronize",
                self.now + 6,
                end,
                PID,
                correlation=self.record.next_id(),
            )
            self.now = self.free = end
            self.record.add("cpu_op", "aten::item", start, self.now, PID)
        if loop.mark_steps and self.record.on:
            self.record.add("user_annotation", f"ProfilerStep#{number}", begin, self.now, PID)
            self.now += 30.0

    def fetch(self) -> bool:
        """Get a batch; whether it came from the loader."""
        loop = self.loop
        if self.how not in ("full", "copies-free"):
            self.now += 2.0
            return False
        start = self.now
        kind = "Single" if loop.workers == 0 else "Multi"
        if self.n_fetched and (self.n_fetched - self.epoch_begin) % loop.steps_per_epoch == 0:
            self.end_of_epoch(kind)
            start = self.now
        if loop.workers == 0:
            end = self.now + self.batch_us(self.n_fetched)
            for i in range(8):
                at = start + (end - start) * (i + 0.2) / 8
                self.record.add("cpu_op", "aten::stack", at, at + (end - start) / 20, PID)
            self.now = end
        else:
            self.now = max(self.now, self.made(self.n_fetched)) + loop.receive_us
        self.taken.append(self.now)
        name = NEXT.format("Single" if loop.workers == 0 else "MultiProcessing")
        name = name.replace("MultiProcessingProcess", "_MultiProcessing").replace(
            "__Multi", "_Multi"
        )
        self.record.add("user_annotation", name, start, self.now, PID)
        self.n_fetched += 1
        return True

    def drop(self) -> None:
        """Free the batch before, or this one once it is copied."""
        self.now += self.loop.free_ms_per_mb * self.new_mb * 1e3 * self.jitter(0.05)

    def crowd(self) -> float:
        """How many times as long the loop's thread takes beside workers that are busy now."""
        loop = self.loop
        if not loop.crowding or self.how not in ("full", "copies-free"):
            return 1.0
        if self.n_fetched:
            self.made(self.n_fetched + loop.workers * loop.prefetch - 1)  # all that are under way
        busy = sum(free > self.now for free in self.worker_free[: loop.workers])
        return max(1.0, (busy + 1) / loop.cpus)

    def end_of_epoch(self, kind: str) -> None:
        """The exhausted fetch, the new iterator's seed, and workers that start."""
        loop = self.loop
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        if kind == "Single":
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self.record.add("user_annotation", name, self.now, self.now + 400, PID)
        self.now += 420
        for i, op in enumerate(("aten::empty", "aten::random_", "aten::item")):
            self.record.add("cpu_op", op, self.now + 5 * i, self.now + 5 * i + 3, PID)
        self.now += 20
        if not loop.persistent and loop.workers:
            self.now += loop.startup_ms * 1e3
        self.worker_free = [self.now] * max(1, loop.workers)
        self.epoch_begin = self.n_fetched

    def batch_us(self, index: int) -> float:
        loop = self.loop
        slow = loop.slow_ms * 1e3 if loop.slow_every and index % loop.slow_every == 0 else 0.0
        return self.make_us * self.jitter(0.05) + slow

    def made(self, index: int) -> float:
        """When this batch is ready: workers make them in turn, a few ahead of the loop."""
        loop = self.loop
        while len(self.ready) <= index:
            n = len(self.ready)
            worker, ahead = n % loop.workers, loop.workers * loop.prefetch
            allowed = self.taken[n - ahead] if n - ahead >= self.epoch_begin else 0.0
            begin = max(self.worker_free[worker], allowed)
            done = begin + self.batch_us(n)
            self.worker_free[worker] = done
            self.ready.append(done)
        return self.ready[index]

    # -- copies ----------------------------------------------------------------------------------

    def copies(self, fresh: bool) -> None:
        loop = self.loop
        if self.how in ("resident", "copies-free"):
            self.now += 2 * loop.n_copies * 0.5
            return
        sizes = [loop.batch_bytes / loop.n_copies] * loop.n_copies
        if loop.n_copies == 2:
            sizes = [float(loop.batch_bytes), 1024.0]
        for size in sizes:
            self.copy(size, fresh)

    def copy(self, size: float, fresh: bool) -> None:
        loop, record = self.loop, self.record
        start = self.now
        self.now += 3 * self.op_cost() * 0.6  # aten::to, _to_copy, empty_strided, copy_
        call, ids, ext = self.now, record.next_id(), record.next_id()
        if loop.pinned:
            length = size / 50e3 + 1.5
            name = "Memcpy HtoD (Pinned -> Device)"
        else:
            # Fresh pages of a worker's batch are mapped while they are read.
            rate = (
                loop.pageable_gb_per_s
                if fresh or size < 65536
                else max(5.5, loop.pageable_gb_per_s)
            )
            length = size / (rate * 1e3) + 2.0
            length += loop.map_ms_per_mb * self.new_mb * 1e3 * size / loop.batch_bytes
            name = "Memcpy HtoD (Pageable -> Device)"
        beside = loop.side_stream and loop.pinned and loop.non_blocking
        free = self.copy_free if beside else self.free
        began = max(free, call + LATENCY_US)
        ended = began + length
        if beside:
            self.copy_free = ended
        else:
            self.free = ended
        returned = call + 8.0 + (PROFILER_CALL_US if self.profiled else 0.0)
        if not loop.pinned:
            returned = ended if size >= 65536 else max(returned, call + 10)
        record.add(
            "cuda_runtime",
            "cudaMemcpyAsync",
            call,
            returned,
            PID,
            correlation=ids,
            **{"External id": ext},
        )
        record.add(
            "gpu_memcpy",
            name,
            began,
            ended,
            STREAM + beside,
            correlation=ids,
            device=0,
            stream=STREAM + beside,
            bytes=int(size),
            **{"External id": ext},
        )
        self.now = returned
        if not loop.non_blocking:
            synced = max(returned + 2.0, ended + 2.0)
            record.add(
                "cuda_runtime",
                "cudaStreamSynchronize",
                returned + 0.5,
                synced,
                PID,
                correlation=record.next_id(),
                **{"External id": ext},
            )
            self.now = synced
        self.now += 2.0
        record.add("cpu_op", "aten::to", start, self.now, PID, **{"External id": ext})
        record.add("cpu_op", "aten::copy_", call - 3, self.now - 1, PID, **{"External id": ext})

    # -- launching -------------------------------------------------------------------------------

    def op_cost(self) -> float:
        cost = self.loop.op_us
        if self.profiled:
            cost += self.loop.profiler_us
            if self.loop.stacks:
                cost += self.loop.frame_us * self.loop.frames_per_op
            if self.loop.memory_events:
                cost += 1.7
        return cost * self.jitter(0.1) * self.crowd()

    def op(self, name: str, tid: int) -> None:
        """An operator with others inside, one of which launches a kernel."""
        loop, record, start = self.loop, self.record, self.now
        self.now += loop.ops_per_kernel * self.op_cost()
        if self.profiled:
            self.now += PROFILER_CALL_US
        call = self.now - 7.0
        ids = record.next_id()
        began = max(self.free, call + LATENCY_US)
        self.free = began + loop.kernel_us * self.jitter(0.1)
        record.add("cuda_runtime", "cudaLaunchKernel", call, call + 5.0, tid, correlation=ids)
        record.add(
            "kernel",
            "void at::native::vectorized_elementwise_kernel",
            began,
            self.free,
            STREAM,
            correlation=ids,
            device=0,
            stream=STREAM,
        )
        record.add("cpu_op", name, start, self.now - 0.5, tid)
        n_inner = round(loop.ops_per_kernel) - 1
        for i in range(n_inner):
            at = start + 0.5 + i * (call - start - 1.0) / max(1, n_inner)
            record.add("cpu_op", "aten::empty", at, at + (call - start) / (2.0 * n_inner), tid)
            if loop.memory_events and record.on:
                record.events.append(
                    {
                        "ph": "i",
                        "s": "t",
                        "name": "[memory]",
                        "cat": "cpu_instant_event",
                        "pid": PID,
                        "tid": tid,
                        "ts": round(1000 + at, 3),
                        "args": {
                            "Device Type": 1,
                            "Device Id": 0,
                            "Total Reserved": 1 << 30,
                            "Total Allocated": 1 << 29,
                        },
                    }
                )

    def frames(self, begin: float, end: float) -> None:
        """Python frames of the forward pass, as many as were paid for."""
        loop = self.loop
        if not loop.stacks:
            return
        n = int(loop.frames_per_op * loop.ops_per_kernel * (loop.n_kernels // 3))
        self.record.add("python_function", "train.py(20): train", begin, end, PID)
        for i in range(n):
            at = begin + 1 + i * (end - begin - 2) / n
            self.record.add(
                "python_function",
                "torch/nn/modules/module.py(1780): _call_impl",
                at,
                at + (end - begin - 2) / n / 2,
                PID,
            )

    def jitter(self, part: float) -> float:
        return 1.0 + self.random.uniform(-part, part)
