"""What `analyze` says of traces whose truth is known: the verdict, and its first piece of advice.

    python benchmarks/judge_traces.py [FOLDER …] [--json FILE]     by default traces/ and below

A folder holds traces and `truth.json`: for each trace `expect_bound`, and `helps`, by which change
the loop gets how many times as fast (measured or simulated; of older ones a list of what is known
to help). A verdict is right if its bound is expected. An input- or copy-bound loop needs a first
piece of advice that makes it faster, by a twentieth at the least. Of each change whose gain is
known the step that it gives is put beside what was said to be the least: none may go below it, but
for a twentieth. A bound that promises everything passes that: where a step took more than twice
what it was said to take at best, the bound decides nothing and is not counted. How far bounds lie
is told as well: what is saved at best over what was saved, and how many steps come within 15 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRACES = Path(__file__).parents[1] / "traces"
FASTER = 1.05
NEAR = 0.15
SAYS_NOTHING = 2.0  # so many times what it is at best
# What each piece of advice changes, by its title.
CHANGES = {
    "Let worker processes make the batches": "num_workers",
    "Give the loader more workers": "num_workers",
    "Give the loader fewer workers": "fewer_workers",
    "Do less for each batch": "less_work",
    "Take batches as they are ready, whatever their order": "in_order",
    "Keep the workers from epoch to epoch": "persistent_workers",
    "Make the iterator once per epoch": "iterator",
    "Pin the batches, and copy them without waiting": "pin_memory",
    "Copy the batches without waiting": "non_blocking",
    "Copy the next batch on a stream of its own": "side_stream",
    "Send uint8 and normalise on the device": "uint8",
    "Copy one packed tensor instead of many small ones": "packed",
    "Keep the loss on the device, read it rarely": "no_sync",
    "Move the loop's own work into the workers, or do it rarely": "own_work",
    "Launch less: CUDA graphs, fused optimizers, a bigger batch": "launches",
}


def report_of(trace: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "loaderdoctor", "analyze", "--json", "-", str(trace)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(f"{trace}: {done.stderr[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def judged(trace: Path, truth: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """One row: what is true, what is said, and whether that is right."""
    verdict, helps = report["verdict"], truth.get("helps") or {}
    measured = helps if isinstance(helps, dict) else {}
    helps = dict.fromkeys(helps, FASTER) if isinstance(helps, list) else helps
    first = next((r["setting"] for r in report["recommendations"]), None)
    change = CHANGES.get(first or "")
    bound_is_right = verdict["bound"] in truth["expect_bound"]
    needs = (
        bool({"input", "copy"} & set(truth["expect_bound"]))
        and "compute" not in truth["expect_bound"]
    )
    ratio = helps.get(change or "", 0.0)
    return {
        "trace": trace.name.partition(".")[0],
        "expected": truth["expect_bound"],
        "verdict": f"{verdict['bound']} {verdict['severity']}",
        "right": bound_is_right,
        "input": (truth.get("input_share"), (report["trace_shares"] or {}).get("input")),
        "copy": (truth.get("copy_share"), (report["trace_shares"] or {}).get("copy")),
        "findings": [f["kind"] for f in report["findings"]],
        "first": first,
        "times_as_fast": ratio,
        "best": max(helps.items(), key=lambda item: float(item[1]), default=None),
        "advice_is_right": ratio >= FASTER if needs and helps else None,
        "bounds": [
            (change, truth["step_ms"], r["predicted_step_ms"], truth["step_ms"] / helps[change])
            for r in report["recommendations"]
            if (change := CHANGES.get(r["setting"])) in measured
            and r["predicted_step_ms"] is not None
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folders = options.folders or sorted(path.parent for path in TRACES.rglob("truth.json"))
    rows = []
    for folder in folders:
        cases = json.loads((folder / "truth.json").read_text())["cases"]
        for trace in sorted(folder.glob("*.json.gz")):
            truth = cases.get(trace.name.partition(".")[0])
            if truth is None or not truth.get("expect_bound"):
                continue
            row = judged(trace, truth, report_of(trace))
            rows.append(row)
            print(line(row), flush=True)
    n_right = sum(row["right"] for row in rows)
    advised = [row for row in rows if row["advice_is_right"] is not None]
    n_helpful = sum(row["advice_is_right"] for row in advised)
    print(f"verdicts: {n_right} of {len(rows)} right; ", end="")
    print(f"the first advice helps in {n_helpful} of {len(advised)}; ", end="")
    bounds = [(row["trace"], *bound) for row in rows for bound in row["bounds"]]
    beaten = [bound for bound in bounds if bound[-1] < bound[-2] / FASTER]
    n_open = sum(not decides(best_ms, got_ms) for *_, best_ms, got_ms in bounds)
    print(f"{len(beaten)} of {len(bounds) - n_open} times a step was shorter than at best", end="")
    print(f"; {n_open} bounds decide nothing")
    print(tightness([bound[2:] for bound in bounds]))
    for trace, change, _, best_ms, got_ms in beaten:
        print(f"{trace}: {change} at best {best_ms:.2f} ms, got {got_ms:.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    helpful = n_helpful == len(advised) and not beaten
    return 0 if n_right >= 0.95 * len(rows) and helpful else 1


def decides(best_ms: float, got_ms: float) -> bool:
    """Whether a bound that was not beaten was near enough to what was got to say something."""
    return got_ms <= SAYS_NOTHING * best_ms


def tightness(bounds: Sequence[tuple[float, float, float]]) -> str:
    """Of steps as they are, at best and as they got: how near what is said to be the least comes.

    What is said to be saved is put beside what was saved where that was a twentieth or more.
    """
    near = sum(got_ms <= (1 + NEAR) * best_ms for _, best_ms, got_ms in bounds)
    ratios = [
        max(0.0, now_ms - best_ms) / (now_ms - got_ms)
        for now_ms, best_ms, got_ms in bounds
        if now_ms >= FASTER * got_ms
    ]
    saved = f"{statistics.median(ratios):.2f} times" if ratios else "nothing beside"
    return (
        f"at best saves {saved} what was saved (median of {len(ratios)} that save a twentieth); "
        f"{near} of {len(bounds)} steps came within {100 * NEAR:.0f} % of at best"
    )


def line(row: dict[str, Any]) -> str:
    def percent(values: tuple[float | None, float | None]) -> str:
        return "/".join("-" if v is None else f"{100 * v:.0f}" for v in values)

    advice = {True: "helps", False: "NO GAIN", None: ""}[row["advice_is_right"]]
    cells = [
        f"{row['trace']:28s}",
        "ok " if row["right"] else "BAD",
        f"{'|'.join(row['expected']):18s} {row['verdict']:18s}",
        f"in {percent(row['input']):>7s} copy {percent(row['copy']):>7s}",
        f"{row['first'] or '-'} {advice} {row['times_as_fast'] or ''}",
        ", ".join(row["findings"]),
    ]
    return " | ".join(cells)


if __name__ == "__main__":
    sys.exit(main())
