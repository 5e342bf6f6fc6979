"""`analyze` over the traces of a job: the real command, and the parts that tell ranks apart."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.commands.job_traces import read_job, traces_in
from loaderdoctor.commands.trace_ranks import numbers_in_names, ranks_in_names
from loaderdoctor.errors import TraceError, UsageError

TRACES = Path(__file__).parents[2] / "traces"
STEP_US = 12_000.0


def write_rank(
    path: Path,
    fetch_us: float,
    *,
    rank: int | None,
    n_ranks: int = 4,
    n_steps: int = 10,
    pid: int = 1,
    late_s: int = 0,
) -> Path:
    """A gloo rank in step with its peers: it fetches, computes 1 ms, and reduces to the end."""
    events: list[dict[str, Any]] = []

    def add(name: str, cat: str, ts: float, end: float, tid: int = 1) -> None:
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts}
        )

    for n in range(n_steps):
        ts = 1000.0 + n * STEP_US
        add(f"ProfilerStep#{n}", "user_annotation", ts, ts + STEP_US - 1)
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        add(name, "user_annotation", ts + 1, ts + 1 + fetch_us)
        add("aten::linear", "cpu_op", ts + 1 + fetch_us, ts + 1001 + fetch_us)
        add("gloo:all_reduce", "user_annotation", ts + 1001 + fetch_us, ts + STEP_US - 2, tid=2)
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "host_name": "node1",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000 + late_s * 10**9,
        "traceEvents": events,
    }
    if rank is not None:
        document["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": n_ranks}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def analyze(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loaderdoctor", "analyze", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def report(*args: object) -> dict[str, Any]:
    done = analyze(*args, "--json", "-")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_folder_of_ranks_names_the_slow_one(tmp_path: Path) -> None:
    for rank, fetch in enumerate((2000.0, 2100.0, 9000.0, 1900.0)):
        write_rank(tmp_path / f"host_{rank * 7919}.pt.trace.json.gz", fetch, rank=rank)
    found = report(tmp_path)
    assert [r["rank"] for r in found["ranks"]] == [0, 1, 2, 3]
    waits = [r["peer_wait_ms"] for r in found["ranks"]]
    assert waits == pytest.approx([7.0, 6.9, 0.0, 7.1], abs=1e-3)
    for rank in found["ranks"]:
        assert sum(v for v in rank["shares"].values() if v is not None) == pytest.approx(1.0)
        communication_ms = rank["shares"]["communication"] * rank["own_ms"]
        assert communication_ms == pytest.approx(1.997, abs=0.01)
    # The top level is the rank the others wait for.
    assert found["verdict"]["bound"] == "input"
    assert found["step"]["wall_ms"] == pytest.approx(found["ranks"][2]["step"]["wall_ms"])
    slow = next(f for f in found["findings"] if f["kind"] == "slow-rank")
    assert slow["evidence"]["rank"] == 2
    assert slow["evidence"]["cause"] == "input"


def test_a_file_merged_from_two_ranks_is_about_one_of_them_and_says_so(tmp_path: Path) -> None:
    events = []
    for pid, fetch_us in ((1, 6000.0), (2, 500.0)):
        path = write_rank(tmp_path / "rank.json.gz", fetch_us, rank=None)
        own = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        events += [{**event, "pid": pid} for event in own]
    merged = tmp_path / "merged.json"
    merged.write_text(json.dumps({"traceEvents": events}))
    found = report(merged)
    assert found["step"]["count"] == 10
    assert found["shares"]["input"] == pytest.approx(0.5, abs=0.01)
    assert [w["kind"] for w in found["warnings"]] == ["processes-left-out"]


def test_ranks_that_stand_out_come_first_on_screen(tmp_path: Path) -> None:
    for rank in range(40):
        write_rank(tmp_path / f"rank{rank}.json.gz", 9000.0 if rank == 31 else 2000.0, rank=None)
    text = analyze(tmp_path).stdout
    rows = re.findall(r"^ +(\d+)  ", text[text.index("\nRanks") :], re.MULTILINE)
    assert rows[0] == "31"
    assert "and 24 more" in text


def test_traces_named_one_by_one_are_a_job_where_they_state_different_ranks(tmp_path: Path) -> None:
    ranks = [write_rank(tmp_path / f"{n}.json.gz", 2000.0, rank=n) for n in (0, 1)]
    assert len(report(*ranks)["ranks"]) == 2


def test_traces_of_different_runs_are_reported_one_by_one(tmp_path: Path) -> None:
    runs = [write_rank(tmp_path / f"run{n}.json.gz", 2000.0, rank=None) for n in (1, 2)]
    assert analyze(*runs).stdout.count("All of it") == 2
    refused = analyze(*runs, "--json", "-")
    assert refused.returncode == 2
    assert "one trace or one job at a time" in refused.stderr


def test_a_trace_that_cant_be_read_is_told_and_the_rest_reported(tmp_path: Path) -> None:
    for rank in range(3):
        write_rank(tmp_path / f"rank{rank}.json.gz", 2000.0, rank=rank)
    (tmp_path / "rank3.json.gz").write_bytes(b"\x1f\x8b broken")
    found = report(tmp_path)
    assert [r["rank"] for r in found["ranks"]] == [0, 1, 2]
    told = {w["kind"]: w["text"] for w in found["warnings"]}
    assert "rank3.json.gz" in told["rank-not-read"]
    assert told["ranks-missing"].startswith("3 of the job's 4 ranks")


def test_only_unreadable_traces_are_an_error(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text("[1, 2")
    with pytest.raises(TraceError):
        read_job(traces_in(tmp_path))


def test_a_folder_without_traces_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no trace"):
        traces_in(tmp_path)
    assert analyze(tmp_path).returncode == 2


def test_the_last_of_several_captures_of_a_rank_counts(tmp_path: Path) -> None:
    for capture in range(2):
        for rank in range(2):
            path = tmp_path / f"worker_{1000 * capture + 17 * rank + 100}.json.gz"
            write_rank(path, 2000.0 + 1000 * capture, rank=rank, late_s=60 * capture)
    job = read_job(traces_in(tmp_path))
    assert job.ranks == (0, 1)
    assert all("worker_11" in t.source for t in job.traces)
    assert "captures of a rank" in job.left_out[0]


# As tensorboard_trace_handler names them: worker, nanoseconds.
_CAPTURES = "vm_4283.1796097137987077550", "vm_4283.1796097138183933808"


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (None, ["2 captures of one process were found; the last one is reported."]),
        (
            1,
            [
                "2 captures of rank 1 were found; the last one is reported.",
                "1 of the job's 2 ranks are here; its slowest may be missing.",
            ],
        ),
    ],
)
def test_captures_of_one_process_are_no_ranks(
    tmp_path: Path, rank: int | None, said: list[str]
) -> None:
    for n, name in enumerate(_CAPTURES):
        path = tmp_path / f"{name}.pt.trace.json.gz"
        write_rank(path, 9000.0 - 3000 * n, rank=rank, n_ranks=2, pid=4283, late_s=n)
    found = report(tmp_path)
    assert not found["ranks"]
    assert found["shares"]["input"] == pytest.approx(0.5, abs=0.01)
    assert [w["text"] for w in found["warnings"]] == said


def test_a_copy_of_a_rank_is_no_peer(tmp_path: Path) -> None:
    trace = write_rank(tmp_path / "rank0.json.gz", 2000.0, rank=0, n_ranks=2)
    shutil.copy(trace, tmp_path / "rank0_copy.json.gz")
    assert report(tmp_path)["verdict"] == report(trace)["verdict"]
    other = tmp_path / "unstated"
    other.mkdir()
    for name in ("a", "b"):
        write_rank(other / f"{name}.json.gz", 2000.0, rank=None)
    assert len(read_job(traces_in(other)).traces) == 1


def test_runs_one_after_the_other_are_no_ranks(tmp_path: Path) -> None:
    for pid in (100, 200):
        write_rank(tmp_path / f"vm_{pid}.json.gz", 2000.0, rank=None, pid=pid, late_s=pid)
    job = read_job(traces_in(tmp_path))
    assert [Path(t.source).name for t in job.traces] == ["vm_200.json.gz"]
    assert job.left_out[0].startswith("Of 2 traces 1 is of another time than the last one")


def test_processes_of_one_time_that_tell_no_rank_are_ranks(tmp_path: Path) -> None:
    for pid in (412, 418):
        for n in range(2):
            write_rank(tmp_path / f"h_{pid}.{n}9.json.gz", 2000.0, rank=None, pid=pid, late_s=n)
    job = read_job(traces_in(tmp_path))
    assert [Path(t.source).name for t in job.traces] == ["h_412.19.json.gz", "h_418.19.json.gz"]
    assert job.left_out and "numbered by name" in job.problems[0]


def test_ranks_from_file_names() -> None:
    assert ranks_in_names(["job_rank0.json", "job_rank12.json.gz"]) == [0, 12]
    assert ranks_in_names(["a_rank-3.json", "b-Rank_4.json"]) == [3, 4]
    assert ranks_in_names(["rank0.json", "rank0.2.json"]) is None
    assert ranks_in_names(["frank1.json", "rank2.json"]) is None
    assert numbers_in_names(["w1.json", "w0.json", "w2.json"]) == [1, 0, 2]
    assert numbers_in_names(["host_412.17.json", "host_413.18.json"]) is None
    assert numbers_in_names([f"{name}.json" for name in _CAPTURES]) is None


def test_a_run_folder_is_read_by_its_full_traces(tmp_path: Path) -> None:
    (tmp_path / "perfetto").mkdir()
    (tmp_path / "report.json").write_text("{}")
    trace = write_rank(tmp_path / "perfetto" / "baseline.json.gz", 2000.0, rank=None)
    assert traces_in(tmp_path) == (trace,)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_traces(tmp_path: Path) -> None:
    """200 copies of real traces take no more memory than ten."""
    sources = sorted(TRACES.glob("*.json.gz"))[:5]

    def peak_bytes(n: int) -> int:
        folder = tmp_path / str(n)
        folder.mkdir()
        for i in range(n):
            shutil.copy(sources[i % len(sources)], folder / f"rank{i:03}.json.gz")
        code = (
            "import resource, sys\n"
            "from loaderdoctor.cli import main\n"
            "try: main(['analyze', sys.argv[1], '--json', sys.argv[2]])\n"
            "except SystemExit as e: assert not e.code, e.code\n"
            # Not ru_maxrss, which begins with what the process that started it had at its most.
            "own = int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
            "pool = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
            "print('peak', 1024 * max(own, pool))\n"
        )
        script = tmp_path / "peak.py"
        script.write_text("if __name__ == '__main__':\n    " + code.replace("\n", "\n    ") + "\n")
        done = subprocess.run(
            [sys.executable, str(script), str(folder), str(tmp_path / f"{n}.json")],
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "COLUMNS": "80"},
        )
        assert done.returncode == 0, done.stderr
        assert len(json.loads((tmp_path / f"{n}.json").read_text())["ranks"]) == n
        return int(done.stdout.rsplit("peak ", 1)[1])

    assert peak_bytes(200) < 1.25 * peak_bytes(10)
