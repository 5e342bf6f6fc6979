"""Workers that are only just fast enough, on cores that are only just enough: what is said of them.

    python benchmarks/at_the_edge.py [--workers 3] [--ratios 0.7,0.9,…] [--budget 15] [--json FILE]
    python benchmarks/at_the_edge.py --table FILE…      what was measured, as a table for a page

For each ratio, `edge_loop.py` with workers that need so much of a step's time for each of its
batches. Meant for one CPU more than workers. The truth is measured before and after
`loaderdoctor diagnose`, as in truth.py; *supply* is the loader alone, over the step without it. A
row is right where the input share is within 5 points of the truth or the noise of both, nothing is
called input-bound, moderate or high, that the truth says costs less than 5 % with its noise, and
where the report says that the workers only just keep up, or are late already, if their supply is
0.92 to 1, and does not say so below 0.8.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from truth import POINTS, measured, rounds_of, said_of

LOOP = Path(__file__).with_name("edge_loop.py")
STEP_MS = 20.0  # of edge_loop.py
RATIOS = (0.7, 0.85, 0.93, 0.96, 0.99, 1.02, 1.1, 1.3)
AT_THE_EDGE, TO_SPARE = (0.92, 1.0), 0.8
EDGE = "workers-just-keep-up"


def row_of(
    ratio: float, workers: int, budget_s: float, rounds: int, folder: Path
) -> dict[str, Any]:
    loop = [str(LOOP), f"{ratio * workers * STEP_MS:g}", str(workers)]
    with measured([sys.executable, *loop, "--truth"]) as truth:
        found = rounds_of(truth, most=rounds, seconds=60.0)
        target = folder / f"{ratio:g}.json"
        command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", str(budget_s)]
        command += ["--no-verify", "--json", str(target), "--output", str(folder / f"{ratio:g}")]
        done = subprocess.run([*command, *loop], capture_output=True, text=True)
        if not target.exists():
            raise RuntimeError(f"{ratio}: no report\n{done.stderr[-1500:]}")
        found += rounds_of(truth, most=rounds, seconds=60.0)
    return compared(found, json.loads(target.read_text()), ratio=ratio, workers=workers)


def compared(
    found: list[dict[str, list[float]]], report: dict[str, Any], *, ratio: float, workers: int
) -> dict[str, Any]:
    """One row: the truth, what was said, and whether that is right."""
    full, cached, alone = ([ms for one in found for ms in one[how]] for how in found[0])
    waits = [a - b for a, b in zip(full, cached, strict=True)]
    wall = statistics.median(full)
    spread = statistics.stdev(waits) if len(waits) > 1 else 0.0
    ablation = report["ablation"] or {}
    value, (low, high) = said_of(ablation, "input_ms")
    ours_wall = ablation.get("plain_ms") or report["step"]["wall_ms"]
    row: dict[str, Any] = {"ratio": ratio, "workers": workers, "truth_ms": wall}
    row["supply"] = statistics.median(alone) / statistics.median(cached)
    row["input_true"] = statistics.median(waits) / wall
    row["noise"] = 2 * spread / len(waits) ** 0.5 / wall
    row["ours_ms"] = ours_wall
    said = value / ours_wall if value is not None else report["shares"]["input"] or 0.0
    row["input_ours"], row["input_low"], row["input_high"] = said, low / ours_wall, high / ours_wall
    row["verdict"] = f"{report['verdict']['bound']} {report['verdict']['severity']}"
    row["summary"] = report["verdict"]["summary"]
    row["findings"] = [one["kind"] for one in report["findings"]]
    row["edge"] = EDGE in row["findings"]
    within = abs(said - row["input_true"]) <= max(
        POINTS, row["noise"] + (row["input_high"] - row["input_low"]) / 2
    )
    called = row["verdict"] in ("input moderate", "input high")
    wrongly = called and row["input_true"] + row["noise"] < POINTS
    late = called or row["input_low"] >= POINTS  # it is said to wait already, whatever is larger
    missed = AT_THE_EDGE[0] <= row["supply"] <= AT_THE_EDGE[1] and not (row["edge"] or late)
    row["right"] = within and not wrongly and not missed
    row["right"] &= not (row["edge"] and row["supply"] < TO_SPARE)
    environment = report["environment"]
    row["machine"] = f"{environment['usable_cpus']:g} CPUs, torch {environment['torch']}"
    return row


def markdown(rows: list[dict[str, Any]]) -> str:
    heads = ["workers", "supply / step", "step ms, truth / ours", "input %, truth", "ours"]
    heads += ["verdict", "only just keep up", "right"]
    lines = ["| " + " | ".join(heads) + " |", "|---:|---:|---:|---:|---:|---|---|---|"]
    for row in rows:
        cells = [str(row["workers"]), f"{row['supply']:.2f}"]
        cells.append(f"{row['truth_ms']:.1f} / {row['ours_ms']:.1f}")
        cells.append(f"{100 * row['input_true']:.1f} ± {100 * row['noise']:.1f}")
        low, high = 100 * row["input_low"], 100 * row["input_high"]
        cells.append(f"{100 * row['input_ours']:.1f} [{low:.1f}, {high:.1f}]")
        cells += [row["verdict"], "said" if row["edge"] else "–"]
        lines.append("| " + " | ".join([*cells, "yes" if row["right"] else "**no**"]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)))
    parser.add_argument("--budget", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=2, help="of the truth, before and after")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="of --json")
    args = parser.parse_args()
    if args.table:
        print(markdown([row for file in args.table for row in json.loads(file.read_text())]))
        return 0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for ratio in map(float, args.ratios.split(",")):
            try:
                rows.append(row_of(ratio, args.workers, args.budget, args.rounds, Path(folder)))
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                continue
            print(markdown(rows[-1:]).splitlines()[-1], rows[-1]["summary"], flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    print(markdown(rows))
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
