"""Memory of the process tree: shared pages once, and what is still free within limits."""

from __future__ import annotations

import multiprocessing as mp
import os
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil
import pytest
import torch

from loaderdoctor.instrument.system import memory

linux_only = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc")


def hold(n_bytes: int, ready: Event, done: Event) -> None:
    held = bytearray(os.urandom(1) * n_bytes)
    ready.set()
    done.wait()
    assert len(held) == n_bytes


@linux_only
def test_a_forked_child_adds_its_own_pages_and_not_its_parents() -> None:
    context = mp.get_context("fork")
    # Large beside the pages of libraries: another process that maps them takes up to 20 MiB of
    # this one's share, one that ends gives them back.
    shared = bytearray(b"x" * (500 * 2**20))
    before = memory.host_bytes(os.getpid())
    ready, done = context.Event(), context.Event()
    child = context.Process(target=hold, args=(400 * 2**20, ready, done))
    child.start()
    try:
        assert ready.wait(30)
        after = memory.host_bytes(os.getpid())
    finally:
        done.set()
        child.join()
    assert before is not None
    assert after is not None
    assert 300 * 2**20 < after - before < 500 * 2**20  # the 500 MiB are counted once
    assert len(shared) == 500 * 2**20


def test_a_process_that_is_gone_has_no_memory() -> None:
    child = mp.get_context("fork").Process(target=int)
    child.start()
    child.join()
    assert child.pid is not None
    assert memory.host_bytes(child.pid) is None


def test_pss_is_read_from_the_rollup(tmp_path: Path) -> None:
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    (folder / "smaps_rollup").write_text(
        "55d0-7ffe ---p 00000000 00:00 0  [rollup]\nRss:  900 kB\nPss:  300 kB\nPss_Dirty: 1 kB\n"
    )
    children = psutil.Process().children(recursive=True)
    for child in children:
        (tmp_path / str(child.pid)).mkdir()
        (tmp_path / str(child.pid) / "smaps_rollup").write_text("Pss: 0 kB\n")
    assert memory.host_bytes(os.getpid(), tmp_path) == 300 * 1024


def test_without_a_rollup_resident_sizes_are_summed(tmp_path: Path) -> None:
    resident = psutil.Process().memory_info().rss
    found = memory.host_bytes(os.getpid(), tmp_path)
    assert found is not None
    assert found > 0.5 * resident


def test_free_memory_is_what_the_container_leaves(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(str(100 * 2**20))
    (group / "memory.current").write_text(str(70 * 2**20))
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {20 * 2**20}\n")
    assert memory.available_bytes(tmp_path) == 50 * 2**20
    assert memory.shm_free_bytes(tmp_path) is None
    assert memory.available_bytes(Path("/")) is not None


def test_there_are_no_gpu_peaks_without_a_gpu() -> None:
    assert memory.gpu_peaks(None) is None
    assert memory.gpu_peaks(torch.device("cpu")) is None
    assert memory.gpu_free_bytes(torch.device("cpu")) is None
    memory.reset_gpu_peaks(None)
    memory.empty_gpu_cache(None)


@pytest.mark.gpu
def test_gpu_peaks_start_again_at_each_reset() -> None:
    device = torch.device("cuda", 0)
    memory.empty_gpu_cache(device)
    base = memory.gpu_peaks(device)
    assert base is not None
    big = torch.zeros(64 * 2**20, dtype=torch.uint8, device=device)
    del big
    held = memory.gpu_peaks(device)
    assert held is not None
    assert held.allocated_bytes - base.allocated_bytes >= 64 * 2**20
    assert held.reserved_bytes >= held.allocated_bytes
    memory.reset_gpu_peaks(device)
    kept = memory.gpu_peaks(device)
    assert kept is not None
    assert kept.allocated_bytes == base.allocated_bytes
    assert kept.reserved_bytes == held.reserved_bytes  # the cache is still there
    memory.empty_gpu_cache(device)
    assert memory.gpu_peaks(device) == base
