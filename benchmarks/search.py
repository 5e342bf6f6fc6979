"""`--search auto` beside `--search grid` on recipes: steps used, and its choice's gap to the best.

    python benchmarks/search.py [--recipes mnist,tensors,tokens] [--budget 120] [--grid AXIS=V …]

Both search the same grid. The choice of the search is judged by the figures of the whole grid: its
time there over the fastest time there. A row holds where that gap is at most 3 %, or where the
grid itself calls the choice tied with its best. The share of steps means something only where the
grid had time for its rounds: a line says where it had not. The device is what the recipe finds.
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
from typing import Any

import numpy as np

RECIPES = ("mnist", "tensors", "tokens")
GAP = 0.03
STEPS_SHARE = 0.20
FEWEST_ROUNDS = 3  # of the grid: as many as a ranking needs


def sweep(recipe: str, search: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The report, with `n_steps` in timed windows and `total_s` of the whole command."""
    command = [sys.executable, "-m", "loaderdoctor", "sweep", "--recipe", recipe]
    command += ["--search", search, "--budget", str(args.budget), "--no-ablation"]
    command += ["--output", str(folder)]
    if args.grid:
        command += ["--grid", *args.grid]
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), stdin=subprocess.DEVNULL
    )
    total_s = time.monotonic() - began
    if not (folder / "report.json").exists():
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-1500:]}")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    with np.load(folder / "samples.npz") as samples:
        report["n_steps"] = int(samples["n_steps"].sum())
    return report | {"total_s": total_s}


def row_of(recipe: str, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        grid = sweep(recipe, "grid", args, Path(folder) / "grid")
        auto = sweep(recipe, "auto", args, Path(folder) / "auto")
    if auto["best"] is None or grid["best"] is None:
        raise RuntimeError(f"{recipe}: no best trial; give a larger --budget")
    chosen = auto["trials"][auto["best"]["trial"]]["label"]
    measured = {t["label"]: t for t in grid["trials"] if t["status"] == "ok"}
    times = {label: t["step_ms"] for label, t in measured.items() if t["step_ms"] is not None}
    fastest = min(times, key=lambda label: times[label])
    tied = [grid["best"]["trial"], *grid["best"]["tied_with"]]
    gap = times[chosen] / times[fastest] - 1 if chosen in times else None
    return {
        "recipe": recipe,
        "n_trials": len(grid["trials"]),
        "n_measured": len(times),
        "grid_choice": grid["trials"][grid["best"]["trial"]]["label"],
        "grid_fastest": fastest,
        "auto_choice": chosen,
        "gap": gap,
        "tied": chosen in {grid["trials"][i]["label"] for i in tied},
        "grid_rounds": min(measured[label]["n_windows"] for label in times),
        "grid_steps": grid["n_steps"],
        "auto_steps": auto["n_steps"],
        "steps_share": auto["n_steps"] / grid["n_steps"],
        "grid_s": grid["total_s"],
        "auto_s": auto["total_s"],
        "machine": f"{grid['environment']['device_name'] or 'no accelerator'}, "
        f"{grid['environment']['usable_cpus']:g} CPUs, torch {grid['environment']['torch']}",
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    heads = ("recipe", "trials", "grid: fastest", "grid: choice", "search: choice")
    more = ("gap to the fastest", "steps: grid", "search", "share", "seconds: grid", "search")
    print("| " + " | ".join((*heads, *more)) + " |")
    print("|" + "---|" * len((*heads, *more)))
    for row in rows:
        gap = "not measured by the grid" if row["gap"] is None else f"{row['gap']:.1%}"
        held = row["tied"] or (row["gap"] is not None and row["gap"] <= GAP)
        share = f"{row['steps_share']:.0%}"
        cells = [
            row["recipe"],
            row["n_trials"],
            row["grid_fastest"],
            row["grid_choice"],
            row["auto_choice"],
            (gap if held else f"**{gap}**") + (" (tied)" if row["tied"] else ""),
            row["grid_steps"],
            row["auto_steps"],
            share if row["steps_share"] <= STEPS_SHARE else f"**{share}**",
            f"{row['grid_s']:.0f}",
            f"{row['auto_s']:.0f}",
        ]
        print("| " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipes", type=lambda text: text.split(","), default=list(RECIPES))
    parser.add_argument("--budget", type=float, default=120.0, help="of each sweep, seconds")
    parser.add_argument("--grid", nargs="+", default=[], metavar="AXIS=VALUES")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for recipe in args.recipes:
        try:
            rows.append(row_of(recipe, args))
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            continue
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    print_table(rows)
    for row in rows:
        if row["grid_rounds"] < FEWEST_ROUNDS:
            print(
                f"\n{row['recipe']}: some settings of the grid were visited {row['grid_rounds']} "
                "times only; give a larger --budget before comparing steps"
            )
    if rows:
        print(f"\n{rows[0]['machine']}")


if __name__ == "__main__":
    main()
