"""The workloads of MLPerf Storage's dlio-benchmark 2.0.0, scaled to fit: what `dlio.py` runs.

Each of the fourteen configurations that DLIO ships is here once, and three of our own that starve.
Where DLIO's is for TensorFlow's loader and TFRecord files, its sizes are kept and PyTorch's loader
reads a format that this one has. Bytes, batch and computing are scaled as `told` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One of DLIO's, scaled. `told` says what it is like."""

    name: str
    base: str  # DLIO's own configuration
    told: str
    n_files: int
    samples_per_file: int = 1
    record_bytes: int
    batch_size: int
    compute_s: float
    n_workers: int
    extra: dict[str, Any] = field(default_factory=dict)
    file_s: float = 0.0  # of reading a file beside its bytes, about

    @property
    def n_steps(self) -> int:
        return self.n_files * self.samples_per_file // self.batch_size

    @property
    def epoch_s(self) -> float:
        """Of computing and of reading at 100 MB a second: which takes longest."""
        n_bytes = self.n_files * self.samples_per_file * self.record_bytes
        return self.n_steps * self.compute_s + n_bytes / 1e8 + self.n_files * self.file_s

    def overrides(self, data: Path) -> dict[str, Any]:
        return {
            "framework": "pytorch",
            "dataset.data_folder": data,
            "dataset.num_files_train": self.n_files,
            "dataset.num_samples_per_file": self.samples_per_file,
            "dataset.record_length": self.record_bytes,
            "dataset.record_length_stdev": 0,
            "dataset.num_files_eval": 0,
            "dataset.generation_buffer_size": 10_000_000,  # of random bytes for each file
            "reader.data_loader": "pytorch",
            "reader.batch_size": self.batch_size,
            "reader.read_threads": self.n_workers,
            "train.computation_time": self.compute_s,
            "train.total_training_steps": -1,
            "workflow.checkpoint": False,
            "checkpoint.model_size": 1_000_000,  # made up at every start, written or not
            "checkpoint.optimization_groups": "[]",
            "checkpoint.layer_parameters": "[]",
            "workflow.evaluation": False,
        } | self.extra


NPZ = {"dataset.format": "npz"}
JPEG = {"dataset.format": "jpeg"}
SMALL = {"dataset.record_length_resize": 0}


def _unet3d(gpu: str, *, batch_size: int, ms: float, n_steps: int) -> Workload:
    return Workload(
        name=f"unet3d-{gpu}",
        base=f"unet3d_{gpu}",
        told=f"npz files of 8 MB (of 147), batches of {batch_size}, {ms / 4:.0f} ms (of {ms:.0f})",
        n_files=n_steps * batch_size,
        record_bytes=8_000_000,
        batch_size=batch_size,
        compute_s=ms / 4000,
        n_workers=4,
    )


def _resnet50(kind: str, *, of: int, batch_size: int, ms: float) -> Workload:
    part = batch_size / of
    batch = f"{batch_size} (of {of})" if part < 1 else f"{batch_size}"
    took = f"{ms * part:.0f} ms (of {ms:.0f})" if part < 1 else f"{ms:.0f} ms"
    return Workload(
        name=f"resnet50-{kind}",
        base=f"resnet50_{kind}",
        told=f"JPEG files of 115 kB, batches of {batch}, {took}",
        n_files=40 * batch_size if part < 1 else 25 * batch_size,
        record_bytes=114_660,
        batch_size=batch_size,
        compute_s=ms * part / 1000,
        n_workers=8,
        extra=JPEG,
    )


def _cosmoflow(gpu: str, ms: float) -> Workload:
    return Workload(
        name=f"cosmoflow-{gpu}",
        base=f"cosmoflow_{gpu}",
        told=f"npz files of 2.8 MB, one a batch, {ms:.1f} ms",
        n_files=400,
        record_bytes=2_828_486,
        batch_size=1,
        compute_s=ms / 1000,
        n_workers=4,
        extra=NPZ,
    )


WORKLOADS = (
    _unet3d("h100", batch_size=7, ms=323, n_steps=40),
    _unet3d("a100", batch_size=7, ms=636, n_steps=25),
    _unet3d("v100", batch_size=4, ms=1360, n_steps=20),
    _resnet50("h100", of=400, batch_size=40, ms=224),
    _resnet50("a100", of=400, batch_size=40, ms=435),
    _resnet50("v100", of=64, batch_size=64, ms=195),
    _resnet50("tf", of=64, batch_size=64, ms=98),
    _cosmoflow("h100", 3.5),
    _cosmoflow("a100", 5.51),
    _cosmoflow("v100", 9.36),
    Workload(
        name="bert-v100",
        base="bert_v100",
        told="HDF5 files of 2,000 records of 2.5 kB, batches of 48, 97 ms (of 968)",
        n_files=1,
        samples_per_file=2000,
        record_bytes=2500,
        batch_size=48,
        compute_s=0.0968,
        n_workers=1,
        extra={"dataset.format": "hdf5"},
    ),
    Workload(
        name="dlrm",
        base="dlrm",
        told="one file of 2,560 records of 328 kB, batches of 64 (of 2,048), 64 ms",
        n_files=1,
        samples_per_file=2560,
        record_bytes=327_680,
        batch_size=64,
        compute_s=0.064,
        n_workers=1,
        extra={"workflow.do_eval": False},
    ),
    Workload(
        name="megatron-deepspeed",
        base="megatron_deepspeed",
        told="one mapped file of 2,560 records of 2 kB, batches of 64 (of 1,024), 30 ms",
        n_files=1,
        samples_per_file=2560,
        record_bytes=2048,
        batch_size=64,
        compute_s=0.030,
        n_workers=1,
    ),
    Workload(
        name="default",
        base="default",
        told="npz files of 4 kB, batches of 4, in the loop's process, 20 ms (of 1,000)",
        n_files=320,
        record_bytes=4096,
        batch_size=4,
        compute_s=0.020,
        n_workers=0,
    ),
    Workload(
        name="unet3d-starved",
        base="unet3d_h100",
        told="ours: unet3d-h100 with one worker and 40 ms",
        n_files=280,
        record_bytes=8_000_000,
        batch_size=7,
        compute_s=0.040,
        n_workers=1,
    ),
    Workload(
        name="small-files",
        base="unet3d_h100",
        told="ours: npz files of 10 kB, batches of 32, 5 ms, in the loop's process",
        n_files=1600,
        record_bytes=10_000,
        batch_size=32,
        compute_s=0.005,
        n_workers=0,
        extra=SMALL,
    ),
    Workload(
        name="csv",
        base="unet3d_h100",
        told="ours: CSV files of 1,000 columns, batches of 8, 10 ms, two workers",
        n_files=320,
        record_bytes=1_000,
        batch_size=8,
        compute_s=0.010,
        n_workers=2,
        extra={"dataset.format": "csv"} | SMALL,
        file_s=0.05,
    ),
)
