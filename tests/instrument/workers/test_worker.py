"""Recording in real worker processes: nothing the user sees changes, and every batch is there."""

from __future__ import annotations

import ctypes
import functools
import json.decoder
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data import dataloader as torch_loader
from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils import pin_memory as torch_pin
from torch.utils.data._utils import worker as torch_worker

from loaderdoctor.instrument.wire.record_file import Outcome
from loaderdoctor.instrument.wire.worker_log import ABSENT, WorkerLog, rows_of
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker, worker_sampling
from loaderdoctor.instrument.workers.fetch_clock import FIRST_SAMPLES
from tests.instrument import worker_cases as cases


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Path]:
    """Recording is on; `read` the path after `worker.remove()` or `flush()`."""
    worker.install(tmp_path / "records")
    yield tmp_path / "records"
    worker.remove()


def finished(records: Path) -> WorkerLog:
    worker.remove()
    return read(records)


def unrecorded_and_recorded(
    tmp_path: Path, run: Callable[[], list[Any]]
) -> tuple[list[Any], list[Any], WorkerLog]:
    plain = run()
    worker.install(tmp_path / "records")
    try:
        recorded = run()
    finally:
        worker.remove()
    return plain, recorded, read(tmp_path / "records")


@pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_batches_are_identical_and_each_is_recorded_under_every_start_method(
    tmp_path: Path, method: str
) -> None:
    def run(method: str) -> list[Any]:
        return cases.seeded_epochs(
            lambda: cases.loader(
                cases.Augmented(),
                shuffle=True,
                num_workers=2,
                persistent_workers=True,
                multiprocessing_context=method,
            ),
            n_epochs=2,
        )

    plain = run("fork")  # the batches don't depend on how workers start
    worker.install(tmp_path)
    try:
        recorded = run(method)
    finally:
        worker.remove()
    log = read(tmp_path)
    assert cases.same(plain, recorded)
    assert_every_delivery_was_made(log, n=len(recorded), n_workers=2)
    assert sorted(set(log.batches.epoch.tolist())) == [0, 1]


def assert_every_delivery_was_made(log: WorkerLog, *, n: int, n_workers: int) -> None:
    assert len(log.deliveries) == n
    row = rows_of(log.deliveries.key, log.batches.key)
    assert (row >= 0).all()
    made = log.batches.where(row)
    assert set(made.worker.tolist()) == set(range(n_workers))
    assert (made.begin_ns <= made.collate_ns).all()
    assert (made.collate_ns <= made.end_ns).all()
    assert (made.wait_ns <= made.begin_ns).all()
    assert (made.end_ns < log.deliveries.end_ns).all()
    # Ready a moment before the bytes are in the pipe, so before the loop can have them.
    assert (made.send_ns != ABSENT).all()
    assert (made.send_ns < log.deliveries.end_ns).all()
    ready = {p.pid: p.ready_ns for p in log.processes if p.role == "worker"}
    assert set(made.pid.tolist()) <= set(ready)
    assert all(p.cores and p.torch_threads == 1 for p in log.processes if p.role == "worker")


@pytest.mark.parametrize("n_workers", [0, 2])
def test_random_numbers_of_the_training_process_are_untouched(
    tmp_path: Path, n_workers: int
) -> None:
    def run() -> list[Any]:
        batches = cases.seeded_epochs(
            lambda: cases.loader(cases.Augmented(), shuffle=True, num_workers=n_workers)
        )
        return [*batches, torch.rand(1), random.random(), float(np.random.rand())]  # noqa: NPY002

    plain, recorded, log = unrecorded_and_recorded(tmp_path, run)
    assert cases.same(plain, recorded)
    assert len(log.deliveries) == 6


@pytest.mark.parametrize("n_workers", [0, 2])
def test_an_iterable_dataset_gives_the_same_and_its_end_is_recorded(
    tmp_path: Path, n_workers: int
) -> None:
    def run() -> list[Any]:
        return cases.seeded_epochs(lambda: cases.loader(cases.Sharded(), num_workers=n_workers))

    plain, recorded, log = unrecorded_and_recorded(tmp_path, run)
    assert cases.same(plain, recorded)
    made = log.batches.where(log.batches.outcome == Outcome.OK)
    assert len(made) == len(recorded) == len(log.deliveries)
    # 30 samples in batches of 4 never divide evenly: the last batch of each worker is short.
    assert log.samples.duration_ns.size >= 30
    if n_workers:
        ended = log.batches.worker[log.batches.outcome == Outcome.EXHAUSTED]
        assert sorted(ended.tolist()) == [0, 1]


@pytest.mark.parametrize("dataset", [cases.Failing(), cases.FailingSharded()])
def test_a_workers_exception_reaches_the_loop_word_for_word(tmp_path: Path, dataset: Any) -> None:
    def run() -> list[Any]:
        error = cases.error_of(cases.loader(dataset, num_workers=1))
        assert isinstance(error, (KeyError, OSError))
        return [type(error), str(error)]

    plain, recorded, log = unrecorded_and_recorded(tmp_path, run)
    assert "Original Traceback" in recorded[1]
    assert plain == recorded, "the traceback's text shows frames of ours"
    assert Outcome.ERROR in log.batches.outcome


def test_a_killed_worker_ends_the_loop_as_ever_and_leaves_readable_records(records: Path) -> None:
    error = cases.error_of(cases.loader(cases.Killed(), num_workers=2))
    # torch notices the death itself, or first meets what the worker left half sent: a socket closed
    # (ConnectionError) or an end of the stream (EOFError). Which one is torch's race, not ours.
    assert isinstance(error, (RuntimeError, ConnectionError, EOFError))
    if isinstance(error, RuntimeError):
        assert "exited unexpectedly" in str(error) or "killed by signal" in str(error)
    log = finished(records)
    assert len(log.deliveries) >= 2
    assert any(p.role == "worker" and p.exit_ns is None for p in log.processes)


def test_a_record_cut_off_anywhere_loses_only_itself(records: Path, tmp_path: Path) -> None:
    list(cases.loader(cases.Augmented(), num_workers=1))
    worker.remove()
    path = next(records.glob("worker-*.rec"))
    whole, content = read(records), path.read_bytes()
    for cut in (3, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        log = read(records)
        assert len(log.batches) <= len(whole.batches)
    assert log.n_truncated == 1


@pytest.mark.parametrize("dataset", [cases.Watchful(), cases.WatchfulBatched()])
def test_dataset_and_collate_see_their_own_objects(tmp_path: Path, dataset: Any) -> None:
    def run() -> list[Any]:
        return list(cases.loader(dataset, num_workers=1, collate_fn=cases.watchful_collate))

    plain, recorded, log = unrecorded_and_recorded(tmp_path, run)
    assert plain == recorded
    assert recorded[0][0] == "list"
    assert (log.batches.collate_ns >= log.batches.begin_ns).all()
    if isinstance(dataset, cases.WatchfulBatched):
        assert log.samples.duration_ns.size == 0  # made as a batch: samples can't be told apart
        assert recorded[0][1].startswith("list int")


def test_a_subset_has_its_samples_timed_and_loading_without_batches_works(records: Path) -> None:
    subset = Subset(cases.Sleeping(), range(10, 26))
    list(cases.loader(subset, num_workers=1))
    list(DataLoader(subset, batch_size=None, num_workers=1))
    log = finished(records)
    batched = log.batches.serial[log.samples.batch] == log.iterators[0].serial
    assert int(batched.sum()) == 16
    assert (log.samples.duration_ns[batched] > 1_500_000).all()
    assert sorted(log.samples.index[batched].tolist()) == list(range(16))
    unbatched = log.batches.serial == log.iterators[1].serial
    assert (log.batches.n_samples[unbatched] == 1).all()


@pytest.mark.parametrize("n_workers", [0, 1])
@pytest.mark.parametrize("batches", [[(0, 1, 2), (3, 4)], [np.arange(3), np.arange(2)]])
def test_samples_of_a_batch_that_a_sampler_gives_as_no_list_are_counted(
    batches: Any, n_workers: int, records: Path
) -> None:
    list(DataLoader(cases.Augmented(5), batch_sampler=batches, num_workers=n_workers))
    keys = DataLoader(cases.Keyed(), batch_size=None, sampler=[(0, 1), (2, 3)])
    assert list(keys) == [1, 5]
    log = finished(records)
    of_loader = [log.batches.where(log.batches.serial == i.serial) for i in log.iterators]
    assert [list(rows.n_samples) for rows in of_loader] == [[3, 2], [1, 1]]


def test_cpu_time_tells_spinning_from_sleeping(records: Path) -> None:
    list(cases.loader(cases.Spinning(), num_workers=1))
    list(cases.loader(cases.Sleeping(sleep_s=0.006), num_workers=1))
    log = finished(records)
    share = log.batches.thread_cpu_ns / (log.batches.end_ns - log.batches.begin_ns)
    spinning = log.batches.serial == log.iterators[0].serial
    assert np.median(share[spinning]) > 3 * np.median(share[~spinning])


@pytest.mark.parametrize("n_workers", [0, 1])
def test_the_hot_line_is_the_users_own(records: Path, n_workers: int) -> None:
    list(cases.loader(cases.Spinning(), num_workers=n_workers))
    log = finished(records)
    hits = [hotspot for hotspot in log.lines if hotspot.phase == "fetch"]
    total = sum(hotspot.count for hotspot in hits)
    assert total >= 5
    mine = [hotspot for hotspot in hits if hotspot.file == cases.__file__]
    assert sum(hotspot.count for hotspot in mine) > 0.8 * total
    assert {hotspot.function.split(".")[-1] for hotspot in mine} == {"__getitem__"}


@pytest.mark.slow
@pytest.mark.alone
def test_looks_at_a_worker_fall_on_code_that_keeps_the_interpreter(records: Path) -> None:
    # Spawned: a worker forked from a process of many tests has what those left behind.
    source = cases.loader(cases.Parsing(), num_workers=1, multiprocessing_context="spawn")
    parsing = total = 0
    until = time.monotonic() + 60
    while total < 20 and time.monotonic() < until:  # a busy machine leaves few turns for looks
        worker.install(records)
        list(source)
        hits = [hotspot for hotspot in finished(records).lines if hotspot.phase == "fetch"]
        parsing = sum(
            hotspot.count for hotspot in hits if hotspot.leaf_file == json.decoder.__file__
        )
        total = sum(hotspot.count for hotspot in hits)
    assert total >= 20
    assert parsing > 0.4 * total  # it takes nine tenths; looks at the usual turns found a quarter


@pytest.mark.parametrize("n_workers", [0, 1])
def test_each_transform_is_timed_and_the_pipeline_is_left_as_it_was(
    tmp_path: Path, n_workers: int
) -> None:
    transforms: list[Any] = [cases.Shift(1.0), cases.Shift(2.0, sleep_s=0.005)]
    dataset = cases.Transformed(cases.Compose(transforms))

    def run() -> list[Any]:
        return cases.seeded_epochs(lambda: cases.loader(dataset, num_workers=n_workers))

    plain, recorded, log = unrecorded_and_recorded(tmp_path, run)
    assert cases.same(plain, recorded)
    assert dataset.transform.transforms is transforms
    assert type(transforms) is list
    assert {t.name for t in log.transforms} == {"Shift #1", "Shift #2"}
    # A run of more than half a second tells them more than once.
    ns, n = (
        {
            name: sum(getattr(t, field) for t in log.transforms if t.name == name)
            for name in ("Shift #1", "Shift #2")
        }
        for field in ("total_ns", "n_samples")
    )
    assert ns["Shift #2"] > 2 * ns["Shift #1"]
    assert n == {"Shift #1": 64 // 8, "Shift #2": 64 // 8}


def test_at_no_workers_batches_are_recorded_in_the_training_process(records: Path) -> None:
    source = cases.loader(cases.Sleeping(n=16), shuffle=True)
    for _ in range(2):
        for _ in source:
            pass
    log = finished(records)
    assert set(log.batches.pid.tolist()) == {os.getpid()}
    assert set(log.batches.worker.tolist()) == {-1}
    assert len(log.batches) == len(log.deliveries) == 8
    assert (rows_of(log.deliveries.key, log.batches.key) >= 0).all()
    assert log.samples.duration_ns.size == 32


class Numbers(Dataset[int]):
    """Samples that take next to no time."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        return index


def test_the_first_samples_of_each_epoch_are_timed_however_short_they_are(records: Path) -> None:
    source = DataLoader(Numbers(), batch_size=4)
    for _ in range(2):
        list(source)
    log = finished(records)
    assert len(log.batches) == 200
    timed = log.samples.index.tolist()
    # Of an epoch 32 samples, and no more than another batch: a hundred are too few to skip 126.
    assert [timed.count(i) for i in range(32)] == [2] * 32
    assert len(timed) <= 2 * (FIRST_SAMPLES + 4)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_time_in_the_sampler_is_recorded(records: Path, n_workers: int) -> None:
    batches: Any = cases.SlowIndices()
    source = DataLoader(cases.Augmented(32), batch_sampler=batches, num_workers=n_workers)
    list(source)
    log = finished(records)
    slow = log.sampler_draws.end_ns - log.sampler_draws.start_ns
    assert len(slow) == 8
    assert (slow > 3_500_000).all()


def test_batches_out_of_order_are_known_by_their_number(records: Path) -> None:
    dataset = cases.Sleeping(n=32, sleep_s=0.001, slow_every=8, slow_s=0.03)
    got = [int(batch[0, 0]) // 4 for batch in cases.loader(dataset, num_workers=2, in_order=False)]
    log = finished(records)
    assert got != sorted(got)
    assert log.deliveries.idx.tolist() == got


def custom_loop(*args: Any, **kwargs: Any) -> None:
    """A user's own replacement of torch's worker loop."""
    os.environ["CUSTOM_LOOP_RAN"] = "1"
    _torchs_own(*args, **kwargs)


_torchs_own = torch_worker._worker_loop


class Environment(cases.Augmented):
    def __getitem__(self, i: int) -> Any:
        return int(os.environ.get("CUSTOM_LOOP_RAN", "0"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loop_patched_by_the_user_beforehand_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(torch_worker, "_worker_loop", custom_loop)
    worker.install(tmp_path)
    source = cases.loader(Environment(4), num_workers=1, multiprocessing_context=method)
    assert next(iter(source)).tolist() == [1, 1, 1, 1]
    worker.remove()
    assert torch_worker._worker_loop is custom_loop
    assert len(read(tmp_path).batches) == 1


def test_a_loop_patched_by_the_user_afterwards_still_runs_and_survives(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = torch_worker._worker_loop

    @functools.wraps(ours)
    def on_top(*args: Any, **kwargs: Any) -> None:
        os.environ["CUSTOM_LOOP_RAN"] = "1"
        ours(*args, **kwargs)

    monkeypatch.setattr(torch_worker, "_worker_loop", on_top)
    assert next(iter(cases.loader(Environment(4), num_workers=1))).tolist() == [1, 1, 1, 1]
    worker.remove()
    assert torch_worker._worker_loop is on_top
    assert len(read(records).batches) == 1


def test_removing_leaves_torch_as_it_was(tmp_path: Path) -> None:
    def state() -> dict[str, Any]:
        owners = (
            torch_worker,
            torch_pin,
            torch_loader._DatasetKind,
            torch_fetch._BaseDatasetFetcher,
            torch_loader._BaseDataLoaderIter,
            torch_loader._SingleProcessDataLoaderIter,
            torch_loader._MultiProcessingDataLoaderIter,
        )
        return {f"{o.__name__}.{k}": v for o in owners for k, v in vars(o).items()}

    before = state()
    source = cases.loader(cases.Augmented())
    for _ in range(2):
        worker.install(tmp_path)
        iterator = iter(source)
        next(iterator)
        worker.remove()
        after = state()
        assert after.keys() == before.keys()
        assert all(after[name] is before[name] for name in before)
        assert len(list(iterator)) == 5  # an iterator opened meanwhile goes on without us


def test_a_forked_child_writes_nothing_into_its_parents_file(records: Path) -> None:
    next(iter(cases.loader(cases.Augmented())))
    pid = os.fork()
    if pid == 0:
        list(cases.loader(cases.Augmented()))
        worker.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    log = finished(records)
    assert len(log.batches) == 1
    assert log.n_truncated == 0


def test_the_pin_memory_thread_is_timed(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an accelerator torch starts no such thread, so its loop is run here directly."""
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    source = iter(cases.loader(cases.Sleeping(n=16), num_workers=1, collate_fn=tuple_of_sums))
    assert isinstance(source, torch_loader._MultiProcessingDataLoaderIter)
    pinned: queue.Queue[Any] = queue.Queue()
    done = threading.Event()
    thread = threading.Thread(
        target=torch_pin._pin_memory_loop,
        args=(source._worker_result_queue, pinned, 0, done, None),
    )
    thread.start()
    got = [pinned.get(timeout=10)[0] for _ in range(2)]  # what was requested ahead
    done.set()
    source._worker_result_queue.put((None, None))
    thread.join()
    log = finished(records)
    assert got == [0, 1] == log.pins.idx.tolist()
    assert (log.pins.wait_ns <= log.pins.start_ns).all()
    assert (log.pins.start_ns <= log.pins.end_ns).all()
    assert set(log.pins.serial.tolist()) == {log.iterators[0].serial}


def tuple_of_sums(samples: list[torch.Tensor]) -> tuple[float, ...]:
    return tuple(float(sample.sum()) for sample in samples)


class Blobs(torch.utils.data.Dataset[torch.Tensor]):
    """Reads a file for each sample, in calls of 1,000 bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.path.open("rb", buffering=0) as file:
            return torch.tensor(sum(len(file.read(1_000)) for _ in range(100)))


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count reads")
def test_what_workers_read_for_a_batch_is_counted(records: Path, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(bytes(100_000))
    batches = list(DataLoader(Blobs(path), batch_size=2, num_workers=2))
    assert [int(x) for batch in batches for x in batch] == [100_000] * 40
    workers = [p for p in finished(records).processes if p.role == "worker"]
    assert len(workers) == 2
    for process in workers:
        reads = process.reads
        assert reads is not None and reads.n_batches == 10
        # Two samples a batch, and little for the queues and for reading the counters themselves.
        assert 200_000 <= reads.n_bytes / reads.n_batches < 220_000
        assert 200 <= reads.n_calls / reads.n_batches < 240
        assert reads.disk_bytes <= reads.n_bytes


def test_containers_of_the_dataset_that_grow_in_a_worker_are_named(records: Path) -> None:
    loader = cases.loader(cases.Keeping(), num_workers=2, batch_size=4)
    for _ in loader:
        pass
    grown = [p.grown for p in finished(records).processes if p.role == "worker"]
    assert len(grown) == 2
    assert all([name for name, _, _ in one] == ["kept", "square()"] for one in grown)
    assert sum(last - first for ((_, first, last), _) in grown) == len(cases.Keeping())


PIECES, PIECE_BYTES = 1_000, 60_000  # below the 128 kB from which malloc asks the system for each


class Pieces(Dataset[int]):
    """Gives every other one of its pieces back, 30 MB that malloc can't return, or keeps all."""

    def __init__(self, *, gives_back: bool) -> None:
        self.gives_back = gives_back
        self.pieces: list[bytearray] = []

    def make(self, worker: int) -> None:
        """Before the worker describes itself first: free memory of its parent is used up here."""
        self.pieces = [bytearray(PIECE_BYTES) for _ in range(PIECES)]
        ctypes.CDLL(None).malloc_trim(0)  # or the end of the heap may go back in between

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> int:
        if index == 80 and self.gives_back:
            del self.pieces[::2]
        return index


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="malloc does not tell")
def test_what_malloc_holds_free_in_a_worker_is_told(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker whose malloc takes over 1 ms to tell asks no more, which test_worker_sampling holds.
    # A spawned worker would not know of this.
    monkeypatch.setattr(worker_sampling, "MAX_ASKING_S", float("inf"))
    for pieces in (Pieces(gives_back=False), Pieces(gives_back=True)):
        for _ in DataLoader(
            pieces,
            batch_size=4,
            num_workers=1,
            worker_init_fn=pieces.make,
            multiprocessing_context="fork",
        ):
            pass
    told = {p.serial: p.heap_freed_bytes for p in finished(records).processes if p.role == "worker"}
    kept, given_back = (told[serial] for serial in sorted(told))
    assert kept is not None
    assert given_back is not None
    # Whatever else the two do with their parent's memory, they do alike.
    assert given_back - kept > 0.8 * PIECES / 2 * PIECE_BYTES


def test_collections_in_a_worker_are_counted_and_its_collector_is_left_as_it_was(
    records: Path,
) -> None:
    loader = cases.loader(cases.Collected(), num_workers=1, batch_size=4)
    for _ in loader:
        pass
    (counted,) = [p.collected for p in finished(records).processes if p.role == "worker"]
    assert counted is not None
    # Asked for once a sample; the first batches are before the first look.
    assert counted.n_full >= 4 * counted.n_batches > 0
    assert counted.ns > 0
