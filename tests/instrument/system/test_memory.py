"""What is still free within limits, and what torch and the allocator take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loaderdoctor.instrument.system import memory


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
