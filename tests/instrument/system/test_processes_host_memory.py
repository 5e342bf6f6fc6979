"""Memory of the process tree: shared pages once."""

from __future__ import annotations

import multiprocessing as mp
import os
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil
import pytest

from loaderdoctor.instrument.system.processes import host_bytes

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
    before = host_bytes(os.getpid())
    ready, done = context.Event(), context.Event()
    child = context.Process(target=hold, args=(400 * 2**20, ready, done))
    child.start()
    try:
        assert ready.wait(30)
        after = host_bytes(os.getpid())
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
    assert host_bytes(child.pid) is None


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
    assert host_bytes(os.getpid(), tmp_path) == 300 * 1024


def test_without_a_rollup_resident_sizes_are_summed(tmp_path: Path) -> None:
    resident = psutil.Process().memory_info().rss
    found = host_bytes(os.getpid(), tmp_path)
    assert found is not None
    assert found > 0.5 * resident
