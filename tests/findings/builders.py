"""Facts of a healthy run, and helpers that make one thing in it ill.

The healthy run: an H100 step of 10 ms, 9.6 of them compute, four workers that take 20 ms a batch
(so a batch each 5 ms), pinned non-blocking copies of 2 % on the compute stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LineHotspot, WorkerFacts
from loaderdoctor.facts.loop import AblationFacts, MachineFacts, StepFacts
from loaderdoctor.facts.step import Hidden, Shares
from loaderdoctor.facts.trace import (
    CopyFacts,
    FetchFacts,
    HostFacts,
    KernelFacts,
    SyncFacts,
    TraceFacts,
)
from loaderdoctor.instrument.wire.records import (
    LoaderRecord,
    SafetyRecord,
    TensorRecord,
    TransferRecord,
)
from loaderdoctor.settings import Settings
from tests.trace_facts import changed

STEP_MS = 10.0
IMAGE = TensorRecord(
    path="[0]", shape=(64, 3, 224, 224), dtype="uint8", n_bytes=9_633_792, pinned=True
)
FLOAT_IMAGE = TensorRecord(
    path="[0]", shape=(64, 3, 224, 224), dtype="float32", n_bytes=38_535_168, pinned=True
)
LABELS = TensorRecord(path="[1]", shape=(64,), dtype="int64", n_bytes=512, pinned=True)
CODE = "loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)"


def estimate(value: float, margin: float = 0.1, n: int = 5) -> Estimate:
    return Estimate(value=value, low=value - margin, high=value + margin, n=n)


def shares(
    *, input_: float = 0.0, copy: float | None = 0.02, host: float = 0.02, communication: float = 0
) -> Shares:
    rest = 1.0 - input_ - (copy or 0.0) - host - communication
    return Shares(
        compute=rest, communication=communication, copy=copy, input=input_, host=host, other=0.0
    )


def copy_facts(**changes: Any) -> CopyFacts:
    healthy = CopyFacts(
        source="pinned",
        n_per_step=2.0,
        bytes_per_step=9_634_304.0,
        busy_ms_per_step=0.2,
        exposed_ms_per_step=0.2,
        bandwidth_gb_per_s=48.0,
        host_blocked_ms_per_step=0.02,
        same_stream_as_compute=True,
        median_bytes=4_817_152.0,
    )
    return replace(healthy, **changes)


def trace(**changes: Any) -> TraceFacts:
    healthy = TraceFacts(
        n_steps=20,
        wall_ms=STEP_MS,
        step_walls_ms=(STEP_MS,) * 20,
        step_clock="device",
        shares=shares(),
        hidden=Hidden(input_ms=5.0, copy_ms=0.0),
        has_accelerator=True,
        fetching=FetchFacts(
            recorded=True,
            kind="multi-process",
            n_per_step=1.0,
            raw_wait_ms=5.0,
            waits_ms=(5.0,) * 20,
            n_iterators_created=0,
            n_exhausted=0,
            startup_ms=(),
        ),
        copies=(copy_facts(),),
        kernels=KernelFacts(n_per_step=70.0, busy_ms=9.6, mean_us=137.0, communication_ms=0.0),
        syncs=SyncFacts(n_per_step=0.0, wait_ms=0.0, idle_after_ms=0.0),
        host=HostFacts(
            exposed_ms=0.2,
            hotspots=(),
            launch_call_ms=0.6,
            run_ahead_steps=4.0,
        ),
    )
    return changed(healthy, **changes)


def workers(**changes: Any) -> WorkerFacts:
    healthy = WorkerFacts(
        n_workers=4,
        n_batches=80,
        batch_ms=20.0,
        fetch_ms=19.0,
        collate_ms=1.0,
        sampler_ms=0.05,
        cpu_share=0.95,
        sample_ms_quantiles=(0.2, 0.25, 0.28, 0.3, 0.32, 0.35, 0.4, 0.6),
        n_samples=5120,
        queue_put_ms=0.1,
        idle_share=0.5,
        n_idle_workers=0,
        n_threads=1,
        cores=((0, 1, 2, 3, 4, 5, 6, 7),) * 4,
        head_of_line_ms=0.0,
        pin_ms=1.0,
        pin_busy_share=0.1,
        transforms=(),
        lines=(),
        first_touch_ratio=1.0,
    )
    return replace(healthy, **changes)


def step(**changes: Any) -> StepFacts:
    wall_ms = changes.pop("wall_ms", STEP_MS)
    healthy = StepFacts(
        definition="one batch of train.py:41",
        wall_ms=estimate(wall_ms),
        within_epoch_ms=estimate(wall_ms),
        boundary_ms=60.0,
        steps_per_epoch=1000,
        n_steps=200,
        raw_wait_ms=5.0,
        waits_ms=(5.0,) * 200,
        samples_per_step=64.0,
        clock="device",
        n_iterators_created=0,
        worker_cpu_cores=2.0,
        main_cpu_cores=1.0,
    )
    return replace(healthy, **changes)


def machine(**changes: Any) -> MachineFacts:
    healthy = MachineFacts(
        usable_cpus=8.0,
        memory_available_bytes=64 * 1024**3,
        shm_free_bytes=32 * 1024**3,
        open_files_limit=65536,
        device_name="H100",
        device_memory_bytes=80 * 1024**3,
        n_threads=8,
        swap_used_bytes=0,
        start_method="fork",
    )
    return replace(healthy, **changes)


def loader(**changes: Any) -> LoaderRecord:
    """A healthy loader's record; `settings` and `safety` take dicts of what differs."""
    settings: dict[str, Any] = {
        "num_workers": 4,
        "prefetch_factor": 2,
        "persistent_workers": False,
        "pin_memory": True,
        "in_order": True,
        "background": "off",
        **changes.pop("settings", {}),
    }
    fields: dict[str, Any] = {
        "id": "train.py:41",
        "role": "train",
        "code": CODE,
        "dataset": "Photos",
        "n_samples": 64_000,
        "batch_size": 64,
        "steps_per_epoch": 1000,
        "sampler": "RandomSampler",
        "collate": "default_collate",
        "batch": (IMAGE, LABELS),
        "batch_type": "list",
        "safety": SafetyRecord(**changes.pop("safety", {})),
    }
    return LoaderRecord(settings=Settings(**settings), **{**fields, **changes})


def transfer(**changes: Any) -> TransferRecord:
    fields: dict[str, Any] = {
        "call": "to",
        "site": "train.py:57",
        "code": "images = images.to(device, non_blocking=True)",
        "shape": IMAGE.shape,
        "dtype": IMAGE.dtype,
        "n_bytes": IMAGE.n_bytes,
        "pinned": True,
        "non_blocking": True,
    }
    return TransferRecord(**{**fields, **changes})


def line(**changes: Any) -> LineHotspot:
    """A line seen in 60 of 100 stack samples; `share` says how many."""
    n_stack_samples = round(changes.pop("share", 0.6) * changes.get("of_stack_samples", 100))
    healthy = LineHotspot(
        file="/home/u/data.py",
        line=30,
        function="__getitem__",
        code="x = self.load(i)",
        n_stack_samples=n_stack_samples,
        of_stack_samples=100,
    )
    return replace(healthy, **changes)


def ablation(*, input_ms: float = 0.0, copy_ms: float = 0.2, margin: float = 0.1) -> AblationFacts:
    plain_ms = STEP_MS
    return AblationFacts(
        plain_ms=estimate(plain_ms),
        no_input_ms=estimate(plain_ms - input_ms),
        no_copy_ms=estimate(plain_ms - input_ms - copy_ms),
        input_ms=estimate(input_ms, margin),
        copy_ms=estimate(copy_ms, margin),
        n_rounds=5,
    )


def healthy(**changes: Any) -> Facts:
    """A healthy run, without ablation; replace any part of it."""
    facts = Facts(
        command="diagnose",
        shares=shares(),
        shares_low=None,
        hidden=Hidden(input_ms=5.0, copy_ms=0.0),
        step=step(),
        trace=trace(),
        loaders=(loader(),),
        transfers=(transfer(),),
        workers=workers(),
        ablation=None,
        machine=machine(),
        profiler_overhead=1.1,
    )
    return replace(facts, **changes)


def with_exposed(
    *, input_: float = 0.0, copy: float = 0.02, host: float = 0.02, margin: float = 0.1, **more: Any
) -> Facts:
    """A run whose exposed shares are these, by the trace and by an ablation that agrees."""
    split = shares(input_=input_, copy=copy, host=host)
    seen = ablation(input_ms=input_ * STEP_MS, copy_ms=copy * STEP_MS, margin=margin)
    facts = healthy(
        shares=split,
        shares_low={
            "input": input_ - margin / STEP_MS,
            "copy": copy - margin / STEP_MS,
        },
        trace=trace(shares=split, host_exposed_ms=host * STEP_MS),
        ablation=seen,
    )
    return replace(facts, **more)
