"""Sound files of the kinds that loaderdoctor reads back, written by its own writers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from loaderdoctor.commands.sweep.plan import SweepOptions
from loaderdoctor.instrument.wire.measured import FetchRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.instrument.wire.record_file import (
    BATCH,
    DELIVERY,
    DRAW,
    PIN,
    SEND,
    Kind,
    RecordWriter,
)
from loaderdoctor.report import encode_report
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import timings_file as sweep_samples
from loaderdoctor.tryout import Measurement, Trial
from tests.report.samples import sweep


def report(folder: Path) -> Path:
    """report.json of a sweep with trials, findings and recommendations."""
    path = folder / "report.json"
    path.write_bytes(encode_report(sweep()))
    return path


WINDOW = WindowDone(
    id=0,
    mode="trial",
    status="ok",
    n_steps=3,
    n_samples=96,
    start_ns=10,
    end_ns=70,
    host_step_ns=(20, 10, 30),
    device_step_ns=(21, 19, 20),
    boundary_steps=(1,),
    fetches=(FetchRecord(loader=0, start_ns=11, end_ns=15, thread=0),),
    startup_ns=5,
)


def samples(folder: Path) -> Path:
    """samples.npz of a sweep of two trials."""
    measurements = [Measurement(phase="rank", round=n, wall_s=1.5, window=WINDOW) for n in range(2)]
    options = SweepOptions(target=("train.py",), rounds=2, budget_s=60.0)
    trials = [
        Trial(index=i, settings=Settings(num_workers=i), measurements=list(measurements))
        for i in (0, 1)
    ]
    sweep_samples.write(folder, trials, options=options.saved(), spent_s=12.0)
    return folder / sweep_samples.NAME


def records(folder: Path) -> Path:
    """A worker's record file with every kind of record."""
    writer = RecordWriter(folder, "worker")
    writer.add_json(
        Kind.PROCESS, {"role": "worker", "pid": 7, "worker": 0, "serial": 1, "started_ns": 5}
    )
    described = {
        "cores": [0, 1],
        "torch_threads": 1,
        "native_threads": 3,
        "run_wait_ns": 10,
    }
    writer.add_json(
        Kind.ITERATOR,
        {
            "serial": 1,
            "created_ns": 4,
            "num_workers": 1,
            "prefetch_factor": 2,
            "in_order": True,
            "pin_memory": False,
            "dataset": 9,
        },
    )
    for n in range(4):
        t = 100 * n
        reads = [n, 5_000 * n, 4 * n, 4_096 * n]
        more = {"described_ns": t, "run_wait_ns": 10 + n, "reads": reads}
        writer.add_json(Kind.PROCESS, {**described, **more})
        writer.add(Kind.DRAW, DRAW.pack(1, 0, n, t, t + 1))
        stamps = np.array([t + 3, t + 9, t + 20], np.int64)
        head = (1, 0, n, 0, 0, 2, t, t + 2, t + 20, t + 30, 25, 26, stamps.size, 2)
        drawn = np.array([2 * n, 2 * n + 1], np.int64)
        writer.add(Kind.BATCH, BATCH.pack(*head) + stamps.tobytes() + drawn.tobytes())
        writer.add(Kind.SEND, SEND.pack(1, 0, n, t + 30, t + 31, t + 35, 4096, 77))
        writer.add(Kind.PIN, PIN.pack(1, 0, n, t + 35, t + 36, t + 40, 78))
        writer.add(Kind.DELIVERY, DELIVERY.pack(1, 0, n, t + 30, t + 45, 79))
        writer.add_json(
            Kind.LINES,
            {
                "since_ns": t,
                "until_ns": t + 50,
                "spots": [["fetch", "a.py", 3, "f", "b.py", 4, "g", 2]],
                "serial": 1,
            },
        )
        probed = {"since_ns": t, "until_ns": t + 50, "transforms": {"Crop": [900, 2]}, "serial": 1}
        writer.add_json(Kind.TRANSFORMS, probed)
    writer.close()
    return writer.path


def idx(folder: Path) -> Path:
    """An IDX file of three images of 4 x 4."""
    path = folder / "train-images-idx3-ubyte"
    images = np.arange(48, dtype=np.uint8)
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 3, 4, 4) + images.tobytes())
    return path
