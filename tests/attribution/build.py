"""A small builder of traces: rows as torch.profiler would record them, times in microseconds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from loaderdoctor.trace.columns import ABSENT, Category, Spans, Thread, Trace

MAIN, AUTOGRAD, PIN, BACKGROUND = 0, 1, 2, 3
THREADS = tuple(Thread(pid="100", tid=str(100 + i)) for i in range(4))
NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NEXT_SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
H2D_PINNED = "Memcpy HtoD (Pinned -> Device)"
H2D_PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


@dataclass(frozen=True)
class Row:
    start: float
    end: float
    category: Category
    name: str
    thread: int
    correlation: int = ABSENT
    external: int = ABSENT
    device: int = ABSENT
    stream: int = ABSENT
    n_bytes: int = ABSENT


@dataclass
class TraceBuilder:
    """Collects rows; `trace()` gives them as columns."""

    rows: list[Row] = field(default_factory=list)
    _ids: int = 0

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    def add(
        self, start: float, end: float, category: Category, name: str, thread: int = MAIN
    ) -> None:
        self.rows.append(Row(start, end, category, name, thread))

    def step(self, number: int, start: float, end: float) -> None:
        self.add(start, end, Category.USER_ANNOTATION, f"ProfilerStep#{number}")

    def fetch(self, start: float, end: float, *, thread: int = MAIN, name: str = NEXT) -> None:
        self.add(start, end, Category.USER_ANNOTATION, name, thread)

    def annotation(self, start: float, end: float, name: str, thread: int = MAIN) -> None:
        self.add(start, end, Category.USER_ANNOTATION, name, thread)

    def op(self, start: float, end: float, name: str = "aten::add", thread: int = MAIN) -> None:
        self.add(start, end, Category.CPU_OP, name, thread)

    def optimizer(self, start: float, end: float) -> None:
        self.annotation(start, end, "Optimizer.step#SGD.step")

    def seed(self, at: float) -> None:
        """The base seed of a new iterator: 4 us."""
        for i, name in enumerate(("aten::empty", "aten::random_", "aten::item")):
            self.op(at + i, at + i + 0.9, name)
        self.op(at + 2.1, at + 2.8, "aten::_local_scalar_dense")

    def python(self, start: float, end: float, name: str) -> None:
        self.add(start, end, Category.PYTHON, name)

    def call(
        self, start: float, end: float, name: str, *, thread: int = MAIN, external: int = ABSENT
    ) -> None:
        self.rows.append(Row(start, end, Category.RUNTIME, name, thread, self._next_id(), external))

    def kernel(
        self,
        launched: float,
        start: float,
        end: float,
        *,
        name: str = "gemm",
        thread: int = MAIN,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        """A kernel and the call that launched it: an op of 2 us around a call of 1 us."""
        ids = self._next_id()
        self.op(launched - 0.5, launched + 1.5, "aten::mm", thread)
        self.rows += [
            Row(launched, launched + 1, Category.RUNTIME, "cudaLaunchKernel", thread, ids),
            Row(start, end, Category.KERNEL, name, len(THREADS), ids, ABSENT, device, stream),
        ]

    def copy(
        self,
        called: float,
        returned: float,
        start: float,
        end: float,
        *,
        name: str = H2D_PINNED,
        synced: float | None = None,
        n_bytes: int = 1 << 20,
        thread: int = MAIN,
        stream: int = 7,
        category: Category = Category.MEMCPY,
        external: bool = True,
    ) -> None:
        """A copy on the device and its call; `synced`: its stream sync lasts until then."""
        ids = self._next_id()
        ext = self._next_id() if external else ABSENT
        self.rows += [
            Row(called, returned, Category.RUNTIME, "cudaMemcpyAsync", thread, ids, ext),
            Row(start, end, category, name, len(THREADS), ids, ext, 0, stream, n_bytes),
        ]
        if synced is not None:
            self.call(returned, synced, "cudaStreamSynchronize", thread=thread, external=ext)

    def trace(self, *, shuffle: int | None = None) -> Trace:
        """The rows, sorted by start as a reader gives them; equal starts in any order."""
        rows = list(self.rows)
        if shuffle is not None:
            random.Random(shuffle).shuffle(rows)
        rows.sort(key=lambda r: r.start)
        names = sorted({r.name for r in rows})

        def column(values: list[float], kind: type[np.generic]) -> np.ndarray:
            return np.asarray(values, dtype=kind)

        return Trace(
            source=Path("built.json"),
            spans=Spans(
                start_ns=column([round(r.start * 1000) for r in rows], np.int64),
                end_ns=column([round(r.end * 1000) for r in rows], np.int64),
                category=column([r.category for r in rows], np.int8),
                name=column([names.index(r.name) for r in rows], np.int32),
                thread=column([r.thread for r in rows], np.int32),
                correlation=column([r.correlation for r in rows], np.int64),
                external_id=column([r.external for r in rows], np.int64),
                device=column([r.device for r in rows], np.int32),
                stream=column([r.stream for r in rows], np.int32),
                bytes=column([r.n_bytes for r in rows], np.int64),
            ),
            names=tuple(names),
            threads=(*THREADS, Thread(pid="0", tid="7")),
            devices=(),
            origin_us=0.0,
            base_time_ns=0,
            rank=None,
            n_ranks=None,
            n_dropped_events=0,
        )

    def split_at(self, at: float, *categories: Category) -> TraceBuilder:
        """The same rows, those of these categories that cross `at` cut in two."""
        rows: list[Row] = []
        for row in self.rows:
            if row.category in categories and row.start < at < row.end:
                rows += [replace(row, end=at), replace(row, start=at)]
            else:
                rows.append(row)
        return TraceBuilder(rows=rows)
