"""What other programs and a loop's own threads cost a step, and what the CPU records say of it.

    python benchmarks/contention.py [--seconds 1.0] [--rounds 2] [--alone]

Two loops that train on the CPU, one of small operations and one of large products, each with one
intra-op thread and with one for each usable CPU; beside them nothing, a program that is busy for
some part of the time, and one that is always busy. Thresholds of `findings/rules/threads.py` and
`attribution/cpu.py` come from here.

--alone takes the CPUs away from everything else on this machine, where Linux allows it (root, and
scheduling by sessions): elsewhere the rows "beside nothing" mean something on an idle machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from loaderdoctor.attribution.cpu import cpu_facts
from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.instrument.system.cpu_use import CpuMeter
from loaderdoctor.instrument.system.machine import usable_cpus
from loaderdoctor.instrument.wire.protocol import WindowDone

# Busy for this part of each tenth of a second.
HOG = """
import sys, time
part = float(sys.argv[1])
while True:
    end = time.perf_counter() + 0.1 * part
    while time.perf_counter() < end:
        pass
    time.sleep(0.1 * (1 - part))
"""
PARTS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)


def small() -> tuple[nn.Module, int]:
    """The net of torch's MNIST example, in its batches of 64."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10),
    ), 64  # fmt: skip


def large() -> tuple[nn.Module, int]:
    """Products of 512 x 2048 x 2048: threads are worth having."""
    layers = (nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(2048, 10)), 512


def measured(model: nn.Module, batch: int, seconds: float) -> tuple[float, CpuFacts]:
    """(milliseconds a step, what the CPU record of these seconds says)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(3):
        step()
    meter, n, began = CpuMeter(), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
        n += 1
    took = time.perf_counter() - began
    window = WindowDone(id=1, mode="plain", status="ok", cpu=meter.since())
    facts = cpu_facts([window], usable_cpus())
    assert facts is not None
    return took / n * 1e3, facts


@contextlib.contextmanager
def beside(part: float) -> Iterator[None]:
    """With a program that is busy for this part of the time: no child of this one."""
    if not part:
        yield
        return
    quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', '''{HOG}''', "
    code += f"'{part}'], {quiet}).pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    try:
        time.sleep(0.1)
        yield
    finally:
        os.kill(int(done.stdout), 9)


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    if options.alone:
        Path("/proc/self/autogroup").write_text("-20")
    cpus = max(1, int(usable_cpus()))
    print(f"{cpus} usable CPUs, torch {torch.__version__}, load {os.getloadavg()[0]:.1f} before")
    print("loop   threads  other    ms/step  others' CPUs  waiting threads  training thread waits")
    for _ in range(options.rounds):
        for part in PARTS:
            with beside(part):
                for name, make in (("small", small), ("large", large)):
                    for n_threads in (1, cpus):
                        torch.set_num_threads(n_threads)
                        ms, facts = measured(*make(), options.seconds)
                        others, waiting = facts.other_cores or 0.0, facts.waiting_threads or 0.0
                        print(
                            f"{name:6} {n_threads:7} {part:6.0%} {ms:10.1f} {others:13.2f} "
                            f"{waiting:16.2f} {facts.train_wait_share or 0.0:22.0%}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
