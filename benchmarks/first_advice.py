"""Of twenty starved loops: whether the first advice is measured, when, and what was predicted.

    python benchmarks/first_advice.py [--only NAME;…] [--budget 45] [--json FILE]

Each loop is a plain script (this file with `--run`) whose batches wait, burn CPU, or are large, and
whose steps take 2, 20, 100 or 300 ms. `loaderdoctor diagnose` runs it with its defaults. A row says
what was advised first, what it measured beside what had been predicted, and the seconds from the
first step to the end of the report. Below: how many were measured, within the budget and the second
cap; how many predictions lay within 15 % of what was measured; how many bounds ("at best") were
beaten, that is, lie above the whole interval of the measurement.

Timings need a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLOSE = 0.15
FIRST_STEP = "LOADERDOCTOR_FIRST_STEP"  # names the file that a script notes its first step in


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Milliseconds a batch: waited and burnt in making it, and computed on it."""

    wait: float = 0.0
    burn: float = 0.0
    compute: float
    kib: int = 16
    workers: int = 0
    epoch: int = 400

    def words(self) -> list[str]:
        """As arguments of the script."""
        names = ("wait", "burn", "compute", "kib", "workers", "epoch")
        return [x for name in names for x in (f"--{name}", str(getattr(self, name)))]


LOOPS = {
    "2 ms, waits": Loop(wait=1.5, compute=0.5),
    "2 ms, burns": Loop(burn=1.2, compute=0.8),
    "2 ms, a worker short": Loop(wait=1.9, compute=0.4, workers=1),
    "2 ms, large": Loop(burn=0.8, compute=0.6, kib=4096),
    "2 ms, short epochs": Loop(wait=1.5, compute=0.5, epoch=50),
    "20 ms, waits": Loop(wait=15.0, compute=5.0),
    "20 ms, burns": Loop(burn=10.0, compute=10.0),
    "20 ms, a worker short": Loop(wait=19.0, compute=4.0, workers=1),
    "20 ms, two short": Loop(wait=38.0, compute=5.0, workers=2),
    "20 ms, large": Loop(burn=8.0, compute=8.0, kib=16384),
    "20 ms, short epochs": Loop(wait=15.0, compute=5.0, epoch=20),
    "20 ms, mixed": Loop(wait=8.0, burn=4.0, compute=8.0),
    "100 ms, waits": Loop(wait=80.0, compute=20.0),
    "100 ms, burns": Loop(burn=50.0, compute=50.0),
    "100 ms, a worker short": Loop(wait=95.0, compute=30.0, workers=1),
    "100 ms, mixed": Loop(wait=40.0, burn=20.0, compute=40.0),
    "300 ms, waits": Loop(wait=220.0, compute=80.0, epoch=100),
    "300 ms, burns": Loop(burn=150.0, compute=150.0, epoch=100),
    "300 ms, a worker short": Loop(wait=290.0, compute=100.0, workers=1, epoch=100),
    "300 ms, mixed": Loop(wait=120.0, burn=60.0, compute=120.0, epoch=100),
}


def run(args: argparse.Namespace) -> None:
    """The loop as a user would write it; it never ends."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    def burnt(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    class Made(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8 * args.epoch

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(args.wait / 8e3)
            burnt(args.burn / 8e3)
            return torch.full((args.kib * 32,), float(index % 7))

    model = nn.Linear(args.kib * 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(Made(), batch_size=8, shuffle=True, num_workers=args.workers)
    noted = os.environ.get(FIRST_STEP)
    while True:
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            burnt(args.compute / 1e3)
            optimizer.step()
            if noted is not None:
                Path(noted).write_text(str(time.time()))
                noted = None


def row_of(name: str, budget_s: float, folder: Path) -> dict[str, Any]:
    """Diagnose one loop. Raises RuntimeError where there is no report."""
    target, first_step = folder / "report.json", folder / "first_step"
    command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", str(budget_s)]
    command += ["--json", str(target), "--output", str(folder / "run"), __file__, "--run"]
    done = subprocess.run(
        [*command, *LOOPS[name].words()],
        capture_output=True,
        text=True,
        env={**os.environ, FIRST_STEP: str(first_step)},
    )
    took_s = time.time() - float(first_step.read_text()) if first_step.is_file() else None
    if not target.is_file():
        raise RuntimeError(f"{name}: no report\n{done.stderr[-1500:]}")
    report = json.loads(target.read_text())
    rows = report["recommendations"]
    first = rows[0] if rows else {}
    together = [r for r in rows if r["measured_step_ms"] == first.get("measured_step_ms")]
    return {
        "loop": name,
        "step_ms": report["step"]["wall_ms"],
        "advice": ", ".join(f"{r['setting']}={r['to']}" for r in together) or "none",
        "measured_ms": first.get("measured_step_ms"),
        "measured_ci_ms": first.get("measured_ci_ms"),
        "predicted_ms": first.get("predicted_step_ms"),
        "took_s": took_s,
    }


def summary(rows: list[dict[str, Any]], budget_s: float) -> str:
    """What the rows come to."""
    measured = [r for r in rows if r["measured_ms"] is not None]
    in_time = [r for r in measured if (r["took_s"] or 0.0) <= budget_s]
    known = [r for r in measured if r["predicted_ms"]]
    close = [r for r in known if abs(r["measured_ms"] / r["predicted_ms"] - 1) <= CLOSE]
    beaten = [r for r in known if (r["measured_ci_ms"] or [0, 0])[1] < r["predicted_ms"]]
    return (
        f"{len(measured)} of {len(rows)} first pieces of advice measured, {len(in_time)} within "
        f"{budget_s:g} s; {len(close)} of {len(known)} predictions within {CLOSE:.0%} of what was "
        f"measured; {len(beaten)} bounds beaten."
    )


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| loop | step, ms | advice | measured, ms | predicted at best, ms | seconds |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        cells = [row["loop"], f"{row['step_ms']:.2f}", row["advice"]]
        figures = (row[name] for name in ("measured_ms", "predicted_ms", "took_s"))
        cells += [f"{x:.3g}" if x is not None else "–" for x in figures]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(";"), default=list(LOOPS))
    parser.add_argument("--budget", type=float, default=45.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", action="store_true", help="be the loop")
    for name in ("wait", "burn", "compute"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    for name in ("kib", "workers", "epoch"):
        parser.add_argument(f"--{name}", type=int, default=16)
    args = parser.parse_args()
    if args.run:
        run(args)
    rows = []
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows.append(row_of(name, args.budget, Path(folder)))
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                continue
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    print_table(rows)
    print(f"\n{summary(rows, args.budget)}")


if __name__ == "__main__":
    main()
