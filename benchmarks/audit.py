"""Are verdicts right? Loops of known truth drawn at random, each diagnosed as a user would.

    python benchmarks/audit.py audit          [--loops 40]  verdicts and shares beside the truth
    python benchmarks/audit.py false-alarms   [--loops 200] compute-bound loops: no false alarm

Every loop is a script in a temporary folder (`audit_loops`, `audit_scripts`). In an audit its
variants are timed in processes of their own (`audit_truth`), then `loaderdoctor diagnose
--no-verify` runs it, then the variants are timed again, so that what drifts is part of the noise.
Of the false alarms only what gave alarm is timed: an alarm that separate runs confirm is none.

Numbers are drawn as for a machine with a GPU (but with `--device cpu`). Of an audit the odd ones
are the GPU's. Of the false alarms, by what is left of the number divided by four: 0 cpu, quiet;
1 cpu, busy; 2 gpu, quiet; 3 gpu, busy. `--kind cpu` or `gpu` runs those alone.

`--jobs N --cpus-each K` runs N loops at once, each bound to K CPUs of its own, its neighbour to one
of them; on cores of their own where the machine tells which CPUs share one and has enough of them,
or with `--apart 2` on every second CPU. Of those on a GPU one at a time, or `--on-gpu N` as each
other's neighbours. More GPUs: a process for each (CUDA_VISIBLE_DEVICES, taskset). `--crowd N` puts
N processes that are always busy beside each loop, on any of its CPUs: more than there are, and a
thread that sleeps is late each time that it wakes up. `--lasts S` ends an audit's loops after S
seconds: a diagnosis starts such a script again.

One JSON line a loop goes to stderr, or `--json FILE`; a table to stdout; `audit_table.py` makes one
of the lines of several processes. The exit code is 0 where
39 of 40 verdicts are right and no high one is false, or where no alarm is false.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from audit_judge import (
    Said,
    alarm_of,
    does_not_confirm,
    false_own_work,
    right_bounds,
    said_by,
    too_noisy,
    why_of,
)
from audit_loops import AuditLoop, audited, compute_bound, told
from audit_scripts import Calibration, script_of
from audit_table import judged, print_table, truth_cells
from audit_truth import calibrate, measured_truth, truth_of

GRACE_S = 90.0  # beyond its budget, for start-up and passes that train nothing
BURN = "while True: pass"


def main() -> int:
    args = parse()
    cpus = apart(sorted(os.sched_getaffinity(0)), args)
    each = args.cpus_each or len(cpus)
    if args.jobs * each > len(cpus):
        raise SystemExit(f"{args.jobs} jobs of {each} CPUs: there are {len(cpus)}")
    slots: queue.Queue[list[int]] = queue.Queue()
    for i in range(args.jobs):
        slots.put(cpus[i * each : (i + 1) * each])
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONPATH=search_path())
    calibration = calibrate()
    device = args.device or "cuda"
    draw = audited if args.command == "audit" else compute_bound
    numbers = args.only or range(args.loops)
    kinds = {"cpu": ("cpu",), "gpu": ("cuda",)}.get(args.kind, ("cpu", "cuda"))
    loops = [draw(args.seed, i, device=device, cpus=each) for i in numbers]
    loops = [loop for loop in loops if loop.device in kinds]
    if calibration.gpu_ms is None and any(loop.device == "cuda" for loop in loops):
        raise SystemExit(
            "there is no GPU: --kind cpu leaves its loops out, --device cpu draws none"
        )
    if args.waiting:
        loops = [loop.only_waiting() for loop in loops]
    run = audit_row if args.command == "audit" else alarm_row
    began, rows = time.monotonic(), []
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(args.json.open("w")) if args.json else sys.stderr
        # Processes that share a GPU take turns on it, for milliseconds each: one at a time, unless
        # such neighbours are asked for.
        on_gpu = args.on_gpu if any(loop.device == "cuda" for loop in loops) else 0
        pools = {
            "cpu": stack.enter_context(ThreadPoolExecutor(max(1, args.jobs - on_gpu))),
            "cuda": stack.enter_context(ThreadPoolExecutor(max(1, on_gpu))),
        }
        todo = [
            pools[loop.device].submit(in_slot, slots, run, loop, calibration, args)
            for loop in loops
        ]
        for done in as_completed(todo):
            rows.append(done.result())
            print(json.dumps(rows[-1]), file=out, flush=True)
    rows.sort(key=lambda row: row["loop"])
    print_table(rows, sys.stdout)
    used = f"{args.jobs} at once on {each} CPUs each" if args.jobs > 1 else f"{each} CPUs"
    took_s = time.monotonic() - began
    print(f"\n{machine(device, calibration)}; {used}; {took_s:.0f} s; seed {args.seed}")
    return judged(args.command, rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["audit", "false-alarms"])
    parser.add_argument("--loops", "--first", type=int, help="how many, from the first")
    parser.add_argument("--only", type=numbers_of, help="numbers of loops: 3,7,10-19")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--budget", type=float, help="of each diagnosis, seconds: 20, or 15")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cpus-each", type=int, help="all, with one job")
    parser.add_argument("--on-gpu", type=int, default=1, help="of the jobs, at once on the GPU")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="to draw for; else cuda")
    parser.add_argument("--kind", choices=["cpu", "gpu"], help="only these of the loops drawn")
    parser.add_argument("--crowd", type=int, default=0, help="busy processes beside each loop")
    parser.add_argument("--apart", type=int, default=1, help="use every so-manyth CPU")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of the truth; half of them after the diagnosis"
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="of each of its runs")
    parser.add_argument("--json", type=Path, help="a line for each loop")
    parser.add_argument(
        "--waiting", action="store_true", help="no loop needs the CPU: for a busy machine"
    )
    parser.add_argument("--lasts", type=float, help="of an audit's loops, seconds; endless")
    parser.add_argument("--keep", type=Path, help="keep scripts and run folders here")
    args = parser.parse_args()
    usual = (40, 20.0) if args.command == "audit" else (200, 15.0)
    args.loops, args.budget = args.loops or usual[0], args.budget or usual[1]
    if args.jobs > 1 and not args.cpus_each:
        parser.error("--jobs needs --cpus-each")
    return args


def numbers_of(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def search_path() -> str:
    package = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))


def in_slot(
    slots: queue.Queue[list[int]],
    run: Callable[[AuditLoop, Calibration, Path, argparse.Namespace], dict[str, Any]],
    loop: AuditLoop,
    calibration: Calibration,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """One loop's row, by processes bound to a free slot's CPUs: children inherit this thread's."""
    cpus = slots.get()
    os.sched_setaffinity(threading.get_native_id(), cpus)
    row = {"loop": loop.name, "told": told(loop), "params": loop.as_dict()}
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="audit-")))
            if args.keep:
                folder = args.keep / loop.name
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            if loop.busy:
                stack.enter_context(neighbour(cpus[-1:]))
            for _ in range(args.crowd):
                stack.enter_context(neighbour(cpus))
            return row | run(loop, calibration, folder, args)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return row | {"ok": False, "why": [f"failed: {str(error).strip()[-300:]}"]}
    finally:
        slots.put(cpus)


def apart(cpus: list[int], args: argparse.Namespace) -> list[int]:
    """Those to use: one of each core, if there are enough; every `--apart`th."""
    wanted = args.jobs * (args.cpus_each or len(cpus))
    cores = {siblings(cpu) & set(cpus) for cpu in cpus}
    firsts = sorted(min(core) for core in cores)
    if len(firsts) >= wanted:
        cpus = firsts
    return cpus[:: args.apart] if len(cpus) >= wanted * args.apart else cpus


def siblings(cpu: int) -> frozenset[int]:
    """CPUs of the same core, itself among them; itself alone where the machine does not tell."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return frozenset(numbers_of(path.read_text().strip()))
    except (OSError, ValueError):
        return frozenset((cpu,))


@contextlib.contextmanager
def neighbour(cpus: list[int]) -> Iterator[None]:
    """Another process, which always wants one of those CPUs."""
    process = subprocess.Popen([sys.executable, "-c", BURN])
    os.sched_setaffinity(process.pid, cpus)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def audit_row(
    loop: AuditLoop, calibration: Calibration, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    def runs(rounds: int) -> dict[str, list[float]]:
        return measured_truth(loop, calibration, folder, rounds=rounds, seconds=args.seconds)

    n_after = max(1, args.rounds // 2)
    before = runs(max(1, args.rounds - n_after))
    script = script_of(loop, calibration, lasts_s=args.lasts)
    report, took_s = diagnose(loop, script, folder, args.budget)
    after = runs(n_after)
    truth = truth_of(loop, {name: ms + after[name] for name, ms in before.items()})
    said = said_by(report)
    wrong = why_of(loop, truth, said)
    times = {"before_ms": before, "after_ms": after}
    return row_of(said, took_s) | truth_cells(truth) | {"ok": not wrong, "why": wrong} | times


def alarm_row(
    loop: AuditLoop, calibration: Calibration, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    script = script_of(loop, calibration, lasts_s=args.budget + 5)
    report, took_s = diagnose(loop, script, folder, args.budget)
    said = said_by(report)
    row = row_of(said, took_s)
    if not alarm_of(said):
        why = false_own_work(loop, said)
        return row | {"ok": not why, "why": why}
    runs = measured_truth(loop, calibration, folder, rounds=3, seconds=args.seconds)
    truth = truth_of(loop, runs)
    why = too_noisy(truth)
    if not why and said.bound not in right_bounds(truth):
        why = "false alarm"
    why = why or does_not_confirm(truth, said)
    return row | truth_cells(truth) | {"ok": not why, "why": [why or "its truth says so too"]}


def diagnose(
    loop: AuditLoop, script: str, folder: Path, budget_s: float
) -> tuple[dict[str, Any], float]:
    """The report of a run of its script, and the seconds that it took; raises RuntimeError."""
    path, target = folder / f"{loop.name}.py", folder / "report.json"
    path.write_text(script)
    command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--no-verify"]
    command += ["--budget", str(budget_s), "--json", str(target), "--output", str(folder / "run")]
    began = time.monotonic()
    with (folder / "said.txt").open("w") as out:
        process = subprocess.Popen(
            [*command, path.name], cwd=folder, stdout=out, stderr=out, start_new_session=True
        )
        try:
            process.wait(budget_s + GRACE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # it ends what it started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if not target.exists():
        raise RuntimeError(f"no report\n{(folder / 'said.txt').read_text()}")
    report: dict[str, Any] = json.loads(target.read_text())
    return report, time.monotonic() - began


def row_of(said: Said, took_s: float) -> dict[str, Any]:
    return {"said": asdict(said), "took_s": round(took_s, 1)}


def machine(device: str, calibration: Calibration) -> str:
    import torch

    has_gpu = device == "cuda" and calibration.gpu_ms is not None
    name = torch.cuda.get_device_name() if has_gpu else "CPU only"
    load = os.getloadavg()[0]
    cpus = len(os.sched_getaffinity(0))
    return f"{name}, {cpus} CPUs (load {load:.1f}), torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
