"""What a diagnosis measured for its advice, beside the same advice applied to the script by hand.

    python benchmarks/prescription.py [--only NAME,…] [--budget 45] [--epochs 3] [--rounds 2]
                                      [--runs FOLDER] [--json FILE]

For each script of `prescribed/`: `loaderdoctor diagnose`, then every change that its report
measured is written into a copy of the script (its diffs as text; a thread, a side stream or a
resident dataset around the loop's loader), and the script and its copy run plainly, in turns,
without loaderdoctor. A row agrees when the by-hand gain lies within the report's interval widened
by the spread of the by-hand epochs, or within 10 % of it.

Where no setting was shown to help, the first change of code is pasted in as the report shows it.
The report gives a bound for it; such a row agrees when the script becomes faster, and not by more
than that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("prescribed")
NAMES = (
    "jpeg_resnet",
    "pageable_big_copy",
    "tiny_mnist",
    "lightning_fit",
    "gpu_prefetcher",
    "item_every_step",
)
TOLERANCE = 0.10  # of the ratio: two runs of one script differ by that much on shared machines
LOOP = re.compile(r"^(\s+for x, y in )(.+):$", re.MULTILINE)
EPOCHS = re.compile(r"^for epoch in ", re.MULTILINE)
BUILT = re.compile(r"^train_loader = DataLoader\(.*\)$", re.MULTILINE)


class CannotApplyError(Exception):
    """A recommendation that this program can't write into the script."""


def with_advice(source: str, recommendations: list[dict[str, Any]]) -> str:
    """The script with every change written in; raises CannotApplyError."""
    for row in recommendations:
        removed = [line[2:] for line in row["code"].splitlines() if line.startswith("- ")]
        added = [line[2:] for line in row["code"].splitlines() if line.startswith("+ ")]
        if row["setting"] == "cache":  # the class stands before the line that uses it
            added = [*row["code"].partition("\n- ")[0].splitlines(), *added]
        if removed and "\n".join(removed) != "\n".join(added):
            source = _replaced(source, removed, added)
    for row in recommendations:  # after the diffs, which name the loop's line as it was
        if not any(line.startswith("- ") for line in row["code"].splitlines()):
            source = _wrapped(source, row)
    return source


def _replaced(source: str, removed: list[str], added: list[str]) -> str:
    lines = source.splitlines()
    want = [line.strip() for line in removed]
    at = [line.strip() for line in lines]
    for i in range(len(lines) - len(want) + 1):
        if at[i : i + len(want)] == want:
            margin = lines[i][: len(lines[i]) - len(lines[i].lstrip())]
            shift = len(added[0]) - len(added[0].lstrip())
            lines[i : i + len(want)] = [margin + line[shift:] for line in added]
            return "\n".join(lines) + "\n"
    if all(line.strip() in at for line in added):
        return source  # a sibling row's diff, which shows the same call, wrote it
    raise CannotApplyError(f"no such lines in the script: {removed[0]} …")


def _wrapped(source: str, row: dict[str, Any]) -> str:
    name, value = row["setting"], row["to"]
    # A hint is shown as added lines.
    code = "\n".join(line.removeprefix("+ ") for line in row["code"].splitlines())
    if name == "background" and value == "host":
        before = "from prefetch_generator import BackgroundGenerator\n\n"
        around = "BackgroundGenerator(iter({loader}), max_prefetch=2)"
    elif name == "background" and value == "device":
        before = "from prefetch_generator import BackgroundGenerator\n\n"
        moved = "([t.to(device, non_blocking=True) for t in batch] for batch in {loader})"
        around = f"BackgroundGenerator({moved}, max_prefetch=2)"
    elif name == "side_stream" and value:
        # The report's own code, but for its last lines, which show how the loop uses it.
        before = code.split("\nfor images, labels in ")[0] + "\n\n\n"
        around = "copied_ahead({loader}, device)"
    elif name == "resident" and value:
        # Behind the loader whose place it takes, in the script's own loop or a Trainer's.
        code = code.replace(
            "loader = OnDevice(loader, device)",
            'train_loader = OnDevice(train_loader, torch.device("cuda"))',
        )
        changed, n = BUILT.subn(lambda m: f"{m[0]}\n\n\n{code}\n\n", source)
        if not n:
            raise CannotApplyError(f"{name}: the script builds no train_loader in one line")
        return changed
    elif name in ("persistent_workers", "prefetch_factor", "num_workers", "pin_memory"):
        raise CannotApplyError(f"{name}: the report shows no line of the script to change")
    else:
        raise CannotApplyError(f"{name}: a change of code")
    changed, n = LOOP.subn(lambda m: m[1] + around.format(loader=m[2]) + ":", source)
    if not n:
        raise CannotApplyError(f"{name}: the script has no loop of its own")
    return EPOCHS.sub(before + "for epoch in ", changed, count=1)


def pasted(source: str, code: str) -> str:
    """The script with code that builds `loader` and begins its loop; raises CannotApplyError."""
    built, loops, body = code.partition("\nfor ")
    target, _, lines = body.partition(" in loader:")
    if not loops or not LOOP.search(source):
        raise CannotApplyError("its code has no loop over a loader, or the script has none")
    known = ("dataset", "batch_size", "num_workers", "prefetch_factor")
    before = (
        "".join(f"{name} = train_loader.{name}\n" for name in known) + "loader = train_loader\n"
    )
    begun = [line.strip() for line in lines.splitlines()[1:]]

    def loop(match: re.Match[str]) -> str:
        margin = match[1].removesuffix("for x, y in ")
        inner = "".join(f"\n{margin}    {line}" for line in begun)
        return f"{margin}for {target} in loader:{inner}"

    return EPOCHS.sub(f"{before}{built}\nfor epoch in ", LOOP.sub(loop, source), count=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Milliseconds per step, one figure for each epoch."""

    step_ms: list[float]

    @property
    def value(self) -> float:
        return statistics.median(self.step_ms)

    @property
    def spread(self) -> float:
        """Half the range of the epochs."""
        return (max(self.step_ms) - min(self.step_ms)) / 2


def run_plain(script: Path, n_epochs: int) -> list[float]:
    environment = dict(os.environ, TIMED_EPOCHS=str(n_epochs), PYTHONPATH=_search_path())
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stderr[-1500:]}")
    return list(json.loads(done.stdout.strip().splitlines()[-1])["step_ms"])


def diagnose(script: Path, budget_s: float, folder: Path) -> dict[str, Any]:
    target = folder / "report.json"
    command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", str(budget_s)]
    command += ["--json", str(target), "--output", str(folder / "run"), str(script)]
    environment = dict(os.environ, PYTHONPATH=_search_path())
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if not target.exists():
        raise RuntimeError(f"{script.name}: no report\n{done.stderr[-1500:]}")
    print(done.stdout, flush=True)
    report: dict[str, Any] = json.loads(target.read_text())
    return report


def _search_path() -> str:
    return os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))


def row_of(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    # A copy beside the original: what it imports from its neighbours is found there too.
    script, edited = SCRIPTS / f"{name}.py", SCRIPTS / f".edited_{name}.py"
    report = diagnose(script, args.budget, folder)
    advice = [r for r in report["recommendations"] if r["measured_step_ms"] is not None]
    # What was measured apart from the first is another way, and not to be added to it.
    advice = [r for r in advice if r["measured_step_ms"] == advice[0]["measured_step_ms"]]
    row: dict[str, Any] = {
        "script": name,
        "verdict": f"{report['verdict']['bound']} {report['verdict']['severity']}",
        "advice": ", ".join(f"{r['setting']}={r['to']}" for r in advice) or "none measured",
        "report_ms": report["step"]["wall_ms"],
        "report_ms_ci": report["step"]["wall_ms_ci"],
    }
    if advice:
        row |= {"advised_ms": advice[0]["measured_step_ms"]}
        row |= {"advised_ci": advice[0]["measured_ci_ms"]}
    elif report["recommendations"]:
        in_code = report["recommendations"][0]
        row |= {"advice": f"(code) {in_code['setting']}", "advised_ci": None}
        row |= {"advised_ms": in_code["predicted_step_ms"], "bound": True}
    if row.get("advised_ms") is None:
        return row
    try:
        if advice:
            edited.write_text(with_advice(script.read_text(), advice))
        else:
            edited.write_text(pasted(script.read_text(), in_code["code"]))
        before: list[float] = []
        after: list[float] = []
        for _ in range(args.rounds):
            before += run_plain(script, args.epochs)
            after += run_plain(edited, args.epochs)
    except CannotApplyError as error:
        return row | {"not_applied": str(error)}
    finally:
        edited.unlink(missing_ok=True)
    return row | _compared(row, Timed(step_ms=before), Timed(step_ms=after))


def _compared(row: dict[str, Any], before: Timed, after: Timed) -> dict[str, Any]:
    by_hand = before.value / after.value
    low, high = row["advised_ci"] or (row["advised_ms"], row["advised_ms"])
    now = row["report_ms"]
    ours = now / row["advised_ms"]
    slack = by_hand * (before.spread / before.value + after.spread / after.value)
    now_low, now_high = row["report_ms_ci"] or (now, now)
    lowest, highest = now_low / high - slack, now_high / max(low, 1e-9) + slack
    if row.get("bound"):
        lowest = 1.0  # faster than it was
    return {
        "before_ms": before.value,
        "before_spread": before.spread,
        "after_ms": after.value,
        "after_spread": after.spread,
        "gain_reported": ours,
        "gain_by_hand": by_hand,
        "agrees": lowest < by_hand <= highest or abs(by_hand / ours - 1) <= TOLERANCE,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    heads = ("script", "verdict", "advice", "report: now → with it, ms", "by hand, ms")
    print("| " + " | ".join((*heads, "gain: report", "gain: by hand", "agree")) + " |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        report = f"{row['report_ms']:.2f}"
        if "advised_ms" in row:
            low, high = row["advised_ci"] or (None, None)
            between = f" [{low:.2f}, {high:.2f}]" if low is not None else ""
            report += f" → {row['advised_ms']:.2f}{between}"
        hand = reported = gain = "–"
        agree = row.get("not_applied", "–")
        if "gain_by_hand" in row:
            hand = (
                f"{row['before_ms']:.2f} ± {row['before_spread']:.2f} → "
                f"{row['after_ms']:.2f} ± {row['after_spread']:.2f}"
            )
            reported, gain = f"{row['gain_reported']:.2f}×", f"{row['gain_by_hand']:.2f}×"
            reported = f"at most {reported}" if row.get("bound") else reported
            agree = "yes" if row["agrees"] else "**no**"
        cells = (row["script"], row["verdict"], row["advice"], report, hand, reported, gain, agree)
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(NAMES))
    parser.add_argument("--budget", type=float, default=45.0, help="of each diagnosis, seconds")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs of each plain run")
    parser.add_argument("--rounds", type=int, default=2, help="turns of original and copy")
    parser.add_argument("--runs", type=Path, help="keep the run folders here")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.only:
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.runs / name if args.runs else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                rows.append(row_of(name, args, folder))
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                continue
        print(json.dumps(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    print_table(rows)
    print(f"\n{machine()}")


def machine() -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    cpus = len(os.sched_getaffinity(0))
    return f"{device}, {cpus} CPUs, torch {torch.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
