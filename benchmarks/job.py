"""How long the traces of a job take to analyse, and how much memory, as its ranks grow.

    python benchmarks/job.py                         one trace; then 50, 100 and 200 ranks
    python benchmarks/job.py --engines local         without Ray
    python benchmarks/job.py --ranks 1000 --rounds 1

Each job is a folder of copies of the recorded samples in traces/, made in a temporary folder, with
the rank in each name. Each measurement is `python -m loaderdoctor analyze FOLDER`, from start to
exit with the report; a round visits every engine and size once, in shuffled order. With
--engine ray a local Ray is started by the command and ended by it: that is in the time and in the
memory of `tree`. Memory is the peak of what is resident, ten times a second: of all processes of
the command together (what they share counted in each), of the command's own process, and of the
largest other process that reads traces (or waits to, in Ray). The JSON of both
engines is compared to the byte.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SAMPLES = sorted((Path(__file__).parents[1] / "traces").glob("*.pt.trace.json.gz"))
LOOK_S = 0.1


@dataclass(slots=True)
class Row:
    """Measurements of one engine and size."""

    seconds: list[float] = field(default_factory=list)
    tree_bytes: list[int] = field(default_factory=list)
    command_bytes: list[int] = field(default_factory=list)
    reader_bytes: list[int] = field(default_factory=list)
    json: bytes = b""


class Memory(threading.Thread):
    """Peaks of the resident size of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.tree = self.command = self.reader = 0
        self._root = psutil.Process(pid)
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(LOOK_S):
            with contextlib.suppress(psutil.Error):
                others = self._root.children(recursive=True)
                own = self._root.memory_info().rss
                sizes = [(resident(one), one) for one in others]
                self.command = max(self.command, own)
                self.tree = max(self.tree, own + sum(n for n, _ in sizes))
                readers = [n for n, one in sizes if reads(one)]
                self.reader = max([self.reader, *readers])

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


def resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
        return int(process.memory_info().rss)
    return 0


def reads(process: psutil.Process) -> bool:
    """Whether it is a process that reads traces: of the pool, or a worker of Ray's."""
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return "spawn_main" in words or words.startswith("ray::")
    return False


def main() -> None:
    options = parse()
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs")
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    sizes = [1, *options.ranks]
    runs = [(engine, n) for engine in options.engines for n in sizes if engine == "local" or n > 1]
    table = {run: Row() for run in runs}
    with tempfile.TemporaryDirectory(prefix="loaderdoctor-job-", dir=options.folder) as name:
        root = Path(name)
        for n in sizes:
            make_job(root / str(n), n)
        for _ in range(options.rounds):
            for run in random.sample(runs, len(runs)):
                measure(run[0], root, run[1], table[run])
    print_table(table)
    for n in options.ranks:
        texts = {table[run].json for run in runs if run[1] == n}
        print(f"{n} ranks: JSON of {len(options.engines)} engines, {len(texts)} different")
    print(f"load average after: {os.getloadavg()[0]:.1f}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[50, 100, 200], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--engines", nargs="+", choices=["local", "ray"], default=["local", "ray"], metavar="NAME"
    )
    parser.add_argument("--folder", type=Path, help="where the temporary folder goes")
    return parser.parse_args()


def make_job(folder: Path, n_ranks: int) -> None:
    folder.mkdir()
    for rank in range(n_ranks):
        shutil.copy(SAMPLES[rank % len(SAMPLES)], folder / f"rank{rank}.pt.trace.json.gz")


def measure(engine: str, root: Path, n_ranks: int, row: Row) -> None:
    out = root / "report.json"
    command = [
        *(sys.executable, "-m", "loaderdoctor", "analyze", str(n_ranks)),
        *("--engine", engine, "--json", str(out)),
    ]
    began = time.monotonic()
    child = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL)
    with Memory(child.pid) as memory:
        code = child.wait()
    row.seconds.append(time.monotonic() - began)
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}")
    row.tree_bytes.append(memory.tree)
    row.command_bytes.append(memory.command)
    row.reader_bytes.append(memory.reader)
    row.json = out.read_bytes()


def print_table(table: dict[tuple[str, int], Row]) -> None:
    print(
        f"\n{'engine':8} {'ranks':>6} {'median s':>9} {'min - max':>15} {'ms/trace':>9} "
        f"{'tree MB':>8} {'command MB':>11} {'reader MB':>10}"
    )
    for (engine, n_ranks), row in table.items():
        middle = statistics.median(row.seconds)
        spread = f"{min(row.seconds):.2f} - {max(row.seconds):.2f}"
        tree, command, reader = (
            f"{max(sizes) / 1e6:.0f}" if max(sizes) else "-"
            for sizes in (row.tree_bytes, row.command_bytes, row.reader_bytes)
        )
        print(
            f"{engine:8} {n_ranks:6} {middle:9.2f} {spread:>15} {middle / n_ranks * 1e3:9.0f} "
            f"{tree:>8} {command:>11} {reader:>10}"
        )


if __name__ == "__main__":
    main()
