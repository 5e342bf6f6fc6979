"""One sweep several times on one machine: how often it recommends the same.

    python benchmarks/repeat_sweep.py --recipe mnist --times 5 [--budget 120] [--json FILE]
        [--keep FOLDER]

Prints a row for each sweep (what is recommended, whether the table's best is that row, how many
trials are tied, how much windows vary) and how often the commonest answer came. Exit code 1 where
that is less than four in five, or where headline and table's best differ. `--keep` keeps report and
windows of each sweep.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from sweeping import machine, swept

SAME_SHARE = 0.8


def row_of(recipe: str, number: int, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        report = swept(recipe, run, budget_s=args.budget, grid=args.grid, more="").report
        if args.keep is not None:
            for name in ("report.json", "samples.npz"):
                kept = args.keep / f"{recipe}_{number}_{name}"
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run / name, kept)
    changes = {r["setting"]: r["to"] for r in report["recommendations"]}
    best, trials = report["best"], report["trials"]
    shown = trials[best["trial"]] if best is not None else None
    measured = report["recommendations"][0]["measured_step_ms"] if changes else None
    own_ms = trials[0]["step_ms"]
    return {
        "recommended": ", ".join(f"{name}={value}" for name, value in changes.items()) or "nothing",
        "speed": own_ms / measured if measured and own_ms else None,
        "best": shown["label"] if shown is not None else None,
        # Without a recommendation the table's best is only the fastest.
        "same_row": not changes
        or all(shown is not None and shown["settings"].get(n) == v for n, v in changes.items()),
        "n_tied": len(best["tied_with"]) if best is not None else 0,
        "noisy": any(w["kind"] == "noisy-machine" for w in report["warnings"]),
        "machine": machine(report),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="mnist")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--budget", type=float, default=120.0, help="of each sweep, seconds")
    parser.add_argument("--grid", nargs="+", default=[], metavar="AXIS=VALUES")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| sweep | recommended | speed | table's best | tied | noisy machine |")
    print("|---|---|---|---|---|---|")
    for number in range(1, args.times + 1):
        row = row_of(args.recipe, number, args)
        rows.append(row)
        speed = f"{row['speed']:.2f}x" if row["speed"] else ""
        best = "the same" if row["same_row"] else row["best"]
        noisy = "yes" if row["noisy"] else ""
        print(
            f"| {number} | {row['recommended']} | {speed} | {best} | {row['n_tied']} | {noisy} |",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    ((answer, n_same),) = Counter(row["recommended"] for row in rows).most_common(1)
    print(f"\n{n_same} of {len(rows)} recommend {answer}. {rows[0]['machine']}")
    agree = n_same >= SAME_SHARE * len(rows) and all(row["same_row"] for row in rows)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
