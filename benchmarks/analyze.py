"""How long a trace takes to read and to analyse, and how much memory: ours beside others.

    python benchmarks/analyze.py                              0.5, 1 and 2 million events
    python benchmarks/analyze.py --events 500000 --rounds 1   a quick look
    python benchmarks/analyze.py --hta-python VENV/bin/python HolisticTraceAnalysis from elsewhere

Each size is one file made from a recorded trace (make_big_trace.py), in a temporary folder. Every
measurement is a process of its own, and a round visits every reader once, in shuffled order, so
that what else the machine does falls on all alike; the slow ones only at first. Readers:

    read_trace    loaderdoctor.trace.read_trace: the file as columns
    analyze       python -m loaderdoctor analyze FILE: from start to exit, with the report
    json.load     the standard library: the least that a tool built on it takes
    tb-plugin     torch_tb_profiler: parse the file, and prepare its views
    hta-load      HolisticTraceAnalysis: TraceAnalysis of the file (where installed)
    hta           the same, and its breakdown of the time into idle, compute and the rest

Seconds are the wall time of the work, without start and imports (`analyze`: with them); CPU seconds
are of all its processes and depend less on what else the machine does. Memory is the peak of what
is resident, of all processes together (what they share counted in each). A reader that exceeds
--time-limit or --memory-limit-gb at one size is not tried at larger ones.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import platform
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from make_big_trace import make_big_trace

with contextlib.suppress(ImportError):  # the interpreter of --hta-python may lack it
    import psutil

RECORDED = Path(__file__).parents[1] / "traces" / "launch_bound_tiny.pt.trace.json.gz"
BASELINE = "json.load"
SLOW = ("tb-plugin", "hta-load", "hta")
# ru_maxrss is in bytes on macOS, in kilobytes elsewhere.
RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(slots=True)
class Row:
    """One reader's measurements of one size."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    failure: str | None = None


def main() -> None:
    options = parse()
    if options.measure:
        print(json.dumps(measure(options.measure, options.trace)))
        return
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs")
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="loaderdoctor-bench-", dir=options.folder) as folder:
        for n_wanted in options.events:
            suffix = ".json.gz" if options.gzip else ".json"
            path = Path(folder) / f"{n_wanted}{suffix}"
            n_events = make_big_trace(RECORDED, n_wanted, path)
            table = measured(path, options, failed)
            print_table(n_events, path.stat().st_size, table)
            path.unlink()
    print(f"\nload average after: {os.getloadavg()[0]:.1f}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--events", type=int, nargs="+", default=[500_000, 1_000_000, 2_040_000], metavar="N"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default 3)")
    parser.add_argument(
        "--slow-rounds", type=int, default=1, help="of the plugin and HTA (default 1)"
    )
    parser.add_argument(
        "--readers", nargs="+", choices=list(READERS), default=list(READERS), metavar="NAME"
    )
    parser.add_argument("--time-limit", type=float, default=120, help="seconds, each (default 120)")
    parser.add_argument("--memory-limit-gb", type=float, help="address space, each (default none)")
    parser.add_argument(
        "--hta-python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter that has HolisticTraceAnalysis (default: this one)",
    )
    parser.add_argument("--gzip", action="store_true", help="measure compressed files")
    parser.add_argument("--folder", type=Path, help="where the temporary folder goes")
    parser.add_argument("--measure", choices=list(READERS), help=argparse.SUPPRESS)
    parser.add_argument("trace", type=Path, nargs="?", help=argparse.SUPPRESS)
    return parser.parse_args()


def measured(path: Path, options: argparse.Namespace, failed: dict[str, str]) -> dict[str, Row]:
    """Measure every reader on one file; `failed` carries those given up to the next size."""
    table = {name: Row(failure=failed.get(name)) for name in options.readers}
    for n_done in range(options.rounds):
        for name in random.sample(list(table), len(table)):
            row = table[name]
            if row.failure is None and not (name in SLOW and n_done >= options.slow_rounds):
                measure_apart(name, path, options, row)
                if row.failure is not None:
                    failed[name] = row.failure
    return table


def measure_apart(name: str, path: Path, options: argparse.Namespace, row: Row) -> None:
    def limit_memory() -> None:
        if options.memory_limit_gb:
            n_bytes = int(options.memory_limit_gb * 1e9)
            resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))

    python = options.hta_python if name.startswith("hta") else sys.executable
    command = [python, __file__, "--measure", name, str(path)]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit_memory,
        start_new_session=True,  # so that a command started by it can be ended with it
    )
    with PeakMemory(child.pid) as memory:
        try:
            out, problems = child.communicate(timeout=options.time_limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            row.failure = f"no answer within {options.time_limit:.0f} s"
            return
    if child.returncode != 0:
        lines = problems.strip().splitlines() or [f"exit code {child.returncode}"]
        row.failure = lines[-1][:80]
        return
    found = json.loads(out.splitlines()[-1])
    row.seconds.append(found["seconds"])
    row.cpu_s.append(found["cpu_s"])
    row.peak_bytes.append(max(found["peak_bytes"], memory.peak_bytes))


class PeakMemory(threading.Thread):
    """Looks at the resident size of a process and its descendants, ten times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._root = psutil.Process(pid)
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.1):
            with contextlib.suppress(psutil.Error):
                every = [self._root, *self._root.children(recursive=True)]
                now = sum(resident_bytes(process) for process in every)
                self.peak_bytes = max(self.peak_bytes, now)

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


def resident_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
        return int(process.memory_info().rss)
    return 0


def print_table(n_events: int, n_bytes: int, table: dict[str, Row]) -> None:
    print(f"\n{n_events:,} events, {n_bytes / 1e6:.0f} MB")
    print(
        f"{'':12} {'median s':>9} {'min - max':>14} {'us/event':>9} {'ratio':>7} "
        f"{'CPU s':>7} {'ratio':>7} {'peak MB':>8}"
    )
    baseline = table.get(BASELINE, Row())
    for name, row in table.items():
        if row.failure is not None:
            print(f"{name:12} {row.failure}")
            continue
        middle = statistics.median(row.seconds)
        spread = f"{min(row.seconds):.2f} - {max(row.seconds):.2f}"
        print(
            f"{name:12} {middle:9.2f} {spread:>14} {middle / n_events * 1e6:9.2f} "
            f"{ratio(row.seconds, baseline.seconds):>7} {statistics.median(row.cpu_s):7.2f} "
            f"{ratio(row.cpu_s, baseline.cpu_s):>7} {max(row.peak_bytes) / 1e6:8.0f}"
        )
    sys.stdout.flush()


def ratio(times: list[float], baseline: list[float]) -> str:
    if not baseline:
        return ""
    return f"{statistics.median(times) / statistics.median(baseline):.2f}x"


# -- in the measured process -------------------------------------------------------------------


def measure(name: str, path: Path) -> dict[str, float]:
    """Prepare (import) the reader, then time it on the file."""
    work = READERS[name]()
    before = os.times()
    work(path)
    after = os.times()
    used = [b - a for a, b in zip(before, after, strict=True)]
    return {
        "seconds": used[4],
        "cpu_s": sum(used[:4]),  # of this process and those it waited for
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT_BYTES,
    }


Work = Callable[[Path], Any]


def prepare_read_trace() -> Work:
    from loaderdoctor.trace import read_trace

    return read_trace


def prepare_analyze() -> Work:
    def run(path: Path) -> None:
        command = [sys.executable, "-m", "loaderdoctor", "analyze", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)

    return run


def prepare_json_load() -> Work:
    def load(path: Path) -> Any:
        if path.suffix == ".gz":
            import gzip

            with gzip.open(path) as packed:
                return json.load(packed)
        with path.open() as plain:
            return json.load(plain)

    return load


def prepare_tb_plugin() -> Work:
    if importlib.util.find_spec("torch_tb_profiler") is None:
        raise SystemExit("torch_tb_profiler is not installed")
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    logging.disable(logging.CRITICAL)

    def parse(path: Path) -> Any:
        data = RunProfileData.parse("worker0", None, str(path), str(path.parent))
        return RunGenerator("worker0", None, data).generate_run_profile()

    return parse


def prepare_hta_load() -> Work:
    if importlib.util.find_spec("hta") is None:
        raise SystemExit("HolisticTraceAnalysis is not installed")
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    return lambda path: TraceAnalysis(trace_files={0: str(path)})


def prepare_hta() -> Work:
    load = prepare_hta_load()
    return lambda path: load(path).get_temporal_breakdown(visualize=False)


READERS: dict[str, Callable[[], Work]] = {
    "read_trace": prepare_read_trace,
    "analyze": prepare_analyze,
    "json.load": prepare_json_load,
    "tb-plugin": prepare_tb_plugin,
    "hta-load": prepare_hta_load,
    "hta": prepare_hta,
}

if __name__ == "__main__":
    main()
