"""Our input share beside the accelerator utilisation of MLPerf Storage's dlio-benchmark.

    python benchmarks/dlio.py [--dlio FOLDER] [--only NAME,…] [--budget 30] [--data FOLDER]
                              [--json FILE]

DLIO's computing is a sleep of known length, and it prints the share of its time that it slept:
accelerator utilisation (AU), of each epoch but its first step. What is left waits for batches, but
for a millisecond a step of logging and checks. For each workload: DLIO alone, `loaderdoctor
diagnose` of the same command, DLIO alone again. A row agrees where one less our input share is
within 5 points of AU, or within the noise of both.

The workloads are those that DLIO ships (MLPerf Storage's), with its PyTorch loader, and with files
and steps scaled down to fit, as the table says. --dlio is an unpacked `dlio-benchmark` where it is
not installed. Its profiler imports TensorFlow even where PyTorch runs: where there is none, an
empty module stands in.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POINTS = 0.05
MODULE = "dlio_benchmark.main"
WARM_EPOCHS = 1  # start of workers, first reads
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One of DLIO's, scaled. `told` says what it is like."""

    name: str
    base: str  # DLIO's own configuration
    told: str
    n_files: int
    samples_per_file: int = 1
    record_bytes: int
    batch_size: int
    compute_s: float
    n_workers: int
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def n_steps(self) -> int:
        return self.n_files * self.samples_per_file // self.batch_size

    def overrides(self, data: Path) -> dict[str, Any]:
        return {
            "framework": "pytorch",
            "dataset.data_folder": data,
            "dataset.num_files_train": self.n_files,
            "dataset.num_samples_per_file": self.samples_per_file,
            "dataset.record_length": self.record_bytes,
            "dataset.record_length_stdev": 0,
            "dataset.num_files_eval": 0,
            "dataset.generation_buffer_size": 10_000_000,  # of random bytes for each file
            "reader.data_loader": "pytorch",
            "reader.batch_size": self.batch_size,
            "reader.read_threads": self.n_workers,
            "train.computation_time": self.compute_s,
            "workflow.checkpoint": False,
            "checkpoint.model_size": 1_000_000,  # made up at every start, written or not
            "workflow.evaluation": False,
        } | self.extra


HDF5 = {"dataset.format": "hdf5"}
NPZ = {"dataset.format": "npz"}
JPEG = {"dataset.format": "jpeg"}
RESIZED = "dataset.record_length_resize"
WORKLOADS = (
    Workload(
        name="unet3d",
        base="unet3d_h100",
        told="npz files of 8 MB (of 147), batches of 7, 323 ms",
        n_files=140,
        record_bytes=8_000_000,
        batch_size=7,
        compute_s=0.323,
        n_workers=4,
    ),
    Workload(
        name="unet3d-starved",
        base="unet3d_h100",
        told="the same with one worker and 40 ms",
        n_files=280,
        record_bytes=8_000_000,
        batch_size=7,
        compute_s=0.040,
        n_workers=1,
    ),
    Workload(
        name="resnet50",
        base="resnet50_h100",
        told="JPEG files of 115 kB, batches of 40 (of 400), 22 ms (of 224)",
        n_files=4000,
        record_bytes=114_660,
        batch_size=40,
        compute_s=0.0224,
        n_workers=8,
        extra=JPEG,
    ),
    Workload(
        name="cosmoflow",
        base="cosmoflow_h100",
        told="npz files of 2.8 MB, one a batch, 3.5 ms",
        n_files=500,
        record_bytes=2_828_486,
        batch_size=1,
        compute_s=0.0035,
        n_workers=4,
        extra=NPZ,
    ),
    Workload(
        name="bert",
        base="bert_v100",
        told="HDF5 files of 2,000 records of 2.5 kB, batches of 48, 97 ms (of 968)",
        n_files=4,
        samples_per_file=2000,
        record_bytes=2500,
        batch_size=48,
        compute_s=0.0968,
        n_workers=1,
        extra=HDF5 | {"train.total_training_steps": -1},
    ),
    Workload(
        name="small-files",
        base="unet3d_h100",
        told="npz files of 10 kB, batches of 32, 5 ms, in the loop's process",
        n_files=6400,
        record_bytes=10_000,
        batch_size=32,
        compute_s=0.005,
        n_workers=0,
        extra={RESIZED: 0},
    ),
    Workload(
        name="csv",
        base="unet3d_h100",
        told="CSV files of 20 kB, batches of 8, 10 ms, two workers",
        n_files=800,
        record_bytes=20_000,
        batch_size=8,
        compute_s=0.010,
        n_workers=2,
        extra={"dataset.format": "csv", RESIZED: 0},
    ),
)


class Dlio:
    """DLIO as it is found: how to call it for a workload whose files lie in `data`."""

    def __init__(self, source: Path | None, data: Path, work: Path) -> None:
        self.data, self.work = data, work
        paths = [str(Path(__file__).parents[1])]
        if source is not None:
            paths.append(str(source.resolve()))
        if importlib.util.find_spec("tensorflow") is None:
            (work / "standin").mkdir()
            (work / "standin" / "tensorflow.py").write_text("")
            paths.append(str(work / "standin"))
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
        epochs = {"train.epochs": 1000}
        command += ["-m", MODULE, *self.arguments(workload, self.work / "said", epochs)]
        done = subprocess.run(
            command, cwd=self.work, env=self.env, capture_output=True, text=True, timeout=LIMIT_S
        )
        if not target.exists():
            raise RuntimeError(f"{workload.name}: no report\n{(done.stdout + done.stderr)[-1500:]}")
        report: dict[str, Any] = json.loads(target.read_text())
        return report, done.stdout


def utilisations(output: Path) -> tuple[list[float], list[float]]:
    """Of each epoch but the first: AU as DLIO has it, and with each epoch's first step counted."""
    found = json.loads((output / "0_output.json").read_text())
    epochs = [found[key] for key in sorted((k for k in found if k.isdigit()), key=int)]
    own, whole = [], []
    for epoch in epochs[WARM_EPOCHS:]:
        own.append(epoch["au"]["block1"] / 100)
        whole.append(sum(epoch["compute"]["block1"]) / sum(epoch["proc"]["block1"]))
    return own, whole


def row_of(dlio: Dlio, workload: Workload, budget_s: float, n_epochs: int) -> dict[str, Any]:
    dlio.generate(workload)
    epochs = {"train.epochs": n_epochs}
    before = utilisations(dlio.run(workload, "before", epochs))
    report, said = dlio.diagnose(workload, budget_s)
    after = utilisations(dlio.run(workload, "after", epochs))
    own, whole = before[0] + after[0], before[1] + after[1]
    ablation = report["ablation"] or {}
    wall_ms = report["step"]["wall_ms"]
    interval = (ablation.get("ci_ms") or {}).get("input_ms")
    share = (report["shares"] or {}).get("input")
    ours_noise = (interval[1] - interval[0]) / 2 / wall_ms if interval else 0.0
    noise = (max(whole) - min(whole)) / 2 + ours_noise
    busy = None if share is None else 1 - share
    return {
        "name": workload.name,
        "told": workload.told,
        "au": statistics.mean(own),
        "au_whole": statistics.mean(whole),
        "au_epochs": own,
        "busy": busy,
        "noise": noise,
        "step_ms": wall_ms,
        "verdict": f"{report['verdict']['bound']} {report['verdict']['severity']}",
        "summary": report["verdict"]["summary"],
        "findings": [f["kind"] for f in report["findings"]],
        "said": said,
        "agrees": busy is not None and abs(busy - statistics.mean(whole)) <= max(POINTS, noise),
    }


def line(row: dict[str, Any]) -> str:
    if "au" not in row:
        return f"| `{row['name']}` | {row['error'].splitlines()[-1][:120]} | | | | | | **no** |"
    busy = "–" if row["busy"] is None else f"{100 * row['busy']:.1f}"
    cells = [
        f"`{row['name']}`",
        row["told"],
        f"{100 * row['au']:.1f}",
        f"{100 * row['au_whole']:.1f}",
        busy,
        f"{100 * row['noise']:.1f}",
        f"{row['verdict']}: {', '.join(row['findings']) or '–'}",
        "yes" if row["agrees"] else "**no**",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dlio", type=Path, help="an unpacked dlio-benchmark")
    parser.add_argument("--only", default=",".join(w.name for w in WORKLOADS))
    parser.add_argument("--budget", type=float, default=30.0)
    parser.add_argument("--epochs", type=int, default=4, help="of each run of DLIO alone")
    parser.add_argument("--data", type=Path, help="where its files go; a RAM disk, for example")
    parser.add_argument("--json", type=Path, help="a line for each workload")
    args = parser.parse_args()
    rows = []
    print("| workload | | AU % | with first steps | 1 − our input % | noise % | said | agrees |")
    print("|---|---|---:|---:|---:|---:|---|---|")
    with tempfile.TemporaryDirectory(prefix="dlio-") as folder:
        data = Path(tempfile.mkdtemp(prefix="dlio-", dir=args.data))
        try:
            dlio = Dlio(args.dlio, data, Path(folder))
            for workload in WORKLOADS:
                if workload.name not in args.only.split(","):
                    continue
                try:
                    row = row_of(dlio, workload, args.budget, args.epochs)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    row = {"name": workload.name, "error": str(error), "agrees": False}
                rows.append(row)
                print(line(row), flush=True)
                if args.json:
                    with args.json.open("a") as file:
                        file.write(json.dumps(row) + "\n")
        finally:
            shutil.rmtree(data, ignore_errors=True)
    n = sum(row["agrees"] for row in rows)
    print(f"{n} of {len(rows)} within 5 points of DLIO's utilisation, or the noise")
    return 0 if n == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
