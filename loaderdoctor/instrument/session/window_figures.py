"""What a window tells beside its times: samples, and memory of the process tree and the device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from loaderdoctor.instrument.session.loaders import LoaderState
from loaderdoctor.instrument.wire.protocol import WindowRequest

if TYPE_CHECKING:
    from loaderdoctor.instrument.session.session import Session


def samples_per_batch(loader: LoaderState, request: WindowRequest) -> float:
    """Samples in a batch: the size asked for or the loader's, else its first dimension."""
    if request.settings is not None and request.settings.batch_size is not None:
        return float(request.settings.batch_size)
    sizes = [b[0].shape[0] for b in loader.described if b and b[0].shape]
    if loader.record.batch_size is not None:
        return float(loader.record.batch_size)
    return sum(sizes) / len(sizes) if sizes else 0.0


def reset_gpu_peaks(session: Session) -> None:
    """Peaks only: emptying the allocator's cache here would slow the first steps measured."""
    if session.device is not None:
        import torch

        torch.cuda.reset_peak_memory_stats(session.device)


def gpu_peaks(session: Session) -> tuple[int | None, int | None]:
    from loaderdoctor.instrument.system import memory

    peaks = memory.gpu_peaks(session.device)
    return (peaks.allocated_bytes, peaks.reserved_bytes) if peaks is not None else (None, None)


def host_bytes(session: Session) -> int | None:
    try:
        from loaderdoctor.instrument.system import memory

        return memory.host_bytes(os.getpid())
    except Exception as error:  # /proc of a worker that just ended
        session.note("memory-not-recorded", f"{type(error).__name__}: {error}")
        return None
