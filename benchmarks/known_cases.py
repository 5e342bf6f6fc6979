"""What `diagnose` says of small scripts whose truth is known, beside what is right.

    python benchmarks/known_cases.py FOLDER [--only NAME,…] [--budget 25] [--json FILE]

FOLDER holds the scripts named in CASES (others are passed over), which were made for it and are not
in the repository; each is run from there, one after the other. A row is right where the bound is
one of those named, every finding that must be there is, none that is false is, and the whole wall
time of a step and the input share lie in their ranges. The exit code is 0 where all are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 240.0
POINTS = 0.05  # that a share may be off
LEAST = 0.05  # of the step: from here on the loader is its bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is right to say of one script."""

    bounds: tuple[str, ...]
    kinds: tuple[str, ...] = ()  # findings that must be there
    never: tuple[str, ...] = ()  # findings that would be false
    wall_ms: tuple[float, float] | None = None  # of a training step, all its time
    input_share: tuple[float, float] | None = None
    # What making a batch takes in the loop itself, by construction: the input share is that part of
    # the step, POINTS more or less, and the bound is input where it is surely above 5 %.
    making_ms: float | None = None
    says: str = ""  # somewhere in findings or advice
    tries: bool = False  # something has to be tried, which takes trials


OF_THE_LOADER = ("loader-in-main-process", "too-few-workers", "cpu-saturated-workers")
MADE_IN_THE_LOOP = Case(
    bounds=("compute", "input"),
    kinds=("pass-before-training",),
    wall_ms=(40.0, 200.0),  # of slower and faster machines
    making_ms=9.6,
)

CASES = {
    "new_shape_each_step": Case(bounds=("compute",), kinds=("recompilation",)),
    "plan_per_shape": Case(
        bounds=("compute", "host"), never=OF_THE_LOADER, kinds=("compute-depends-on-new-shapes",)
    ),
    "three_loaders_short_epochs": Case(
        bounds=("input",), kinds=("worker-startup-each-epoch",), never=("iterator-recreated",)
    ),
    "periodic_validation": Case(
        bounds=("outside",), kinds=("time-outside-steps",), wall_ms=(40.0, 75.0)
    ),
    "periodic_sleep": Case(bounds=("host", "outside"), wall_ms=(42.0, 70.0)),
    # A batch is 16 samples of 0.6 ms, made in the loop itself: 9 % of a step of 103 ms, as on the
    # machine that these were written on, and more of a shorter one.
    "statistics_pass": MADE_IN_THE_LOOP,
    "statistics_probe": MADE_IN_THE_LOOP,
    "no_main_guard": Case(bounds=("input",), kinds=("main-guard-missing",)),
    "loader_in_epoch_loop": Case(
        bounds=("input",), kinds=("worker-startup-each-epoch",), says="the loop over the epochs"
    ),
    "short_run": Case(bounds=("input",), tries=True),
    "quiet_loader": Case(
        bounds=("compute",), never=(*OF_THE_LOADER, "overhead-bound-loader"), input_share=(0.0, 0.1)
    ),
    "tiny_samples_one_worker": Case(
        bounds=("input",), kinds=("overhead-bound-loader",), tries=True
    ),
    "python_between": Case(bounds=("host",), kinds=("work-between-steps",), says="shape_words"),
    # cuDNN's autotuner in place of a plan of the loop's own, on a GPU: one convolution, or three.
    "plan_per_shape_cudnn": Case(
        bounds=("compute", "host"), never=OF_THE_LOADER, kinds=("autotuning-each-shape",)
    ),
    "plan_per_shape_cudnn_slow": Case(
        bounds=("compute", "host"), never=OF_THE_LOADER, kinds=("autotuning-each-shape",)
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--budget", type=float, default=25.0)
    parser.add_argument("--json", type=Path, help="all reports")
    args = parser.parse_args()
    reports: dict[str, Any] = {}
    n_wrong = 0
    print("| script | right | said | wall, ms | input % | findings | |")
    print("|---|---|---|---:|---:|---|---|")
    for name in args.only or [n for n in CASES if (args.folder / f"{n}.py").exists()]:
        report = reports[name] = report_of(args.folder / f"{name}.py", CASES[name], args.budget)
        wrong = why_wrong(CASES[name], report)
        n_wrong += bool(wrong)
        print(row(name, CASES[name], report, wrong), flush=True)
    print(f"\n{len(reports) - n_wrong} of {len(reports)} right")
    if args.json:
        args.json.write_text(json.dumps(reports))
    return 1 if n_wrong else 0


def report_of(script: Path, case: Case, budget_s: float) -> dict[str, Any]:
    """The report of a run; empty where there is none. Trials only where they are asked about."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.json"
        command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", str(budget_s)]
        command += [] if case.tries else ["--no-verify"]
        command += ["--output", f"{folder}/run", "--json", str(target), script.name]
        try:
            subprocess.run(command, cwd=script.parent, capture_output=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return {}
        found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
        return found


def why_wrong(case: Case, report: dict[str, Any]) -> list[str]:
    """What of a report is not so; nothing: it is right."""
    if not report:
        return ["no report"]
    kinds, wall_ms = [f["kind"] for f in report["findings"]], whole_ms(report)
    step_ms = report["step"]["wall_ms"]
    made = case.making_ms / step_ms if case.making_ms and step_ms else None
    bounds = ("input",) if made and made > LEAST + POINTS else case.bounds
    wrong = [] if report["verdict"]["bound"] in bounds else ["bound"]
    wrong += [f"no {kind}" for kind in case.kinds if kind not in kinds]
    wrong += [f"false {kind}" for kind in case.never if kind in kinds]
    if case.wall_ms and not case.wall_ms[0] <= (wall_ms or 0.0) <= case.wall_ms[1]:
        wrong.append("wall")
    share = (report["shares"] or {}).get("input") or 0.0
    if case.input_share and not case.input_share[0] <= share <= case.input_share[1]:
        wrong.append("input share")
    if case.making_ms and (made is None or abs(share - made) > POINTS):
        wrong.append("input share")
    if case.says and case.says not in json.dumps([report["findings"], report["recommendations"]]):
        wrong.append(f"nothing of {case.says!r}")
    if case.tries and not report["trials"]:
        wrong.append("nothing was tried")
    return wrong


def whole_ms(report: dict[str, Any]) -> float | None:
    """All the time of a training step; of a report that knows only steps, theirs."""
    found: float | None = (report.get("wall") or {}).get("total_ms") or report["step"]["wall_ms"]
    return found


def row(name: str, case: Case, report: dict[str, Any], wrong: list[str]) -> str:
    if not report:
        return f"| `{name}` | {' or '.join(case.bounds)} | – | – | – | – | **no report** |"
    verdict, wall_ms = report["verdict"], whole_ms(report)
    share = (report["shares"] or {}).get("input")
    cells = [
        f"`{name}`",
        " or ".join(case.bounds),
        f"{verdict['bound']} {verdict['severity']}",
        f"{wall_ms:.1f}" if wall_ms else "–",
        "–" if share is None else f"{100 * share:.0f}",
        ", ".join(f["kind"] for f in report["findings"]) or "–",
        f"**{', '.join(wrong)}**" if wrong else "ok",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
