"""What torch and the allocator take."""

from __future__ import annotations

import pytest
import torch

from loaderdoctor.instrument.system import memory


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
