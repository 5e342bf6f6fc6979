"""Whether a loop runs at its own pace again once torch.profiler has recorded it. Needs a GPU.

    python benchmarks/cupti_stays.py                                  the profiler as it is
    TEARDOWN_CUPTI=1 python benchmarks/cupti_stays.py                 CUPTI detached each time
    python benchmarks/cupti_stays.py --backend cupti_monitor          torch 2.14's own CUPTI client

Kineto leaves CUPTI attached after the first profile, and each launch is slower from then on: for
that reason `diagnose` records its trace last. Detached, the loop is as fast as before, but the
next profile of the process held no kernels (torch 2.11). `cupti_monitor` (`custom_profiler_config`
of `_ExperimentalConfig`) subscribes for a window and unsubscribes; it needs the package
cupti-python and libcupti 13.3. What decides: the step before the first profile, after it and after
the second, and how many kernels each profile has. If the monitor's step comes back, and its second
profile holds as many kernels as the first, traces need not come last where it can be had.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from loop_parts import mlp
from torch.profiler import ProfilerActivity, profile

STEPS = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=["kineto", "cupti_monitor"], default="kineto")
    parser.add_argument("--windows", type=int, default=7, help="of 100 steps, each time")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("No GPU: nothing to measure.")
        return 2
    model = mlp(64, 30).cuda()  # many launches of little work: what a slower launch shows in
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.rand(64, 1, 28, 28, device="cuda")

    def steps() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3 / STEPS

    def median_ms() -> float:
        return statistics.median(steps() for _ in range(options.windows))

    steps()
    found: dict[str, float | int | str] = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "backend": options.backend,
        "before_ms": median_ms(),
    }
    for n in (1, 2):
        found[f"kernels_in_profile_{n}"] = profiled(steps, options.backend)
        found[f"after_{n}_ms"] = median_ms()
    print(json.dumps(found, indent=1))
    return 0


def profiled(steps: Callable[[], float], backend: str) -> int:
    """Run some steps under the profiler; how many kernels its trace holds."""
    config = None
    if backend != "kineto":
        config = torch._C._profiler._ExperimentalConfig(
            custom_profiler_config=json.dumps({"backend": backend})
        )
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, experimental_config=config) as p:
        steps()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        p.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sum(event.get("cat") == "kernel" for event in events)


if __name__ == "__main__":
    sys.exit(main())
