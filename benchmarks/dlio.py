"""Our input share beside the accelerator utilisation of MLPerf Storage's dlio-benchmark.

    python benchmarks/dlio.py [--dlio FOLDER] [--only NAME,…] [--budget 40] [--data FOLDER]
                              [--cpus-each K] [--seconds 20] [--json FILE]
    python benchmarks/dlio.py --tables FILE…

DLIO's computing is a sleep of known length, and it prints the share of its time that it slept:
accelerator utilisation (AU), of each epoch but its first step. What is left waits for batches, but
for DLIO's own logging and checks, and for a sleep that ends late: AU counts the length it was asked
for. Both are told by DLIO as well, which notes when each batch was there: its own share of waiting.
For each workload: DLIO alone, `loaderdoctor diagnose` of the same command, DLIO alone again. A row
agrees where one less our input share is within 5 points of AU, or within the noise of both; beside
it stands whether our input share agrees so with DLIO's own waiting. The noise is how far the
interval that the report claims for its input share reaches towards DLIO's figure, and of DLIO's
two runs half of what they differ by, or twice the standard error by their epochs where that is
more: the root of the sum of squares. Where that is above 15 points a row decides nothing and is
not counted as within.
However wide our interval is, a verdict that DLIO's figure does not allow by its own noise is wrong.

The workloads are those that DLIO ships (MLPerf Storage's), with its PyTorch loader, and with files
and steps scaled down to fit (`dlio_workloads.py`). With --cpus-each each has CPUs of its own, K or
one more than it has workers if that is less, and as many run at once as there is room for, the
longest first; a row is printed, and written, when it is done. --tables prints stored rows.
--dlio is an unpacked `dlio-benchmark` where it is not installed. What it imports and a single
process with PyTorch does not need is stood in for where it does not import (`standins/`):
TensorFlow, the tracer, an MPI library. The wheels of dlio-benchmark 2.0.0, hydra-core, omegaconf
and antlr4-python3-runtime 4.9.3 without their dependencies are enough, beside h5py and pandas.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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

from claimed import POINTS, bound_share, claimed_input, together, verdict_wrong
from dlio_workloads import WORKLOADS, Workload

MODULE = "dlio_benchmark.main"
STANDINS = Path(__file__).with_name("standins")
NEEDED = {
    "tensorflow": "import tensorflow",
    "dftracer": "from dftracer.logger import dft_fn",
    "mpi4py": "from mpi4py import MPI",
}
DECIDES = 0.15  # beyond so much noise of both a row that agrees says nothing
WARM_EPOCHS = 1  # start of workers, first reads
MIN_EPOCHS, MAX_EPOCHS = 4, 12
LIMIT_S = 300.0
WAITING = "_with_waiting"
HEAD = (
    "| workload | AU % | with first steps | 1 − its waiting % | 1 − our input % | its interval "
    "| noise: AU / waiting | said | within: AU / waiting |\n"
    "|---|---:|---:|---:|---:|---:|---:|---|---|"
)


def imports(statement: str) -> bool:
    """Whether it does so here: in a process of its own, since it may load libraries."""
    return not subprocess.run([sys.executable, "-c", statement], capture_output=True).returncode


class Dlio:
    """DLIO as it is found: how to call it for a workload whose files lie in `data`."""

    def __init__(self, source: Path | None, data: Path, work: Path) -> None:
        self.data, self.work = data, work
        paths = [str(Path(__file__).parents[1])]
        if source is not None:
            paths.append(str(source.resolve()))
        paths += [str(STANDINS / name) for name in NEEDED if not imports(NEEDED[name])]
        paths.append(os.environ.get("PYTHONPATH", ""))
        self.env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def arguments(self, workload: Workload, output: Path, more: dict[str, Any]) -> list[str]:
        values = workload.overrides(self.data / workload.name)
        values |= {"output.folder": output, "workflow.generate_data": False} | more
        args = [f"workload={workload.base}", f"hydra.run.dir={output}"]
        return args + [f"++workload.{name}={value}" for name, value in values.items()]

    def run(self, workload: Workload, what: str, more: dict[str, Any]) -> Path:
        """DLIO alone, to its end; its output folder. Raises RuntimeError."""
        output = self.work / f"{workload.name}-{what}"
        command = [sys.executable, "-m", MODULE, *self.arguments(workload, output, more)]
        done = subprocess.run(
            command, cwd=self.work, env=self.env, capture_output=True, text=True, timeout=LIMIT_S
        )
        if done.returncode:
            raise RuntimeError(
                f"{workload.name}: DLIO fails\n{(done.stdout + done.stderr)[-1500:]}"
            )
        return output

    def generate(self, workload: Workload) -> None:
        if not (self.data / workload.name).exists():
            self.run(workload, "made", {"workflow.generate_data": True, "workflow.train": False})

    def diagnose(self, workload: Workload, budget_s: float) -> tuple[dict[str, Any], str]:
        target = self.work / f"{workload.name}.json"
        command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", str(budget_s)]
        command += ["--json", str(target), "--output", str(self.work / f"{workload.name}-run")]
        command += ["--no-verify"]  # other settings are not what is compared
        epochs = {"train.epochs": 1000}
        command += ["-m", MODULE, *self.arguments(workload, self.work / "said", epochs)]
        done = subprocess.run(
            command, cwd=self.work, env=self.env, capture_output=True, text=True, timeout=LIMIT_S
        )
        if not target.exists():
            raise RuntimeError(f"{workload.name}: no report\n{(done.stdout + done.stderr)[-1500:]}")
        report: dict[str, Any] = json.loads(target.read_text())
        return report, done.stdout


def utilisations(output: Path) -> tuple[list[float], list[float], list[float]]:
    """Of each epoch but the first: AU as DLIO has it, with each epoch's first step, and waiting.

    Waiting is for batches, of the time of all steps, as DLIO timed it.
    """
    found = json.loads((output / "0_output.json").read_text())
    epochs = [found[key] for key in sorted((k for k in found if k.isdigit()), key=int)]
    own, whole, waiting = [], [], []
    for epoch in epochs[WARM_EPOCHS:]:
        own.append(epoch["au"]["block1"] / 100)
        whole.append(sum(epoch["compute"]["block1"]) / sum(epoch["proc"]["block1"]))
        waiting.append(sum(epoch["load"]["block1"]) / sum(epoch["proc"]["block1"]))
    return own, whole, waiting


def mean_and_noise(runs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean of several runs' means, of which some have more epochs, and its noise.

    That is half of the runs' range, which of two is the standard error: twice it would let a row
    agree that lies as far from both runs as these from each other.
    """
    means = [statistics.mean(run) for run in runs]
    of_epochs = sum(_standard_error(run) ** 2 for run in runs) ** 0.5 / len(runs)
    return statistics.mean(means), max((max(means) - min(means)) / 2, 2 * of_epochs)


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def seconds_of(output: Path) -> float:
    """One epoch of that run, the mean of those after the first."""
    found = json.loads((output / "0_output.json").read_text())
    epochs = [found[key]["proc"]["block1"] for key in sorted(k for k in found if k.isdigit())]
    return statistics.mean([float(sum(steps)) for steps in epochs[WARM_EPOCHS:]])


def row_of(
    dlio: Dlio, workload: Workload, *, budget_s: float, seconds: float, n_epochs: int | None
) -> dict[str, Any]:
    began = time.monotonic()
    dlio.generate(workload)
    made_s = time.monotonic() - began
    n_epochs = n_epochs or MIN_EPOCHS
    first = dlio.run(workload, "before", {"train.epochs": n_epochs})
    before = utilisations(first)
    alone_s = time.monotonic() - began - made_s
    report, said = dlio.diagnose(workload, budget_s)
    wanted = WARM_EPOCHS + round(seconds / seconds_of(first))
    epochs = {"train.epochs": min(MAX_EPOCHS, max(n_epochs, wanted))}
    after = utilisations(dlio.run(workload, "after", epochs))
    (own, _), (whole, whole_noise), (waited, waited_noise) = (
        mean_and_noise([before[i], after[i]]) for i in range(3)
    )
    ours = claimed_input(report)
    row: dict[str, Any] = {
        "name": workload.name,
        "told": workload.told,
        "au": own,
        "au_whole": whole,
        "waited": waited,
        "epochs": {
            name: [[round(x, 4) for x in run[i]] for run in (before, after)]
            for i, name in enumerate(("au", "au_whole", "waited"))
        },
        "input": asdict(ours) if ours is not None else None,
        "ablation": report["ablation"],
        "step": report["step"],
        "verdict": f"{report['verdict']['bound']} {report['verdict']['severity']}",
        "summary": report["verdict"]["summary"],
        "findings": [f["kind"] for f in report["findings"]],
        "said": said,
        "took_s": {"made": made_s, "alone": alone_s, "all": time.monotonic() - began},
        "agrees": False,
        "agrees_with_waiting": False,
    }
    if ours is None:
        return row
    said_of_it = report["verdict"] | {"bound_share": bound_share(report), "claim": row["input"]}

    def denied(share: float, noise: float) -> bool:
        # DLIO calls no model: that no training was seen is right, and says nothing of the share.
        return said_of_it["bound"] != "unknown" and bool(verdict_wrong(said_of_it, share, noise))

    noise = together(ours.reaches(1 - whole), whole_noise)
    waiting_noise = together(ours.reaches(waited), waited_noise)
    return row | {
        "own_noise": whole_noise,
        "noise": noise,
        "waiting_noise": waiting_noise,
        "agrees": abs(ours.share - (1 - whole)) <= max(POINTS, noise)
        and not denied(1 - whole, whole_noise),
        "agrees_with_waiting": abs(ours.share - waited) <= max(POINTS, waiting_noise)
        and not denied(waited, waited_noise),
        "decides": noise <= DECIDES,
        "decides_of_waiting": waiting_noise <= DECIDES,
    }


def within(row: dict[str, Any], of: str = "") -> str:
    """Whether a row agrees, with AU or `_with_waiting`; what decides nothing is no yes."""
    if not row.get(f"agrees{of}", False):
        return "**no**"
    return "yes" if row["decides_of_waiting" if of else "decides"] else "decides nothing"


def line(row: dict[str, Any]) -> str:
    if "au" not in row:
        return f"| `{row['name']}` | {row['error'].splitlines()[-1][:120]} | | | | | | | **no** |"
    ours, noise = row["input"], row.get("noise")
    cells = [
        f"`{row['name']}`",
        f"{100 * row['au']:.1f}",
        f"{100 * row['au_whole']:.1f}",
        f"{100 * (1 - row['waited']):.1f}",
        "–" if ours is None else f"{100 * (1 - ours['share']):.1f}",
        "–" if ours is None else f"{100 * (1 - ours['high']):.1f} to {100 * (1 - ours['low']):.1f}",
        "–" if noise is None else f"{100 * noise:.1f} / {100 * row['waiting_noise']:.1f}",
        ", ".join(row["findings"]) or "–",
        f"{within(row)} / {within(row, WAITING)}",
    ]
    return "| " + " | ".join(cells) + " |"


class Cpus:
    """All CPUs there are, of which each workload takes some for as long as it runs."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._free = list(cpus)
        self._changed = threading.Condition()

    def take(self, n_cpus: int) -> list[int]:
        """So many, once they are free; whoever asked first may be overtaken by who needs less."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= n_cpus)
            taken, self._free = self._free[:n_cpus], self._free[n_cpus:]
            return taken

    def give_back(self, cpus: Sequence[int]) -> None:
        with self._changed:
            self._free += cpus
            self._changed.notify_all()


def done_on(
    cpus: Cpus, n_cpus: int, dlio: Dlio, workload: Workload, args: argparse.Namespace
) -> dict[str, Any]:
    """One workload's row, by processes bound to CPUs of its own: children inherit them."""
    taken = cpus.take(n_cpus)
    os.sched_setaffinity(threading.get_native_id(), taken)
    try:
        return row_of(
            dlio, workload, budget_s=args.budget, seconds=args.seconds, n_epochs=args.epochs
        ) | {"n_cpus": n_cpus}
    except (RuntimeError, OSError, KeyError, subprocess.TimeoutExpired) as error:
        return {"name": workload.name, "error": str(error), "agrees": False}
    finally:
        shutil.rmtree(dlio.data / workload.name, ignore_errors=True)
        cpus.give_back(taken)


def n_cpus_of(workload: Workload, at_most: int) -> int:
    """What its workers and the loop's own process need, two at least."""
    return min(at_most, max(2, workload.n_workers + 1))


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the workloads are listed."""
    names = [workload.name for workload in WORKLOADS]
    return sorted(rows, key=lambda row: names.index(row["name"]))


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Markdown, and how many decide something and agree."""
    print(HEAD)
    for row in in_order(rows):
        print(line(row))
    for of, what in (("", "utilisation"), (WAITING, "own waiting")):
        said = [within(row, of) for row in rows]
        n_open = said.count("decides nothing")
        print(
            f"\n{said.count('yes')} of {len(rows) - n_open} that decide something are within 5 "
            f"points of DLIO's {what}, or the noise; {n_open} decide nothing"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dlio", type=Path, help="an unpacked dlio-benchmark")
    parser.add_argument("--only", default=",".join(w.name for w in WORKLOADS))
    parser.add_argument("--cpus-each", type=int, help="all, one workload at a time, if not given")
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--epochs", type=int, help="of DLIO's first run alone, its first counted")
    parser.add_argument("--seconds", type=float, default=20.0, help="of its second run, about")
    parser.add_argument("--data", type=Path, help="where its files go; a RAM disk, for example")
    parser.add_argument("--json", type=Path, help="a line for each workload")
    parser.add_argument("--tables", type=Path, nargs="+", help="of such JSON files; run nothing")
    args = parser.parse_args()
    if args.tables:
        print_table([json.loads(line) for file in args.tables for line in file.open()])
        return 0
    names = args.only.split(",")
    unknown = set(names) - {w.name for w in WORKLOADS}
    if unknown:
        parser.error(f"no workload named {', '.join(sorted(unknown))}")
    usable = sorted(os.sched_getaffinity(0))
    each = min(len(usable), args.cpus_each or len(usable))
    cpus = Cpus(usable)
    n_cpus = {
        workload.name: n_cpus_of(workload, each) if args.cpus_each else each
        for workload in WORKLOADS
    }
    chosen = sorted(
        (workload for workload in WORKLOADS if workload.name in names),
        key=lambda workload: -workload.epoch_s,
    )
    rows = []
    print(HEAD)
    with tempfile.TemporaryDirectory(prefix="dlio-") as folder:
        data = Path(tempfile.mkdtemp(prefix="dlio-", dir=args.data))
        try:
            dlio = Dlio(args.dlio, data, Path(folder))
            with ThreadPoolExecutor(len(chosen)) as pool:
                todo = [
                    pool.submit(done_on, cpus, n_cpus[workload.name], dlio, workload, args)
                    for workload in chosen
                ]
                for done in as_completed(todo):
                    rows.append(done.result())
                    print(line(rows[-1]), flush=True)
                    if args.json:
                        with args.json.open("a") as file:
                            file.write(json.dumps(rows[-1]) + "\n")
        finally:
            shutil.rmtree(data, ignore_errors=True)
    print()
    print_table(rows)
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
