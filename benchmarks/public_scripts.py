"""Public training scripts, unmodified, diagnosed beside what separate runs say of them.

    python benchmarks/public_scripts.py CLONES [--only NAME,…] [--jobs N --cpus-each K]
                                        [--budget 30] [--json FILE] [--device cpu|cuda] [--advice]

CLONES holds clones of pytorch/examples, pytorch/vision and huggingface/pytorch-image-models under
the names of public_cases.py (`examples`, `vision`, `pytorch-image-models`); nothing is fetched, and
the clones are not written to. Data are made in a temporary folder (public_data.py).

For each script: a run as it is, with ready batches and as it is again (public_truth.py, no
loaderdoctor in it), `loaderdoctor diagnose`, and that run again. A row is right where the script
did not break that works alone, the verdict's bound and severity are ones that the truth allows by
its own noise, and the input share lies within 5 points of the truth or within the noise of both:
the truth's, and how far the interval that the report claims for its share reaches towards it. Where
both together are above 15 points, a row in which nothing is wrong decides nothing and is not
counted as right. The scripts' own meters, where they have any, are those of the runs as they are.
--tables judges stored rows anew. With --advice the first advice
that an option of the script carries out is followed: the script runs with it, beside itself.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import queue
import re
import shlex
import shutil
import signal
import statistics
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

from claimed import POINTS, Claim, bound_share, claimed_input, verdict_wrong
from public_cases import CASES, EXCLUDED, Case
from public_data import MAKERS
from public_truth import (
    START_LIMIT_S,
    Ended,
    InputTruth,
    Timing,
    end,
    end_all,
    started,
    timed_run,
    truth_of,
)

DECIDES = 0.15  # beyond so much noise of both a share that agrees says nothing
KEPT = 0.15  # a promise is kept where the change gives what was said within this
# The run with the change takes so many times as long: batches made ahead of its first step are then
# a tenth of all (24 of 240 of imagenet's with twelve workers).
CHANGED = 4
KEPT_WORDS = {True: "yes", False: "**no**", None: "too short to tell"}
# That a step may be off by the script's own meter. Chosen, not derived: a meter counts the time
# between two lines over the steps between them, with whatever else is done; and the runs are two.
METER = 0.25
GRACE_S = 240.0  # a diagnosis beyond its budget, twice: imports, data, the second cap
OWN_LOOP_S = 20.0  # a script without a loader runs alone for so long, to see whether it runs
OF_TRUTH = re.compile(r"false \w+$|bound: input, not |no verdict$|input [+-]\d+ points$")
OURS_BROKE = re.compile(r"defect of loaderdoctor|File \".*/loaderdoctor/", re.IGNORECASE)


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
    return row


def said_by(report: dict[str, Any]) -> dict[str, Any]:
    ablation = report["ablation"] or {}
    seen = ablation.get("seen_ms") or {}
    claim = claimed_input(report)
    wall_ms = (report["step"] or {}).get("wall_ms")
    return {
        "bound": report["verdict"]["bound"],
        "severity": report["verdict"]["severity"],
        "summary": report["verdict"]["summary"],
        "step_ms": wall_ms,
        "bound_share": bound_share(report),
        "input": (report["shares"] or {}).get("input"),
        "claim": asdict(claim) if claim is not None else None,
        "n_rounds": ablation.get("n_rounds"),
        "wait_ms": (seen.get("wait") or [None])[0],
        "findings": [f"{f['kind']} {f['severity']}" for f in report["findings"]],
        "warnings": [w["kind"] for w in report["warnings"]],
        "advice": [r["summary"] for r in report["recommendations"]][:3],
        "promises": [
            {k: r.get(k) for k in ("setting", "to", "measured_step_ms", "predicted_step_ms")}
            for r in report["recommendations"]
        ],
    }


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


def kept(advice: dict[str, Any], runs: dict[str, list[Timing]]) -> dict[str, Any]:
    """What following it gave, and whether that is what was promised; None: too short to tell.

    What it gave lies between `by_hand_ms` and `by_hand_most_ms`: batches made ahead of the run.
    """
    before = statistics.mean(one.step_ms for one in runs["plain"])
    after = statistics.mean(one.step_ms for one in runs["changed"])
    most = statistics.mean(one.most_ms for one in runs["changed"])
    promised = advice["promised_ms"] or math.inf
    ok = after * (1 - KEPT) <= promised <= most * (1 + KEPT)
    known = not ok or most <= after * (1 + KEPT)
    return {
        "by_hand_before_ms": before,
        "by_hand_ms": after,
        "by_hand_most_ms": most,
        "kept": ok if known else None,
    }


def meters_in(case: Case, output: str) -> dict[str, float] | None:
    """What the script printed of itself: the mean of its steps but the first few, ms."""
    if case.meters is None:
        return None
    found = {}
    for name, pattern in (("step_ms", case.meters.step), ("wait_ms", case.meters.wait)):
        if pattern is None:
            continue
        values = [float(value) for value in re.findall(pattern, output)]
        if len(values) < 3:
            return None
        each = statistics.mean(values[min(5, len(values) // 2) :])
        found[name] = 1e3 * case.meters.unit_s * each
    return found


def why_wrong(
    case: Case, row: dict[str, Any], truth: InputTruth | None, theirs: Ended | None, ours: Ended
) -> list[str]:
    """What is not right; nothing: all is."""
    wrong = []
    if theirs is not None and theirs.code not in (None, 0):
        return [f"the script itself fails here: {last_line(theirs.output)}"]
    if OURS_BROKE.search(ours.output):
        wrong.append("a defect of loaderdoctor is told")
    if case.refuses and ours.code == 1 and "said" not in row:
        if case.refuses not in last_line(ours.output):
            wrong.append(f"not told why: {last_line(ours.output)}")
        return wrong
    if ours.code != 0 or "said" not in row:
        wrong.append(f"exit code {ours.code}: {last_line(ours.output)}")
    if "said" not in row:
        return wrong
    said = row["said"]
    if case.own_loop:
        if said["bound"] in ("input", "copy"):
            wrong.append("called input- or copy-bound, but its batches come from no loader")
        theirs_ms = (row.get("meters") or {}).get("step_ms")
        if theirs_ms is None:
            if case.meters is not None:
                wrong.append("no truth: its own meter printed nothing")
        elif abs(said["step_ms"] / theirs_ms - 1) > METER:
            wrong.append(f"step {said['step_ms']:.1f} ms, by its own meter {theirs_ms:.1f}")
        return wrong
    if truth is None:
        return [*wrong, "no truth: no loop was seen"]
    return wrong + against(said, truth.share, truth.noise)


def against(said: dict[str, Any], share: float, noise: float) -> list[str]:
    """What of the verdict a truth with this noise does not allow, and how far the share is off."""
    wrong = verdict_wrong(said, share, noise)
    off = off_by(said, share, noise_of(said, share, noise))
    return wrong if off is None else [*wrong, off]


def off_by(said: dict[str, Any], share: float, noise: float) -> str | None:
    off = (said["input"] or 0.0) - share
    return f"input {100 * off:+.0f} points" if abs(off) > max(POINTS, noise) else None


def judged_anew(row: dict[str, Any]) -> dict[str, Any]:
    """A stored row as it is judged now, beside the same truth."""
    own_loop = any(case.own_loop for case in CASES if case.name == row["name"])
    if not judged(row) or own_loop or (row.get("exit") or {}).get("theirs"):
        return row
    kept_reasons = [why for why in row["why"] if not OF_TRUTH.match(why)]
    truth = row["truth"]
    return row | {"why": kept_reasons + against(row["said"], truth["share"], truth["noise"])}


def noise_of(said: dict[str, Any], share: float, noise: float) -> float:
    """Of both: the truth's, and how far what is claimed reaches towards it."""
    claim = said.get("claim")
    return noise + (Claim(**claim).reaches(share) if claim else 0.0)


def undecided(row: dict[str, Any]) -> str | None:
    """Why a row with nothing wrong in it is not right either; None: it is, or something is wrong.

    By so wide a claim of ours any share agrees: how far it is off a sharp truth alone is told.
    """
    if row["why"] or not judged(row):
        return None
    said, share, noise = row["said"], row["truth"]["share"], row["truth"]["noise"]
    if noise_of(said, share, noise) <= DECIDES:
        return None
    alone = off_by(said, share, noise) if noise <= DECIDES else None
    return "decides nothing" + (f" (by the truth alone: {alone})" if alone else "")


def last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "")[:200]


HEADS = (
    "script", "ms a step: truth / said", "input %: truth", "said [claimed]",
    "wait, ms: its meters / stopwatch / said", "verdict", "findings", "",
)  # fmt: skip


def cells_of(row: dict[str, Any]) -> list[str]:
    def number(value: float | None, scale: float = 1.0) -> str:
        return "–" if value is None else f"{scale * value:.1f}"

    truth, said, meters = row.get("truth") or {}, row.get("said") or {}, row.get("meters") or {}
    plain = (row.get("runs") or {}).get("plain") or []
    step_ms = truth.get("step_ms") or (plain[0]["step_ms"] if plain else meters.get("step_ms"))
    verdict = f"{said['bound']} {said['severity']}" if said else "–"
    why = "; ".join(row["why"])
    claim = said.get("claim") or {}
    between = f" [{100 * claim['low']:.1f}, {100 * claim['high']:.1f}]" if claim else ""
    return [
        f"`{row['name']}`",
        f"{number(step_ms)} / {number(said.get('step_ms'))}",
        f"{number(truth.get('share'), 100)} ± {number(truth.get('noise'), 100)}",
        f"{number(said.get('input'), 100)}{between}",
        " / ".join(number(of.get("wait_ms")) for of in (meters, truth, said)),
        verdict,
        ", ".join(kind.split()[0] for kind in said.get("findings", ())) or "–",
        f"**{why}**" if why else undecided(row) or "ok",
    ]


def judged(row: dict[str, Any]) -> bool:
    """Whether its input share is compared with a truth."""
    return (row.get("truth") or {}).get("share") is not None and "said" in row


def n_right(rows: Sequence[dict[str, Any]]) -> int:
    return sum(not row["why"] and undecided(row) is None for row in rows)


def print_tables(rows: list[dict[str, Any]]) -> None:
    """Markdown, in the order of the cases."""
    order = [case.name for case in CASES]
    rows = sorted(rows, key=lambda row: order.index(row["name"]))
    print("| " + " | ".join(HEADS) + " |")
    print("|---|---:|---:|---:|---:|---|---|---|")
    for row in rows:
        print("| " + " | ".join(cells_of(row)) + " |")
    n_judged, n_open = sum(map(judged, rows)), sum(undecided(row) is not None for row in rows)
    print(
        f"\n{len(rows)} scripts: {n_right(rows)} right, {n_open} decide nothing, "
        f"{sum(bool(row['why']) for row in rows)} wrong; {n_judged} are judged beside a truth."
    )
    advised = [row for row in rows if row.get("advice")]
    if advised:
        print("\n| script | option | said: now → promised, ms | by hand, ms | kept |")
        print("|---|---|---:|---:|---|")
    for row in advised:
        of = row["advice"]
        how = "measured" if of["measured"] else "at best"
        print(
            f"| `{row['name']}` | {of['option']} | {of['now_ms']:.1f} → "
            f"{of['promised_ms'] or 0:.1f} ({how}) | "
            f"{of['by_hand_before_ms']:.1f} → {of['by_hand_ms']:.1f} to "
            f"{of['by_hand_most_ms']:.1f} | "
            f"{KEPT_WORDS[of['kept']]} |"
        )


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
    parser.add_argument("--budget", type=float, default=30.0, help="of each diagnosis, seconds")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run of the truth")
    parser.add_argument("--rounds", type=int, default=1, help="of the truth, before and after")
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
