"""Threads that make batches, and whether a dataset bears them.

Whether the interpreter lock lets threads make batches beside the loop, only a measurement tells.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from torch.utils.data import DataLoader

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import digest, tensors
from loaderdoctor.instrument.dataset import asks_for_worker, only_seeds, put_back, states
from loaderdoctor.instrument.dataset.cached import CachedDataset
from loaderdoctor.instrument.dataset.rows import RowBatches
from loaderdoctor.instrument.dataset.safety import all_open_handles, own_copy

# Batches made by one thread and then by all at once: as many, or as that time makes, at least two.
N_COMPARED = 8
COMPARE_LIMIT_S = 1.0
# Samples in a batch that is compared, where a sampler of the script's own makes the batches.
N_IN_BATCH = 32
# How long threads that don't come to an end are waited for.
END_LIMIT_S = 10.0

Note = Callable[[str, str], None]


class LoadingThreads:
    """Threads that the process need not wait for at its end, as it would for an executor's."""

    def __init__(self, n: int) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"loaderdoctor-loading-{i}", daemon=True)
            for i in range(n)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, make: Any) -> Future[Any]:
        """What `make()` will return or raise."""
        future: Future[Any] = Future()
        self._work.put((future, make))
        return future

    def end(self, limit_s: float) -> None:
        """Let the threads go, and wait so long for them in all."""
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, make = item
            del item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(make())
                except BaseException as error:  # the loop gets it, whatever it is
                    future.set_exception(error)
            del future, make  # no batch stays alive while the next is waited for


def check_threads(
    loader: DataLoader[Any], n: int, note: Note, *, dataset: Any, collate: Callable[[Any], Any]
) -> None:
    """Raise TrialRefused where threads would not make what the loader makes.

    Some batches are made by one thread and again by all at once, and must be equal bit for bit;
    races that these did not meet are not excluded. Of random draws, which leave shapes and types to
    compare, `note` is told. Where the loop has workers, a copy of the dataset is tried.
    """
    name = type(dataset).__name__
    if loader.batch_sampler is None:
        raise TrialRefused("the loader makes no batches of samples (batch_size=None)")
    if asks_for_worker(dataset):
        raise TrialRefused(f"{name} asks which worker it is in (get_worker_info): threads are none")
    if loader.num_workers and not only_seeds(loader.worker_init_fn):
        raise TrialRefused("its worker_init_fn prepares each worker, and threads are none")
    if loader.num_workers and not isinstance(dataset, (CachedDataset, RowBatches)):
        dataset, collate = own_copy(dataset, collate)
    with put_back():
        _require_equal(dataset, collate, loader.batch_size or N_IN_BATCH, n, note)
    if handles := all_open_handles(dataset):  # some are opened at the first sample
        raise TrialRefused(
            f"the dataset opens files ({', '.join(handles[:3])}) that threads would share, so "
            "their reads would mix"
        )


def _require_equal(
    dataset: Any, collate: Callable[[Any], Any], batch_size: int, n: int, note: Note
) -> None:
    size = min(batch_size, len(dataset))
    several = getattr(dataset, "__getitems__", None)

    def made(indices: list[int]) -> Any:
        samples = several(indices) if several else [dataset[i] for i in indices]
        return collate(samples)

    step = max(1, len(dataset) // (size * N_COMPARED))
    parts = [[(k * size + j) * step % len(dataset) for j in range(size)] for k in range(N_COMPARED)]
    before, began, alone = states(), time.monotonic(), []
    for part in parts:
        alone.append(_Told(made(part)))
        if len(alone) >= 2 and time.monotonic() - began > COMPARE_LIMIT_S:
            break
    del parts[len(alone) :]
    draws = states() != before
    again = _at_once(lambda part: _Told(made(part)), parts, n)
    if not draws:
        if [one.content for one in again] != [one.content for one in alone]:
            raise TrialRefused(
                "batches made by several threads at once came out differently: the dataset is not "
                "made for threads"
            )
        return
    kinds = [one.kinds for one in alone]
    varies = False
    if [one.kinds for one in again] != kinds:
        # Shapes that are drawn too differ between two that one thread makes as well.
        varies = [_Told(made(part)).kinds for part in parts] != kinds
        if not varies:
            raise TrialRefused(
                "batches made by several threads at once came out in other shapes or types: the "
                "dataset is not made for threads"
            )
    compared = "no error was met" if varies else "no error was met, shapes and types are the same"
    note(
        "threads-draw",
        f"threads={n}: samples are drawn from the training process's own generators, in the "
        "order in which threads come to them: other draws of the same distribution, which no "
        "seed repeats. So whether threads mix up samples could not be checked by their values: "
        f"of {len(parts)} batches made at once, {compared}.",
    )


def _at_once(make: Callable[[list[int]], _Told], parts: list[list[int]], n: int) -> list[_Told]:
    """What `n` threads make of the parts, or raise."""
    pool = LoadingThreads(n)
    try:
        made = [pool.submit(lambda at=part: make(at)) for part in parts]
        wait(made, timeout=END_LIMIT_S)
        if not all(one.done() for one in made):
            raise TrialRefused("batches made by several threads at once did not come to an end")
        return [one.result() for one in made]
    finally:
        pool.end(END_LIMIT_S)


class _Told:
    """What is compared of a batch, which is not kept."""

    def __init__(self, batch: Any) -> None:
        self.content = digest(batch)
        self.kinds = [(path, tuple(tensor.shape), tensor.dtype) for path, tensor in tensors(batch)]
