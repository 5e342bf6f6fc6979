"""Our shares beside the truth, loop by loop: input, copy and rest of every loop in loops.py.

    python benchmarks/truth.py [--only NAME,…] [--budget 20] [--rounds 4] [--seconds 12]
                               [--json FILE] [--reports FOLDER]
    python benchmarks/truth.py --table FILE…      what was measured, as a table for a page

For each loop: `loops.py NAME --truth` in a process of its own (no loaderdoctor), then
`loaderdoctor diagnose --no-verify loops.py NAME`, then the truth once more in that process, which
idles meanwhile, so that what drifts is part of its spread. A part's truth is the median over rounds
of what it took in each, since a process that becomes faster becomes so in all three ways, and its
noise twice the standard error of these. A row agrees when each share lies within 5 points of the
truth, or the difference is within both measurements' noise. Over all loops the aim is a median
error of input and copy shares of 1.5 points, and none above 5 points or the truth's own noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOOPS = Path(__file__).with_name("loops.py")
POINTS = 0.05
PARTS = ("input", "copy")
MEDIAN_POINTS = 0.015  # of all input and copy shares: the aim
LONG_EPOCH = 200  # steps; no epoch of this length ends within a measurement of the truth


@contextmanager
def measured(command: Sequence[str]) -> Iterator[Callable[[], dict[str, list[float]]]]:
    """What measures a round of the truth whenever it is called, in a process that idles in between.

    The process prints one as JSON when it starts, and another for each line that it reads. Starting
    it takes longer than its measurement. RuntimeError where it fails.
    """
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        asked, said = process.stdin, process.stdout
        assert asked is not None
        assert said is not None
        first = True

        def measure() -> dict[str, list[float]]:
            nonlocal first
            if not first:
                asked.write("\n")
                asked.flush()
            first = False
            for line in said:
                if line.startswith("{"):
                    found: dict[str, list[float]] = json.loads(line)
                    return found
            errors.seek(0)
            raise RuntimeError(f"no truth of {' '.join(command)}\n{errors.read()[-2000:]}")

        try:
            yield measure
        finally:
            process.kill()


def rounds_of(
    measure: Callable[[], dict[str, list[float]]], *, most: int, seconds: float
) -> list[dict[str, list[float]]]:
    """`most` rounds, or those begun before `seconds` were over: one at least."""
    end = time.monotonic() + seconds
    found = [measure()]
    while len(found) < most and time.monotonic() < end:
        found.append(measure())
    return found


def truth_of(*runs: dict[str, list[float]]) -> dict[str, Any]:
    """What the step and its parts take, by the median over all rounds, and the noise of it."""
    full, cached, resident = ([ms for one in runs for ms in one[how]] for how in runs[0])
    parts = {
        "input": [a - b for a, b in zip(full, cached, strict=True)],
        "copy": [a - b for a, b in zip(cached, resident, strict=True)],
    }
    found: dict[str, Any] = {"step_ms": statistics.median(full), "n_rounds": len(full)}
    found["rest_ms"] = found["step_ms"]
    for part, of_rounds in parts.items():
        found[f"{part}_ms"] = statistics.median(of_rounds)
        found["rest_ms"] -= found[f"{part}_ms"]
        spread = statistics.stdev(of_rounds) if len(of_rounds) > 1 else 0.0
        found[f"{part}_noise_ms"] = 2 * spread / len(of_rounds) ** 0.5
    return found


def run_diagnose(
    name: str, budget_s: float, folder: Path, reports: Path | None = None
) -> dict[str, Any]:
    """The report of one loop, kept in `reports` if that is given."""
    target = (reports or folder) / f"{name}.json"
    command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--no-verify"]
    command += ["--budget", str(budget_s), "--json", str(target), "--output", str(folder / name)]
    out = subprocess.run([*command, str(LOOPS), name], capture_output=True, text=True)
    if not target.exists():
        raise RuntimeError(f"{name}: no report\n{out.stdout[-2000:]}\n{out.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def said_of(ablation: dict[str, Any], part: str) -> tuple[float | None, tuple[float, float]]:
    """(milliseconds a step, interval) that the report states of a part, which are no less than 0.

    What was measured of it stands under the same name, signed; `claims` holds where that says less.
    """
    measured = ablation.get(part)
    if measured is None:
        return None, (0.0, 0.0)
    stated, interval = (ablation.get("claims") or {}).get(part) or (
        measured,
        (ablation.get("ci_ms") or {}).get(part),
    )
    low, high = interval or (stated, stated)
    return max(0.0, stated), (low, high)


def compare(name: str, truth: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """One row: truth and ours, and whether they agree."""
    wall = truth["step_ms"]
    row: dict[str, Any] = {"loop": name, "truth_ms": wall, "n_rounds": truth["n_rounds"]}
    agrees = True
    ablation = report["ablation"] or {}
    ours_wall = ablation.get("plain_ms") or report["step"]["wall_ms"]
    # The truth is measured within one long epoch; our figures spread its boundary over it.
    steps_per_epoch = report["step"]["steps_per_epoch"] or 0
    boundary_ms = report["step"]["boundary_ms"] or 0.0
    spread_ms = boundary_ms / steps_per_epoch if steps_per_epoch > LONG_EPOCH else 0.0
    ours_wall -= spread_ms
    shares = {"input": 0.0, "copy": 0.0}
    for part in shares:
        value, interval = said_of(ablation, f"{part}_ms")
        if value is not None and part == "input":
            value = max(0.0, value - spread_ms)
        shares[part] = value / ours_wall if value is not None else (report["shares"][part] or 0.0)
        true = truth[f"{part}_ms"] / wall
        ours_noise = (interval[1] - interval[0]) / 2 / ours_wall if value is not None else 0.0
        noise = truth[f"{part}_noise_ms"] / wall
        row[f"{part}_true"], row[f"{part}_ours"], row[f"{part}_noise"] = true, shares[part], noise
        agrees &= abs(shares[part] - true) <= max(POINTS, noise + ours_noise)
    row["ours_ms"] = ours_wall
    row["recorded_only"] = report["step"].get("wall_ms_ci") is None and not ablation
    row["rest_true"] = truth["rest_ms"] / wall
    row["rest_ours"] = 1.0 - shares["input"] - shares["copy"]
    row["trace_input"] = (report["trace_shares"] or {}).get("input")
    row["trace_copy"] = (report["trace_shares"] or {}).get("copy")
    row["verdict"] = f"{report['verdict']['bound']} {report['verdict']['severity']}"
    row["findings"] = [f["kind"] for f in report["findings"]]
    row["agrees"] = agrees
    return row


def noise_of(row: dict[str, Any]) -> float:
    """The larger noise of the truth's two shares."""
    return max(float(row["input_noise"]), float(row["copy_noise"]))


def line(row: dict[str, Any]) -> str:
    cells = [f"{row['loop']:22s}", f"{row['truth_ms']:8.2f} {row['ours_ms']:8.2f}"]
    cells += [
        f"{100 * row[f'{part}_true']:6.1f} {100 * row[f'{part}_ours']:6.1f}"
        for part in ("input", "copy", "rest")
    ]
    cells.append(f"{100 * noise_of(row):5.1f} {row['n_rounds']:3d}")
    cells.append("ok " if row["agrees"] else "OFF")
    cells.append(f"{row['verdict']:16s} {', '.join(row['findings'])}")
    return " | ".join(cells)


def summary(rows: list[dict[str, Any]]) -> str:
    """A sentence on rows that were measured: the median error, and who misses the aim for each."""
    measured = [row for row in rows if "error" not in row]
    if not measured:
        return "No loop was measured."
    off = {
        (row["loop"], part): abs(row[f"{part}_ours"] - row[f"{part}_true"])
        for row in measured
        for part in PARTS
    }
    noise = {(row["loop"], part): row[f"{part}_noise"] for row in measured for part in PARTS}
    beyond = [
        f"{part} of {loop} by {100 * error:.1f} (noise {100 * noise[loop, part]:.1f})"
        for (loop, part), error in off.items()
        if error > max(POINTS, noise[loop, part])
    ]
    middle = statistics.median(off.values())
    said = f"{len(measured)} loops: median error {100 * middle:.1f} points"
    said += f" (aim {100 * MEDIAN_POINTS:.1f}), largest {100 * max(off.values()):.1f};"
    said += f" beyond {100 * POINTS:.0f} points and the truth's noise: "
    said += "; ".join(beyond) or "none"
    failed = [row["loop"] for row in rows if "error" in row]
    return said + (f". Not measured: {', '.join(failed)}." if failed else ".")


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a page shows them, and the sentence below."""
    heads = ["loop", "step ms, truth / ours", "input %", "copy %", "rest %", "noise %"]
    heads += ["rounds", "verdict", "agrees"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * 6 + "---|---|"]
    for row in rows:
        if "error" in row:
            continue
        cells = [f"`{row['loop']}`", f"{row['truth_ms']:.2f} / {row['ours_ms']:.2f}"]
        cells[-1] += " (recorded)" if row["recorded_only"] else ""
        cells += [
            f"{100 * row[f'{part}_true']:.1f} / {100 * row[f'{part}_ours']:.1f}"
            for part in ("input", "copy", "rest")
        ]
        cells += [f"{100 * noise_of(row):.1f}", str(row["n_rounds"]), row["verdict"]]
        cells.append("yes" if row["agrees"] else "**no**")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", summary(rows)])


def main() -> int:
    sys.path.insert(0, str(LOOPS.parent))
    from loops import LOOPS as NAMES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(n for n in NAMES if not NAMES[n].resident))
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=4, help="of the truth, before and after")
    parser.add_argument("--seconds", type=float, default=12.0, help="after which none begins")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--reports", type=Path, help="keep the diagnoses' reports here")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="of --json")
    args = parser.parse_args()
    if args.table:
        print(markdown([row for file in args.table for row in json.loads(file.read_text())]))
        return 0
    if args.reports is not None:
        args.reports.mkdir(parents=True, exist_ok=True)
    print(f"{'loop':22s} | step ms: truth ours | input %: truth ours | copy | rest | noise, rounds")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only.split(","):
            try:
                with measured(
                    [sys.executable, str(LOOPS), name, "--truth", "--rounds", "1"]
                ) as truth:
                    before = rounds_of(truth, most=args.rounds, seconds=args.seconds)
                    report = run_diagnose(name, args.budget, Path(folder), args.reports)
                    after = rounds_of(truth, most=args.rounds, seconds=args.seconds)
                row = compare(name, truth_of(*before, *after), report)
                row |= {"before": before, "after": after}
                print(line(row), flush=True)
            except (RuntimeError, OSError) as error:
                print(f"{name:22s} | failed: {error}", flush=True)
                row = {"loop": name, "agrees": False, "error": str(error)}
            rows.append(row)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    print(summary(rows))
    n = sum(r["agrees"] for r in rows)
    print(f"{n} of {len(rows)} within 5 points or the measured noise")
    return 0 if n == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
