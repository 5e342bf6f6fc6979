"""What an audited loop truly costs: its variants timed in processes of their own, in turns.

    python benchmarks/audit_truth.py FOLDER [--rounds 3]     VARIANT.py of FOLDER, one JSON line
    python benchmarks/audit_truth.py --calibrate             what a unit of computing takes here

torch is imported once and each run is a fork of that, so a run costs no start-up; on a GPU, whose
start takes seconds in each process, they follow each other in one. No part of loaderdoctor is
involved.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from audit_loops import AuditLoop, constructed_ms
from audit_scripts import SIZES, VARIANTS, Calibration, script_of, variants_of

DIFFERENCES = ("input", "copy", "outside", "host")  # of each variant and the next
DIFFERENCES = ("input", "copy", "outside", "host")  # of each variant and the next
CAUSES = ("input", "copy", "host", "outside", "between")
RUN_LIMIT_S = 60.0
T_95 = (0.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # by the number of runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Per training step, of the whole wall time; shares are of it.

    `between` is the loop's own work between epochs, apart from `outside`. `either` is part of what
    computes and may be called host: plans for new shapes, made in Python, and what a step takes
    beyond a known time of computing. `either_copy` are parts of `copy`, by what else they may be
    called: work of the loop's own within its steps (plans for new shapes too), between epochs, and
    what is done outside the steps, beside which the device would compute if no copy made the host
    wait for it: each for itself, all of them together no more than the copy. `noise`: for each
    cause, half the 95 % interval of the differences that it is, round by round (what drifts slowly
    is in both); for `wall`, of its runs.
    """

    wall_ms: float
    shares: dict[str, float]
    either: float
    either_copy: dict[str, float]  # host, outside, between
    noise: dict[str, float]
    constructed_ms: float | None = None

    @property
    def hidden(self) -> float:
        """How much of the copy may be called something else."""
        return min(sum(self.either_copy.values()), max(0.0, self.shares["copy"]))

    @property
    def computing(self) -> float:
        return 1.0 - sum(self.shares.values())


def measured_truth(
    loop: AuditLoop, calibration: Calibration, folder: Path, *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds a step of each variant, `rounds` times in shuffled order.

    Writes the variants into `folder`; raises RuntimeError.
    """
    for name in variants_of(loop):
        text = script_of(loop, calibration, variant=name, seconds=seconds)
        (folder / f"{name}.py").write_text(text)
    limit_s = RUN_LIMIT_S * rounds * len(variants_of(loop))
    command = [sys.executable, __file__, str(folder), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    if done.returncode:
        raise RuntimeError(f"{loop.name}: no truth\n{done.stderr[-1500:]}")
    runs: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return runs


def truth_of(loop: AuditLoop, runs: dict[str, list[float]]) -> Truth:
    """From the milliseconds of each variant that was run; the others are like the one before."""
    filled: dict[str, list[float]] = {}
    for name in VARIANTS:
        filled[name] = runs.get(name) or filled[next(reversed(filled))]
    middle = {name: statistics.median(ms) for name, ms in filled.items()}
    wall = middle["plain"]
    pairs = dict(zip(DIFFERENCES, pairwise(VARIANTS), strict=True))
    # A variant that was not run differs in nothing from the one before.
    ms = {cause: middle[a] - middle[b] for cause, (a, b) in pairs.items()}
    noise = {
        cause: half_interval([x - y for x, y in zip(filled[a], filled[b], strict=True)]) / wall
        if b in runs
        else 0.0
        for cause, (a, b) in pairs.items()
    }
    ms["between"] = min(loop.between_ms, max(0.0, ms["outside"]))
    ms["outside"] -= ms["between"]
    beyond = middle["bare"] - loop.compute_ms if loop.sleeping_kernel else 0.0
    outside = (middle["resident"] - middle["inside"]) * loop.period
    # What was built into the loop and did not show: it was done while the device computed.
    hidden = {
        "host": loop.within_host_ms + loop.plan_ms - ms["host"],
        "outside": loop.outside_ms - ms["outside"],
        "between": loop.between_ms - ms["between"],
    }
    left = max(0.0, ms["copy"]) if loop.device == "cuda" else 0.0
    return Truth(
        wall_ms=wall,
        shares={cause: ms[cause] / wall for cause in CAUSES},
        either=max(loop.plan_ms, beyond) / wall,
        either_copy={name: min(max(0.0, part), left) / wall for name, part in hidden.items()},
        noise=noise | {"between": noise["outside"], "wall": half_interval(filled["plain"]) / wall},
        constructed_ms=constructed_ms(loop, middle["ready"] - outside / loop.period, outside),
    )


def half_interval(ms: list[float]) -> float:
    """Half the 95 % interval of what several runs took on average; of fewer than four their range.

    Of five and more without the one farthest off, which met a stall.
    """
    if len(ms) < 4:
        return (max(ms) - min(ms)) / 2
    middle = statistics.median(ms)
    kept = sorted(ms, key=lambda one: abs(one - middle))[: max(4, len(ms) - 1)]
    return T_95[min(len(kept), len(T_95)) - 1] * statistics.stdev(kept) / len(kept) ** 0.5


def calibrate() -> Calibration:
    """In a process of its own, so that the caller needs no torch."""
    done = subprocess.run(
        [sys.executable, __file__, "--calibrate"], capture_output=True, text=True, check=True
    )
    return Calibration(**json.loads(done.stdout.strip().splitlines()[-1]))


def _calibrate() -> Calibration:
    import torch

    def of_network(device: str, repeats: int) -> float:
        width, rows = SIZES[device]
        layer = torch.nn.Linear(width, width).to(device)
        x = torch.ones(rows, width, device=device)
        times = []
        for _ in range(12):
            began = time.perf_counter()
            h = x
            for _ in range(repeats):
                h = torch.tanh(layer(h))
            h.sum().backward()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return statistics.median(times[2:]) * 1e3 / repeats

    cpu_ms = of_network("cpu", 20)
    if not torch.cuda.is_available():
        return Calibration(cpu_ms=cpu_ms)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 20_000_000
    torch.cuda._sleep(cycles)
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return Calibration(
        cpu_ms=cpu_ms,
        gpu_ms=of_network("cuda", 30),
        cycles_per_ms=cycles / start.elapsed_time(end),
    )


def _run_all(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each script in `folder`, one for each round."""
    import torch  # noqa: F401  # before forking

    names = [name for name in VARIANTS if (folder / f"{name}.py").exists()]
    runs: dict[str, list[float]] = {name: [] for name in names}
    rng = random.Random(0)
    on_gpu = 'torch.device("cuda")' in (folder / "plain.py").read_text()
    timed = _here if on_gpu else _forked
    for _ in range(rounds):
        for name in rng.sample(names, len(names)):
            runs[name].append(timed(folder / f"{name}.py"))
    return runs


def _forked(script: Path) -> float:
    with tempfile.TemporaryFile() as out:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit:
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        lines = out.read().decode().strip().splitlines()
    if status or not lines:
        raise SystemExit(f"{script.name} failed: {status}")
    return float(json.loads(lines[-1])["step_ms"])


def _here(script: Path) -> float:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
    gc.collect()  # its workers end with its loaders
    return float(json.loads(said.getvalue().strip().splitlines()[-1])["step_ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calibrate", action="store_true")
    args = parser.parse_args()
    found: Any = asdict(_calibrate()) if args.calibrate else _run_all(args.folder, args.rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
