"""How much workers have to themselves, and whether it grows with what they make."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from loaderdoctor.attribution.run_facts import worker_memory_facts
from loaderdoctor.instrument.wire.measured import PoolMemoryRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.worker_log import ProcessRecord, WorkerLog
from loaderdoctor.instrument.wire.worker_records import read

MIB = 2**20
S = 1_000_000_000


def window(at_s: float, **by_pid: int) -> WindowDone:
    """Its end, and what each worker has (MiB) by `p` and its pid."""
    sizes = tuple((int(pid[1:]), mib * MIB) for pid, mib in by_pid.items())
    memory = PoolMemoryRecord(by_pid=sizes) if sizes else None
    return WindowDone(id=1, mode="plain", status="ok", end_ns=int(at_s * S), pool_memory=memory)


def log(*, grown: dict[int, tuple[tuple[str, int, int], ...]] | None = None) -> WorkerLog:
    """Two workers, ten batches of 8 samples a second each, for 60 s."""
    empty = read(Path(__file__).parent / "no such folder")
    n = 1200
    at = np.arange(n, dtype=np.int64)
    pids = np.where(at % 2 == 0, 7, 8)
    zeros = np.zeros(n, dtype=np.int64)
    columns = dict.fromkeys((x.name for x in fields(empty.batches)), zeros)
    columns |= {"pid": pids, "n_samples": zeros + 8, "end_ns": at * (S // 20), "idx": at}
    processes = tuple(
        ProcessRecord(
            role="worker", pid=pid, worker=i, serial=1, started_ns=0, ready_ns=0, exit_ns=None,
            cores=None, torch_threads=1, native_threads=None, grown=(grown or {}).get(pid, ()),
            heap_freed_bytes=(i + 1) * MIB,
        )
        for i, pid in enumerate((7, 8))
    )  # fmt: skip
    return replace(empty, batches=type(empty.batches)(**columns), processes=processes)


def test_growth_is_per_worker_and_counted_in_samples() -> None:
    looks = [window(10.0 * i, p7=40 + 10 * i, p8=50 + 10 * i) for i in range(5)]
    memory = worker_memory_facts(looks, log())
    assert memory is not None
    assert (memory.n_workers, memory.worker_bytes) == (2, 90 * MIB)
    growth = memory.growth
    assert growth is not None
    assert (growth.first_bytes, growth.last_bytes) == (45 * MIB, 85 * MIB)
    assert growth.n_samples == 40 * 10 * 8  # of one worker
    assert growth.took_s == 40.0
    assert abs(growth.late_part - 0.5) < 0.01
    assert growth.heap_freed_bytes == 1.5 * MIB  # by worker


def test_what_came_at_first_is_told_from_what_goes_on() -> None:
    sizes = (40, 90, 95, 95, 96)
    looks = [window(10.0 * i, p7=n, p8=n) for i, n in enumerate(sizes)]
    growth = getattr(worker_memory_facts(looks, log()), "growth", None)
    assert growth is not None
    assert growth.late_part < 0.05


def test_only_workers_that_lived_through_the_looks_tell_of_growth() -> None:
    born_each_epoch = [window(10.0 * i, **{f"p{i}": 40 + i}) for i in range(5)]
    memory = worker_memory_facts(born_each_epoch, log())
    assert memory is not None
    assert memory.worker_bytes == 44 * MIB
    assert memory.growth is None
    few = [window(10.0 * i, p7=40 + i) for i in range(3)]
    assert getattr(worker_memory_facts(few, log()), "growth", 0) is None
    assert worker_memory_facts([window(1.0)], log()) is None
    without_log = worker_memory_facts(
        [window(10.0 * i, p7=40 + 10 * i, p8=50) for i in range(5)], None
    )
    assert without_log is not None
    assert without_log.growth is None


def test_a_container_that_grew_in_every_worker_is_named() -> None:
    grown = {7: (("kept", 0, 800), ("log", 0, 3)), 8: (("kept", 0, 900),)}
    looks = [window(10.0 * i, p7=40 + 10 * i, p8=50 + 10 * i) for i in range(5)]
    growth = getattr(worker_memory_facts(looks, log(grown=grown)), "growth", None)
    assert growth is not None
    assert growth.grown == (("kept", 0, 900),)
