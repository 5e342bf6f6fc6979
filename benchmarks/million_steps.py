"""A million steps of an even loop under the real `run`: what is told, held and written.

    python benchmarks/million_steps.py [--steps 1000000] [--workers 0]

Printed, memory first: what the script and the process that listens hold, at each tenth of the
steps; alarms; and what the run folder takes. What the run itself says goes to standard error. Some
0.2 ms a step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MEMORY = "memory.txt"  # beside the run's folder
# Waiting is part of such short steps from the first one on: told once, and true.
NO_ALARM = "input-bound"


def train(n_steps: int, n_workers: int, folder: str) -> None:
    """The script: an even loop that says what it and the listener hold."""
    import psutil
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(160_000, 4), torch.randint(0, 2, (160_000,)))
    n = 0
    while n < n_steps:
        for x, y in DataLoader(data, 16, num_workers=n_workers):
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            n += 1
            if n % (n_steps // 10) == 0:
                held = [psutil.Process().memory_info().rss / 1e6]
                for other in psutil.process_iter(["pid", "cmdline"]):
                    words = " ".join(other.info["cmdline"] or ())
                    if folder in words and other.pid != os.getpid():
                        held.append(other.memory_info().rss / 1e6)
                found = " ".join(f"{x:7.1f}" for x in held)
                with Path(folder).with_name(MEMORY).open("a") as file:
                    file.write(f"{n:>9,} steps  {time.monotonic():9.0f} s  MB: {found}\n")


def main() -> int:
    """1 where a change was told of a loop that never changes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--train", help="run the loop itself, recorded in this folder")
    options = parser.parse_args()
    if options.train:
        train(options.steps, options.workers, options.train)
        return 0
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        words = ["--steps", str(options.steps), "--workers", str(options.workers)]
        subprocess.run(
            [
                *(sys.executable, "-m", "loaderdoctor", "run", "--output", str(folder)),
                *(__file__, *words, "--train", str(folder)),
            ],
            check=True,
            stdout=sys.stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        print(Path(parent, MEMORY).read_text(), end="")
        run = json.loads((folder / "report.json").read_text())["run"]
        sizes = {x.name: x.stat().st_size for x in folder.iterdir() if x.is_file()}
        alarms = [x for x in run["alerts"] if x["kind"] != NO_ALARM]
        print(f"{run['n_steps']:,} steps in {run['took_s']:.0f} s; "
              f"{len(alarms)} alarms; files: {sizes}")  # fmt: skip
        for alert in run["alerts"]:
            print(alert["kind"], alert["text"])
        return int(bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
