"""A loop that waits for digits through PIL, as facts: 7 of 10 ms a step are the loader's."""

from __future__ import annotations

from typing import Any

from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import Leaf
from loaderdoctor.instrument.wire.records import Normalisation, StoreRecord, TensorRecord
from tests.findings.builders import line, loader, machine, step, with_exposed, workers

BATCH = (
    TensorRecord(path="[0]", shape=(64, 1, 28, 28), dtype="float32", n_bytes=64 * 784 * 4),
    TensorRecord(path="[1]", shape=(64,), dtype="int64", n_bytes=512),
)
DIGITS: dict[str, Any] = {
    "batch": BATCH,
    "n_samples": 60_000,
    "batch_size": 64,
    "dataset": "MNIST",
    "code": "loader = DataLoader(train_set, batch_size=64, shuffle=True)",
    "normalisation": Normalisation(mean=(0.1307,), std=(0.3081,)),
    "stores": (
        StoreRecord(
            path="data", kind="tensor", shape=(60_000, 28, 28), dtype="uint8", n_bytes=47_040_000
        ),
        StoreRecord(path="targets", kind="tensor", shape=(60_000,), dtype="int64"),
    ),
}
THROUGH_PIL = line(
    code="img = Image.fromarray(img.numpy())",
    n_stack_samples=60,
    leaves=(Leaf(file="/v/site-packages/PIL/Image.py", function="fromarray", n_stack_samples=60),),
)
DECODING = line(
    code='return self.transform(Image.open(path).convert("RGB"))',
    n_stack_samples=70,
    leaves=(
        Leaf(
            file="/v/site-packages/PIL/ImageFile.py", function="ImageFile.load", n_stack_samples=70
        ),
    ),
)


def starved(*, n_workers: int = 0, loader_: dict[str, Any] | None = None, **more: Any) -> Facts:
    """7 of 10 ms a step are the loader: 6.4 ms of samples and 0.6 ms of collating a batch."""
    settings = {
        "num_workers": n_workers,
        "prefetch_factor": 2 if n_workers else None,
        "pin_memory": False,
    }
    seen: dict[str, Any] = {
        "n_workers": n_workers,
        "batch_ms": 7.0,
        "fetch_ms": 6.4,
        "collate_ms": 0.6,
        "cores": (),
        "transforms": (("ToTensor", 0.05), ("Normalize", 0.02)),
        **more.pop("workers_", {}),
    }
    return with_exposed(
        input_=0.7,
        loaders=(loader(settings=settings, **{**DIGITS, **(loader_ or {})}),),
        workers=workers(**seen),
        step=step(raw_wait_ms=7.0, worker_cpu_cores=None),
        machine=more.pop("machine_", machine(device_name=None, usable_cpus=2.0)),
        **more,
    )
