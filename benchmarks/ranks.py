"""Two ranks, one of them slow: truth, diagnosis, and a whole run, with DDP and with FSDP.

    python benchmarks/ranks.py [--kinds ddp,fsdp] [--budget 20] [--json FILE]
    python benchmarks/ranks.py --table FILE…      what was measured, as a table for a page

For each kind: a training alone and the truth of `rank_loop.py` in processes of their own,
`loaderdoctor diagnose` of it, the truth once more, and the training under `loaderdoctor run`, whose
losses must be equal. NCCL where there are GPUs, else gloo. A row is right where the group's input
and copy shares lie within 5 points or the noise, rank 1 is named with its input as the cause, and
`run` changed nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from truth import compare, noise_of, truth_of

LOOP = Path(__file__).with_name("rank_loop.py")
RANKS = ("--standalone", "--nproc-per-node", "2")  # a free port: other jobs may run beside
RUN_STEPS = 700
LIMIT_S = 200.0


def started(*command: str) -> subprocess.CompletedProcess[str]:
    """A command that ended. Raises RuntimeError with what it said last, where it failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stderr[-1500:]}")
    return done


def by_torchrun(kind: str, *words: str) -> dict[str, Any]:
    """The JSON line of rank 0."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", *RANKS)
    return last_json(started(*torchrun, str(LOOP), kind, *words).stdout)


def last_json(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def by_loaderdoctor(command: str, folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    """(report, what the script printed) of diagnose or run."""
    report = folder / f"{command}.json"
    ours = [sys.executable, "-m", "loaderdoctor", command, *RANKS, "--json", str(report)]
    done = started(*ours, "--output", str(folder / command), *words)
    found: dict[str, Any] = json.loads(report.read_text())
    return found, done.stdout


def slow_rank(report: dict[str, Any]) -> dict[str, Any] | None:
    """Evidence of the rank that the others wait for."""
    found = (f["evidence"] for f in report["findings"] if f["kind"] == "slow-rank")
    return next(found, None)


def row_of(kind: str, budget_s: float, folder: Path) -> dict[str, Any]:
    steps = ("--steps", str(RUN_STEPS))
    alone = by_torchrun(kind, "--truth", "--rounds", "2", *steps)
    budget = ("--budget", str(budget_s), "--no-verify")
    report, _ = by_loaderdoctor("diagnose", folder, *budget, str(LOOP), kind)
    after = by_torchrun(kind, "--truth", "--rounds", "2")
    row = compare(kind, truth_of(alone["truth"], after["truth"]), report)
    late = slow_rank(report)
    row["slow_rank"] = late
    row["peer_wait_ms"] = [rank["peer_wait_ms"] for rank in report["ranks"]]
    row["communication"] = [rank["shares"]["communication"] for rank in report["ranks"]]
    watched_report, said = by_loaderdoctor("run", folder, str(LOOP), kind, *steps)
    watched = last_json(said)
    row["alone_ms"], row["run_ms"] = alone["ms"], watched["ms"]
    row["same_losses"] = alone["losses"] == watched["losses"]
    row["run_verdict"] = watched_report["verdict"]["summary"]
    row["run_told"] = [alert["text"] for alert in watched_report["run"]["alerts"]]
    named = late is not None and (late["rank"], late["cause"]) == (1, "input")
    row["right"] = bool(row["agrees"] and named and row["same_losses"])
    environment = report["environment"]
    device = environment["device_name"] or "no accelerator"
    row["machine"] = f"{device}, {environment['usable_cpus']:g} CPUs, torch {environment['torch']}"
    return row


def markdown(rows: list[dict[str, Any]]) -> str:
    heads = ["ranks", "step ms, truth / ours", "input %", "copy %", "noise %", "slow rank"]
    heads += ["rank 0 waits, ms", "`run`: ms alone / watched", "same losses", "right"]
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("|---|" + "---:|" * 4 + "---|---:|---:|---|---|")
    for row in rows:
        if "error" in row:
            continue
        late = row["slow_rank"]
        cells = [row["loop"], f"{row['truth_ms']:.2f} / {row['ours_ms']:.2f}"]
        cells += [
            f"{100 * row[f'{part}_true']:.1f} / {100 * row[f'{part}_ours']:.1f}"
            for part in ("input", "copy")
        ]
        cells.append(f"{100 * noise_of(row):.1f}")
        cells.append("not named" if late is None else f"{late['rank']}, by its {late['cause']}")
        cells.append(f"{row['peer_wait_ms'][0]:.1f}")
        cells.append(f"{row['alone_ms']:.2f} / {row['run_ms']:.2f}")
        cells += ["yes" if row["same_losses"] else "**no**", "yes" if row["right"] else "**no**"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["ddp", "fsdp"])
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="of --json")
    args = parser.parse_args()
    if args.table:
        print(markdown([row for file in args.table for row in json.loads(file.read_text())]))
        return 0
    rows = []
    for kind in args.kinds:
        try:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row_of(kind, args.budget, Path(folder)))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{kind}: {error}", flush=True)
            rows.append({"loop": kind, "right": False, "error": str(error)})
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    print(markdown(rows))
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
