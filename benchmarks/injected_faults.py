"""Faults that begin in a running training: whether `run` names each, its cause, and how soon.

    python benchmarks/injected_faults.py [--jobs 1] [--only storage]

One row a fault: what was told, its cause, and the seconds and steps from the fault's first step to
the line in events.jsonl. It holds where the cause is the right one within 200 steps or 30 s. The
loops are those of tests/scripts/shapes; `--jobs` splits this machine's CPUs among so many at a time
(two CPUs each are enough; the hog takes both of its loop's). One to two minutes a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

HERE = Path(__file__).parent
SHAPES = HERE.parent / "tests" / "scripts" / "shapes"
STEPS, SECONDS = 200, 30.0
LIMIT_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A script, and the causes that name it."""

    words: tuple[str, ...]
    causes: frozenset[str]
    options: tuple[str, ...] = ()
    hog: bool = False


def faulty(what: str, causes: set[str], n_steps: int = 3000, *, hog: bool = False) -> Fault:
    return Fault(words=("faulty.py", what, str(n_steps)), causes=frozenset(causes), hog=hog)


FAULTS = {
    "storage becomes slow": faulty("storage", {"storage"}),
    "another process takes the CPUs": faulty("computes", {"other-programs"}, hog=True),
    "collections of 300 ms": faulty("collections", {"collections"}),
    "a worker leaks": faulty("leak", {"worker-memory-growth"}, 6000),
    "a shard with slow samples": faulty("shard", {"late-batch"}),
    "checkpoints": faulty("checkpoint", {"saving"}),
    "validation": faulty("validation", {"validation", "validation-input"}),
    "one slow rank": Fault(
        words=("ranks_wait.py", "700", "0.03"),
        causes=frozenset({"slow-rank"}),
        options=("--nproc-per-node", "2"),
    ),
}
HOG = "while True: pass"


def row_of(name: str, cpus: set[int]) -> dict[str, Any]:
    """Run it, and note when which line came."""
    fault = FAULTS[name]
    seen: dict[str, tuple[float, dict[str, Any]]] = {}
    hogs: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        run, mark = Path(folder) / "run", Path(folder) / "began"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAULT_FILE": str(mark)}
        paths = [str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        script, *args = fault.words
        process = subprocess.Popen(
            [sys.executable, "-m", "loaderdoctor", "run", "--output", str(run), *fault.options,
             str(SHAPES / script), *args],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )  # fmt: skip
        started = time.time()
        try:
            while process.poll() is None and time.time() - started < LIMIT_S:
                time.sleep(0.1)
                if fault.hog and not hogs and mark.exists():
                    hogs = [
                        subprocess.Popen(
                            [sys.executable, "-c", HOG],
                            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
                        )
                        for _ in range(2 * len(cpus))
                    ]
                for line in _lines(run / "events.jsonl"):
                    seen.setdefault(line, (time.time(), json.loads(line)))
        finally:
            for hog in hogs:
                hog.kill()
            process.kill()
            process.wait()
        began_s = float(mark.read_text()) if mark.exists() else None
        report = run / "report.json"
        whole = json.loads(report.read_text())["run"] if report.is_file() else None
    return judged(name, fault, [x for x in seen.values() if "cause" in x[1]], began_s,
                  started, whole)  # fmt: skip


def judged(
    name: str,
    fault: Fault,
    told: list[tuple[float, dict[str, Any]]],
    began_s: float | None,
    started_s: float,
    whole: dict[str, Any] | None,
) -> dict[str, Any]:
    """What the run said of its fault, and how soon."""
    named = next((x for x in told if x[1]["cause"] in fault.causes), None)
    row: dict[str, Any] = {
        "fault": name,
        "cause": named[1]["cause"] if named else None,
        "text": named[1]["text"] if named else None,
        "others": [x[1]["cause"] or x[1]["kind"] for x in told if x is not named],
    }
    if named is None or whole is None:
        return {**row, "holds": False}
    if began_s is None:  # ranks: from their first step on
        began_s = started_s + whole["before_s"]
    after_s = named[0] - began_s
    step_s = whole["time"]["recorded_s"] / max(1, whole["time"]["n_steps"])
    row |= {"seconds": after_s, "steps": after_s / step_s}
    return {**row, "holds": after_s >= 0 and (after_s <= SECONDS or after_s / step_s <= STEPS)}


def _lines(path: Path) -> list[str]:
    """Whole ones."""
    if not path.is_file():
        return []
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def main() -> int:
    """Print the table; 1 where a fault is not named in time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(FAULTS))
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    each = max(1, len(cpus) // options.jobs)
    free: Queue[set[int]] = Queue()
    for i in range(options.jobs):
        free.put(set(cpus[i * each : (i + 1) * each][:2]))

    def one(name: str) -> dict[str, Any]:
        mine = free.get()
        try:
            return row_of(name, mine)
        finally:
            free.put(mine)

    print("| fault | named as | after | holds | told besides | line |\n|---|---|---|---|---|---|")
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(one, options.only or FAULTS):
            after = f"{row['seconds']:.0f} s, {row['steps']:.0f} steps" if "seconds" in row else "-"
            others, text = ", ".join(row["others"]) or "-", row["text"] or "-"
            holds = "yes" if row["holds"] else "NO"
            cells = [row["fault"], row["cause"] or "-", after, holds, others, text]
            print(f"| {' | '.join(cells)} |", flush=True)
            rows.append(row)
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
