"""Builds window records with known step times."""

from __future__ import annotations

from collections.abc import Sequence

from loaderdoctor.instrument.wire.measured import CopyRecord, FetchRecord
from loaderdoctor.instrument.wire.protocol import Mode, Observed, WindowDone
from loaderdoctor.instrument.wire.records import BoundaryRecord, Environment, LoaderRecord
from loaderdoctor.settings import Settings

MS = 1_000_000


def window(
    mode: Mode,
    steps_ms: Sequence[float],
    *,
    device_ms: Sequence[float] | None = None,
    waits_ms: Sequence[float] = (),
    boundary_steps: Sequence[int] = (),
    crossed_steps: Sequence[int] = (),
    boundaries: Sequence[BoundaryRecord] = (),
    copies: CopyRecord | None = None,
    batch_size: int = 8,
) -> WindowDone:
    """One window whose steps last as told."""
    host = tuple(round(x * MS) for x in steps_ms)
    fetches = []
    at = 0
    for wait in waits_ms:
        fetches.append(FetchRecord(loader=0, start_ns=at, end_ns=at + round(wait * MS), thread=1))
        at += round(wait * MS) + 1
    return WindowDone(
        id=1,
        mode=mode,
        status="ok",
        n_steps=len(host),
        n_samples=len(host) * batch_size,
        start_ns=0,
        end_ns=sum(host),
        host_step_ns=host,
        device_step_ns=None if device_ms is None else tuple(round(x * MS) for x in device_ms),
        boundary_steps=tuple(boundary_steps),
        crossed_steps=tuple(crossed_steps),
        boundaries=tuple(boundaries),
        fetches=tuple(fetches),
        copies=copies,
    )


def boundary(total_ms: float, *, first: bool = False) -> BoundaryRecord:
    """An epoch boundary, half creation and half first batch."""
    half = round(total_ms * MS / 2)
    return BoundaryRecord(
        loader="train.py:1",
        create_ns=half,
        first_wait_ns=half,
        teardown_ns=0,
        at_ns=0,
        first=first,
    )


def observed(
    *,
    step_ms: float = 10.0,
    n: int = 10,
    steps_per_epoch: int | None = 100,
    workers: int = 0,
    boundaries: Sequence[BoundaryRecord] = (),
    device: str | None = None,
) -> Observed:
    """A warm loop with one training loader and one for validation."""
    return Observed(
        definition="one batch of train.py:1",
        step_ns=tuple(round(step_ms * MS) for _ in range(n)),
        loaders=(
            LoaderRecord(
                id="train.py:1",
                role="train",
                settings=Settings(num_workers=workers),
                steps_per_epoch=steps_per_epoch,
                batch_size=8,
            ),
            LoaderRecord(id="train.py:2", role="other"),
        ),
        transfers=(),
        boundaries=tuple(boundaries),
        n_steps_so_far=n,
        device=device,
        batches_per_cycle=max(1, workers),
        environment=Environment(
            torch="2.11",
            python="3.12",
            platform="linux",
            device_name=None,
            device_memory_bytes=None,
            cuda=None,
            usable_cpus=2.0,
            n_threads=1,
            memory_available_bytes=None,
            shm_free_bytes=None,
            open_files_limit=None,
            start_method="fork",
            host="here",
        ),
    )
