"""Time and memory of reading grow with the trace as they should: linearly, and by columns only."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loaderdoctor.trace import read_trace

RECORDED = Path(__file__).parents[2] / "traces" / "enough_workers.pt.trace.json.gz"
# Of this process alone: ru_maxrss begins with what the one that started it had at its most.
PEAK = """
import sys
from pathlib import Path
from loaderdoctor.trace import read_trace
trace = read_trace(Path(sys.argv[1]))
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(status["VmHWM"].split()[0], len(trace.spans))
"""


def repeated(n_times: int, path: Path) -> Path:
    with gzip.open(RECORDED) as file:
        events = json.load(file)["traceEvents"]
    text = ",\n".join(json.dumps(event) for event in events)
    with path.open("w") as out:
        out.write('{"traceEvents": [\n' + ",\n".join([text] * n_times) + "\n]}")
    return path


def test_eight_times_the_events_take_about_eight_times_as_long(tmp_path: Path) -> None:
    small, large = repeated(1, tmp_path / "1.json"), repeated(8, tmp_path / "8.json")

    def cpu_s(path: Path) -> float:
        start = time.process_time()
        read_trace(path)
        return time.process_time() - start

    # The best of a few: other work on the machine only adds. Quadratic would be 64.
    ratio = min(cpu_s(large) for _ in range(3)) / min(cpu_s(small) for _ in range(5))
    assert ratio < 16


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_holds_columns_not_text(tmp_path: Path) -> None:
    def measured(n_times: int) -> tuple[int, int, int]:
        path = repeated(n_times, tmp_path / f"{n_times}.json")
        run = subprocess.run(
            [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True
        )
        peak_kb, n_rows = map(int, run.stdout.split())
        return peak_kb * 1024, n_rows, path.stat().st_size

    small, large = measured(2), measured(20)
    extra_bytes, extra_rows, extra_text = (b - a for a, b in zip(small, large, strict=True))
    # 61 bytes a row in the end, at most about twice that while rows are put in order.
    assert extra_bytes < 200 * extra_rows
    assert extra_bytes < extra_text / 2
