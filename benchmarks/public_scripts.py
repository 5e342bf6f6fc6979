"""Public training scripts, unmodified, diagnosed beside what separate runs say of them.

    python benchmarks/public_scripts.py CLONES [--only NAME,…] [--jobs N --cpus-each K]
                                        [--budget 60] [--json FILE] [--device cpu|cuda] [--advice]

CLONES holds clones of pytorch/examples, pytorch/vision and huggingface/pytorch-image-models under
the names of public_cases.py (`examples`, `vision`, `pytorch-image-models`); nothing is fetched, and
the clones are not written to. Data are made in a temporary folder (public_data.py).

For each script: runs as it is and with ready batches in turns (public_truth.py, no loaderdoctor in
it), `loaderdoctor diagnose`, and such runs again. A row is right where the script did not break
that works alone, the verdict's bound and severity are ones that the truth allows by its own noise,
and the input share lies within 5 points of the truth or within the noise of both: of the truth's,
and of how far the interval that the report claims for its share reaches towards it, the root of the
sum of squares. Where that is above 15 points, a row in which nothing is wrong decides nothing and
is not counted as right. The scripts' own meters, where they have any, are those of the runs as they
are. --tables judges stored rows anew. With --advice the first advice that an option of the script
carries out is followed: the script runs with it, beside itself.

The truth's noise is mostly what its runs differ by: twice as many before and after make it 1.4
times smaller, longer ones hardly. Of the report it is the rounds that its budget has room for.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from public_cases import CASES, EXCLUDED, Case
from public_data import MAKERS
from public_table import (
    OURS_BROKE,
    judged_anew,
    kept,
    meters_in,
    n_right,
    print_tables,
    said_by,
    undecided,
    why_wrong,
)
from public_truth import (
    START_LIMIT_S,
    Ended,
    Timing,
    end,
    end_all,
    started,
    timed_run,
    truth_of,
)

# The run with the change takes so many times as long: batches made ahead of its first step are then
# a tenth of all (24 of 240 of imagenet's with twelve workers).
CHANGED = 4
GRACE_S = 240.0  # a diagnosis beyond its budget, twice: imports, data, the second cap
OWN_LOOP_S = 20.0  # a script without a loader runs alone for so long, to see whether it runs


class Prepared:
    """A script in a folder of its own, with its data: what to run and where."""

    def __init__(self, case: Case, clones: Path, data: Path, work: Path, device: str) -> None:
        source = clones / case.clone / case.folder
        if not (source / case.script).exists():
            raise FileNotFoundError(f"{source / case.script}")
        self.folder = work / (source.name or case.name)
        if case.files:
            self.folder.mkdir(parents=True)
            for name in case.files:
                shutil.copy(source / name, self.folder)
        else:
            shutil.copytree(source, self.folder, symlinks=True)
        for path, maker in case.at.items():
            target = self.folder / path
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            target.symlink_to(data / maker, target_is_directory=True)
        args = case.gpu_args if device == "cuda" and case.gpu_args is not None else case.args
        places = {name: str(data / name) for name in MAKERS}
        self.args = [arg.format(**places) for arg in args]
        self.script = case.script
        self.env = dict(os.environ) | {k: v.format(**places) for k, v in case.env.items()}
        package = str(Path(__file__).parents[1])
        paths = [package, str(clones / case.clone / case.path) if case.path else ""]
        self.env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [*paths, os.environ.get("PYTHONPATH")])
        )
        if device == "cpu":
            self.env["CUDA_VISIBLE_DEVICES"] = ""
        for script in case.before:
            subprocess.run(
                [sys.executable, script], cwd=self.folder, env=self.env, check=True,
                capture_output=True,
            )  # fmt: skip

    def command(self, args: Sequence[str] | None = None) -> list[str]:
        return [sys.executable, self.script, *(self.args if args is None else args)]


def made(case: Case, data: Path, device: str, lock: threading.Lock) -> None:
    """Make what the case needs, each once, under the names that arguments use."""
    args = case.gpu_args if device == "cuda" and case.gpu_args is not None else case.args
    text = " ".join([*args, *case.env.values()])
    for name in MAKERS:
        if "{" + name + "}" in text or name in case.at.values():
            with lock:
                if not (data / name).exists():
                    (data / name).symlink_to(MAKERS[name](data / "made"), target_is_directory=True)


def diagnosed(
    prepared: Prepared, work: Path, budget_s: float
) -> tuple[dict[str, Any] | None, Ended]:
    target = work / "report.json"
    command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", str(budget_s)]
    command += ["--json", str(target), "--output", str(work / "run"), prepared.script]
    began = time.monotonic()
    with (work / "diagnose.txt").open("w") as out:
        process = started(
            [*command, *prepared.args], cwd=prepared.folder, env=prepared.env, output=out
        )
        try:
            process.wait(2 * budget_s + GRACE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        code = process.poll()
        end(process)
    output = (work / "diagnose.txt").read_text(errors="replace")
    report = json.loads(target.read_text()) if target.exists() else None
    return report, Ended(code=code, output=output, seconds=time.monotonic() - began)


def row_of(case: Case, clones: Path, data: Path, work: Path, args: argparse.Namespace) -> Any:
    prepared = Prepared(case, clones, data, work, args.device)
    runs: dict[str, list[Timing]] = {"plain": [], "ready": [], "changed": []}
    pairs: list[tuple[Timing, Timing]] = []
    plain_output = ""
    ended: Ended | None = None

    def run(script_args: Sequence[str] | None = None) -> None:
        nonlocal plain_output, ended
        plain, ready, one = timed_run(
            prepared.command(script_args), cwd=prepared.folder, env=prepared.env,
            folder=work / f"timed-{time.monotonic_ns()}",
            seconds=args.seconds * (1 if script_args is None else CHANGED),
            ready=script_args is None and not case.own_loop,
            n_cycles=args.cycles,
            start_limit_s=OWN_LOOP_S if case.own_loop else START_LIMIT_S,
        )  # fmt: skip
        if plain is not None:
            runs["plain" if script_args is None else "changed"].append(plain)
        if ready is not None:
            runs["ready"].append(ready)
        if script_args is None and plain is not None and ready is not None:
            pairs.append((plain, ready))
        if script_args is None:
            plain_output, ended = plain_output + one.output[: one.plain], one

    for _ in range(args.rounds):
        run()
    report, ours = diagnosed(prepared, work, args.budget)
    row: dict[str, Any] = {"name": case.name, "args": prepared.args, "took_s": ours.seconds}
    advice = first_option(case, report, prepared) if args.advice and report else None
    for _ in range(args.rounds):
        if advice is not None:
            run(advice["args"])
        if not args.truth_before:
            run()
    truth = None
    if pairs:
        truth = truth_of(pairs)
        row["truth"] = asdict(truth) | {"share": truth.share}
        row["pairs"] = [[asdict(half) for half in pair] for pair in pairs]
    row |= {"runs": {name: [asdict(t) for t in some] for name, some in runs.items()}}
    row["meters"] = meters_in(case, plain_output)
    row["exit"] = {"theirs": ended.code if ended else None, "ours": ours.code}
    if report is not None:
        row["said"] = said_by(report)
    if advice is not None and runs["changed"] and runs["plain"]:
        row["advice"] = advice | kept(advice, runs)
    row["why"] = why_wrong(case, row, truth, ended, ours)
    if row["why"]:
        row["tail"] = ours.output[-1500:]
        if (broke := OURS_BROKE.search(ours.output)) is not None:
            row["broke"] = ours.output[max(0, broke.start() - 1500) :][:3000]
    return row


def first_option(case: Case, report: dict[str, Any], prepared: Prepared) -> dict[str, Any] | None:
    """The first advice that the script's own options carry out, and what was promised of it."""
    for row in report["recommendations"]:
        args = args_with(case, row, prepared)
        if args is None:
            continue
        return {
            "args": args,
            "option": f"{row['setting']}={row['to']}",
            "told": bool(row.get("command")),
            "now_ms": row.get("own_step_ms") or (report["step"] or {}).get("wall_ms"),
            "promised_ms": row["measured_step_ms"] or row["predicted_step_ms"],
            "promised_ci_ms": row.get("measured_ci_ms"),
            "measured": row["measured_step_ms"] is not None,
        }
    return None


def args_with(case: Case, row: dict[str, Any], prepared: Prepared) -> list[str] | None:
    """The arguments that the report gives for an advice, or those of the option known here."""
    words = shlex.split(row.get("command") or "")
    at = [i for i, word in enumerate(words) if Path(word).name == Path(prepared.script).name]
    if at:
        return words[at[0] + 1 :]
    option = case.options.get(row["setting"])
    if option is None:
        return None
    return [*prepared.args, option, *([] if row["to"] is True else [str(row["to"])])]


def in_slot(
    slots: queue.Queue[list[int]], case: Case, data: Path, lock: threading.Lock,
    args: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """One case's row, by processes bound to a free slot's CPUs: children inherit this thread's."""
    cpus = slots.get()
    os.sched_setaffinity(threading.get_native_id(), cpus)
    try:
        with tempfile.TemporaryDirectory(prefix=f"public-{case.name}-") as folder:
            work = args.keep / case.name if args.keep else Path(folder)
            if args.keep:
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir(parents=True)
            made(case, data, args.device, lock)
            row: dict[str, Any] = row_of(case, args.clones.resolve(), data, work, args)
            return row
    except (OSError, subprocess.SubprocessError) as error:
        return {"name": case.name, "why": [f"not run: {str(error)[-200:]}"]}
    except (KeyError, TypeError, ValueError) as error:  # a report that is read wrong
        return {"name": case.name, "why": [f"not judged: {error!r}"]}
    finally:
        slots.put(cpus)


def stop(*_: object) -> None:
    end_all()
    os._exit(143)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clones", type=Path, nargs="?")
    parser.add_argument("--tables", type=Path, nargs="+", help="of such JSON files; run nothing")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cpus-each", type=int, help="all, with one job")
    parser.add_argument("--budget", type=float, default=60.0, help="of each diagnosis, seconds")
    parser.add_argument(
        "--seconds", type=float, default=9.0, help="of each run of the truth, as it is and ready"
    )
    parser.add_argument("--cycles", type=int, default=3, help="of both in turns, in each such run")
    parser.add_argument("--rounds", type=int, default=2, help="of such runs, before and after")
    parser.add_argument(
        "--truth-before", action="store_true", help="no truth after the diagnosis, to save time"
    )
    parser.add_argument("--advice", action="store_true", help="follow the first advice by hand")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path, help="a line for each script")
    parser.add_argument("--data", type=Path, help="keep made data here")
    parser.add_argument("--keep", type=Path, help="keep run folders and output here")
    args = parser.parse_args()
    if args.jobs > 1 and not args.cpus_each:
        parser.error("--jobs needs --cpus-each")
    if (args.clones is None) == (args.tables is None):
        parser.error("either CLONES or --tables")
    return args


def main() -> int:
    args = parse()
    if args.tables:
        rows = [json.loads(line) for file in args.tables for line in file.open()]
        print_tables([judged_anew(row) for row in rows])
        return 0
    names = args.only.split(",") if args.only else [case.name for case in CASES]
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        raise SystemExit(f"no script named {', '.join(sorted(unknown))}")
    cases, left_out = [], dict(EXCLUDED)
    for case in CASES:
        missing = [name for name in case.needs if importlib.util.find_spec(name) is None]
        if args.device not in case.on:
            left_out[case.name] = f"not on {args.device}"
        elif missing:
            left_out[case.name] = f"needs {', '.join(missing)}, not installed"
        elif case.name in names:
            cases.append(case)
    cpus = sorted(os.sched_getaffinity(0))
    each = args.cpus_each or len(cpus)
    slots: queue.Queue[list[int]] = queue.Queue()
    for i in range(args.jobs):
        slots.put(cpus[i * each : (i + 1) * each] or cpus)
    began, rows = time.monotonic(), []
    signal.signal(signal.SIGTERM, stop)
    with contextlib.ExitStack() as stack:
        data = args.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="public-")))
        data.mkdir(parents=True, exist_ok=True)
        pool = stack.enter_context(ThreadPoolExecutor(args.jobs))
        lock = threading.Lock()
        # The last ones start slowest (timm's import, its photos): they go first.
        todo = [
            pool.submit(in_slot, slots, case, data.resolve(), lock, args)
            for case in reversed(cases)
        ]
        for done in as_completed(todo):
            rows.append(done.result())
            print(
                f"{rows[-1]['name']}: {'; '.join(rows[-1]['why']) or undecided(rows[-1]) or 'ok'}",
                file=sys.stderr,
            )
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print_tables(rows)
    if not args.only:
        print()
        for name, why in left_out.items():
            print(f"- left out: `{name}`: {why}")
    load = os.getloadavg()[0]
    print(
        f"\n{n_right(rows)} of {len(rows)} right; {args.device}, {each} CPUs each, "
        f"load {load:.1f}, {time.monotonic() - began:.0f} s"
    )
    return 1 if any(row["why"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
