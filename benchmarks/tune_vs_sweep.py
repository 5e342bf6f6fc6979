"""`run --tune` beside the best setting that `sweep` finds, on five loops.

    python benchmarks/tune_vs_sweep.py [--jobs 1] [--only 'waits, no workers'] [--steps 500]
                                       [--rounds 3]

Each loop is swept over a grid of workers and pinning. Then, in rounds, it runs for four epochs with
the best of the sweep written into the script, as it is under `run --tune=exact`, and alone with
what that chose. Told are medians over the rounds of the last two epochs' pace: of the tuned run
against the best, whether that is within 5 %, what of it is the choice (alone, against the best),
what trying cost, and by how much runs of the best differ from one another: less can't be told.
`--jobs` splits this machine's CPUs among so many loops at a time, each on its own ones; two of the
loops take a GPU each, where there are any. About 250 s a loop.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from statistics import median
from typing import Any

import torch

HERE = Path(__file__).parent
LOOP = HERE / "tuned_loop.py"
LOOPS = (
    "waits, no workers",
    "waits, one worker",
    "burns, no workers",
    "instant, workers",
    "large, pageable",
)
ON_GPU = ("large, pageable", "waits, one worker")  # a GPU of its own each, as far as there are any
N_EPOCHS = 4
OWN_STEPS = 250  # of an epoch, of two, where the script is run as it is
SHORTER = {"large, pageable": 0.6}  # its steps are long
KEEP = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
WITHIN = 1.05
LIMIT_S = 300.0


def run(words: list[str], kind: str, cpus: set[int], settings: dict[str, Any] | None = None) -> str:
    """Standard output of a command on these CPUs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SETTINGS": json.dumps(settings or {})}
    mine = gpus()[ON_GPU.index(kind) :] if kind in ON_GPU else []
    environment["CUDA_VISIBLE_DEVICES"] = mine[0] if mine else ""
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    )
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    if done.returncode:
        raise RuntimeError(f"{words[:4]}: {done.stderr[-600:]}")
    return done.stdout


def gpus() -> list[str]:
    """Those that the caller lets us use, by the names that it gives them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name]
    return [str(i) for i in range(torch.cuda.device_count())]


def times(out: str) -> list[float]:
    """The script's own: milliseconds a step of each epoch."""
    line = next(x for x in out.splitlines() if x.startswith('{"step_ms"'))
    found: list[float] = json.loads(line)["step_ms"]
    return found


def late(step_ms: list[float], after: int = 2) -> float:
    """Behind the second epoch, or behind as many as are told."""
    return sum(step_ms[after:]) / len(step_ms[after:])


def row_of(
    kind: str, n_steps: int, budget_s: float, n_rounds: int, cpus: set[int]
) -> dict[str, Any]:
    """One loop: swept, and in rounds run with the best, tuned, and with what that chose."""
    command = ["-m", "loaderdoctor"]
    n_steps = round(n_steps * SHORTER.get(kind, 1.0))
    script = [str(LOOP), kind, str(n_steps)]
    workers = sorted({0, 1, 2, 3, 4, len(cpus) - 1, len(cpus), 2 * len(cpus)})
    pins = ["pin_memory=false,true"] if kind.startswith("large") else []

    def fixed(settings: dict[str, Any]) -> float:
        return late(times(run([*script, str(N_EPOCHS)], kind, cpus, settings)))

    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        swept = Path(folder) / "sweep"
        grid = [f"num_workers={','.join(map(str, workers))}", *pins]
        run(
            [*command, "sweep", "--grid", *grid, "--budget", f"{budget_s:g}", "--no-ablation",
             "--once", "--output", str(swept), *script, "100000"],
            kind, cpus,
        )  # fmt: skip
        report = json.loads((swept / "report.json").read_text())
        best = report["trials"][report["best"]["trial"]]["settings"] if report["best"] else {}
        best = {k: v for k, v in best.items() if k in KEEP and v is not None}
        short = [str(LOOP), kind, str(min(n_steps, OWN_STEPS)), "2"]
        own = late(times(run(short, kind, cpus)), 1)
        for n in range(n_rounds):
            best_ms = fixed(best)
            tuned = Path(folder) / f"tuned-{n}"
            out = run(
                [*command, "run", "--tune=exact", "--output", str(tuned), *script, str(N_EPOCHS)],
                kind,
                cpus,
            )
            said = json.loads((tuned / "report.json").read_text())["run"]["tuning"]
            chosen = said.get("chosen") or {}
            alone = {k: v for k, v in chosen.items() if k in KEEP and v is not None}
            rounds.append(
                {
                    "best_ms": best_ms,
                    "epochs_ms": times(out),
                    "tuned_ms": late(times(out)),
                    "chosen": {k: v for k, v in alone.items() if said["own"].get(k) != v},
                    "chosen_ms": fixed(alone),
                    "chosen_at_step": said.get("chosen_at_step"),
                    "tried": said.get("tried", []),
                    "lost_share": said.get("lost_steps", 0.0) / max(1, said.get("n_steps", 0)),
                }
            )
    bests = [x["best_ms"] for x in rounds]
    return {
        "loop": kind,
        "cpus": len(cpus),
        "own_ms": own,
        "best": best,
        "best_ms": median(bests),
        "best_differs": (max(bests) - min(bests)) / median(bests),
        "ratio": median(x["tuned_ms"] / x["best_ms"] for x in rounds),
        "choice": median(x["chosen_ms"] / x["best_ms"] for x in rounds),
        "lost_share": max(x["lost_share"] for x in rounds),
        "rounds": rounds,
        "swept": [
            ({k: v for k, v in x["settings"].items() if k in KEEP}, x.get("step_ms"))
            for x in report["trials"]
        ],
    }


def text(row: dict[str, Any]) -> str:
    """As a row of a table."""
    chosen = {_settings(x["chosen"]): None for x in row["rounds"]}
    cells = [
        row["loop"],
        row["cpus"],
        f"{row['own_ms']:.2f}",
        f"{row['best_ms']:.2f} (runs differ by {row['best_differs']:.0%})",
        _settings(row["best"]),
        f"{median(x['tuned_ms'] for x in row['rounds']):.2f}",
        ", or ".join(chosen),
        f"{row['ratio'] - 1:+.1%}{'' if row['ratio'] <= WITHIN else ' NOT within 5 %'}",
        f"{row['choice'] - 1:+.1%}",
        f"{row['lost_share']:.1%}",
        "; ".join(" ".join(f"{x:.1f}" for x in one["epochs_ms"]) for one in row["rounds"]),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _settings(settings: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in settings.items()) or "its own"


def main() -> int:
    """Print a row for each loop; 1 where one is not within 5 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=500, help="of an epoch")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of each sweep")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=LOOPS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    each = len(cpus) // options.jobs
    free: Queue[set[int]] = Queue()
    for i in range(options.jobs):
        free.put(set(cpus[i * each : (i + 1) * each]))

    def one(kind: str) -> dict[str, Any]:
        mine = free.get()
        try:
            return row_of(kind, options.steps, options.budget, options.rounds, mine)
        finally:
            free.put(mine)

    heads = ("loop", "CPUs", "own ms", "best ms", "sweep's best", "tuned ms", "tune chose",
             "tuned / best", "its choice / best", "lost", "epochs, ms a step")  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(one, options.only or LOOPS):
            print(text(row), flush=True)
            rows.append(row)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(row["ratio"] > WITHIN for row in rows))


if __name__ == "__main__":
    sys.exit(main())
