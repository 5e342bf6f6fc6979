"""Figures of one running loop beside those of fresh processes, and the cost of each.

    python benchmarks/isolate.py [--recipe mnist] [--budget 120] [--grid AXIS=VALUES …]

Runs the same sweep twice, in one process and with `--isolate`, and prints a row for each setting.
Each is divided by its own sweep's baseline, because the machine may be busier in one of them; a row
agrees where the two intervals of that ratio overlap. The device is what the recipe finds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from sweeping import Swept, machine, swept

GRID = ("num_workers=0,1,2,3,4", "prefetch_factor=2,4", "persistent_workers=false")

Figure = tuple[float, float | None, float | None]  # value, low, high
AGREE = {True: "yes", False: "**no**", None: "not enough visits"}
# A visit to a fresh process takes some 10 s: the same number of visits needs far more time.
ISOLATED_FACTOR = 4


def scaled(figure: Figure, base: float) -> Figure:
    value, low, high = figure
    return value / base, low and low / base, high and high / base


def overlap(one: Figure, other: Figure) -> bool | None:
    """Whether two intervals meet; None where a single window says nothing of the noise."""
    if one[1] is None or one[2] is None or other[1] is None or other[2] is None:
        return None
    return one[1] <= other[2] and other[1] <= one[2]


def figures(report: dict[str, Any]) -> dict[str, Figure]:
    """Setting -> (step ms, low, high), of trials that ran; one window alone has no interval."""
    found = {}
    for trial in report["trials"]:
        if trial["status"] == "ok" and trial["step_ms"] is not None:
            low, high = trial["step_ms_ci"] or (None, None)
            found[trial["label"]] = (trial["step_ms"], low, high)
    return found


def compared(here: dict[str, Any], apart: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each setting that both measured; ratios to the baseline of each sweep."""
    ours, theirs = figures(here), figures(apart)
    base, other = (next(iter(found.values()))[0] for found in (ours, theirs))
    rows = []
    for label in ours.keys() & theirs.keys():
        first, second = scaled(ours[label], base), scaled(theirs[label], other)
        rows.append(
            {
                "setting": label,
                "one_process": first,
                "isolated": second,
                "one_process_ms": ours[label][0],
                "isolated_ms": theirs[label][0],
                "agree": overlap(first, second),
            }
        )
    order = list(ours)
    return sorted(rows, key=lambda row: order.index(row["setting"]))


def ratio(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.2f}" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def print_table(rows: list[dict[str, Any]], here: Swept, apart: Swept) -> None:
    print("| setting | one process, ms | isolated, ms | ratio, one process | isolated | agree |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        ratios = [ratio(*row["one_process"]), ratio(*row["isolated"])]
        cells = [row["setting"], f"{row['one_process_ms']:.1f}", f"{row['isolated_ms']:.1f}"]
        print("| " + " | ".join([*cells, *ratios, AGREE[row["agree"]]]) + " |")
    print("\n| | visits | seconds a visit, mean | whole command, s |\n|---|---|---|---|")
    for name, one in (("one process", here), ("isolated", apart)):
        measurements = one.samples["wall_s"].tolist()
        mean = f"{sum(measurements) / len(measurements):.2f}" if measurements else "–"
        print(f"| {name} | {len(measurements)} | {mean} | {one.total_s:.0f} |")
    print(f"\n{machine(here.report)}, Python {here.report['environment']['python']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="mnist")
    parser.add_argument(
        "--budget",
        type=float,
        default=120.0,
        help="seconds of the one process; the isolated sweep has four times as much",
    )
    parser.add_argument("--grid", nargs="+", default=list(GRID), metavar="AXIS=VALUES")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here, apart = (
            swept(
                args.recipe,
                Path(folder) / name,
                budget_s=factor * args.budget,
                grid=args.grid,
                more=more,
            )
            for name, factor, more in (
                ("one", 1, ""),
                ("isolated", ISOLATED_FACTOR, "--isolate"),
            )
        )
    rows = compared(here.report, apart.report)
    print_table(rows, here, apart)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
