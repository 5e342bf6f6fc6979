"""`--search auto` beside `--search grid` on recipes: steps used, and its choice's gap to the best.

    python benchmarks/search.py [--recipes NAME,…] [--budget 120] [--grid AXIS=V …] [--json FILE]
    python benchmarks/search.py --table FILE…      what was measured, as a table for a page

Both search the same grid. The choice of the search is judged by the figures of the whole grid: its
time there over the fastest time there. A row holds where that gap is at most 3 %, or where the
grid itself calls the choice tied with its best. The share of steps means something only where the
grid had time for its rounds: a line says where it had not. The device is what the recipe finds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from sweeping import machine, swept

RECIPES = ("mnist", "tensors", "tokens", "cifar10-mobilenetv2")
GAP = 0.03
STEPS_SHARE = 0.10
FEWEST_ROUNDS = 3  # of the grid: as many as a ranking needs


def row_of(recipe: str, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        both = [
            swept(
                recipe,
                Path(folder) / search,
                budget_s=args.budget,
                grid=args.grid,
                more=f"--search {search}",
            )
            for search in ("grid", "auto")
        ]
    grid, auto = (one.report for one in both)
    grid_steps, auto_steps = (int(one.samples["n_steps"].sum()) for one in both)
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
        "grid_steps": grid_steps,
        "auto_steps": auto_steps,
        "steps_share": auto_steps / grid_steps,
        "grid_s": both[0].total_s,
        "auto_s": both[1].total_s,
        "machine": machine(grid),
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
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="of --json")
    args = parser.parse_args()
    if args.table:
        print_all([row for file in args.table for row in json.loads(file.read_text())])
        return
    rows = []
    for recipe in args.recipes:
        try:
            rows.append(row_of(recipe, args))
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            continue
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    print_all(rows)


def print_all(rows: list[dict[str, Any]]) -> None:
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
