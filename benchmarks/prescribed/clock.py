"""Times a script's epochs for `benchmarks/prescription.py`; without its variable it only counts them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import torch


def epochs(n_steps: int) -> Iterator[int]:
    """Epoch numbers, without end; under TIMED_EPOCHS=N that many timed ones after the first.

    Prints one JSON object then: milliseconds per step of each timed epoch, worker start-up included,
    `n_steps` being the steps of an epoch.
    """
    timed = int(os.environ.get("TIMED_EPOCHS", "0"))
    step_ms: list[float] = []
    epoch = 0
    while not timed or epoch <= timed:
        started = time.perf_counter()
        yield epoch
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if epoch:
            step_ms.append((time.perf_counter() - started) * 1e3 / n_steps)
        epoch += 1
    json.dump({"step_ms": step_ms}, sys.stdout)
    print(flush=True)
