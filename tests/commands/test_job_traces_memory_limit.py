"""`analyze --max-memory`: what a small file can't be made to take, measured in a real process."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from loaderdoctor.commands.job_traces import LEAST_BYTES, memory_limit
from loaderdoctor.errors import UsageError
from loaderdoctor.report import read_report

EVENT = (
    '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":7,"tid":7,"ts":%d.5,"dur":2,'
    '"args":{"External id":1}}'
)
PEAK = (
    "import sys, os\n"
    "from loaderdoctor.cli import main\n"
    "try: main(sys.argv[1:])\n"
    "finally:\n"
    "    line = next(x for x in open('/proc/self/status') if x.startswith('VmHWM'))\n"
    "    os.write(2, ('peak ' + line.split()[1] + '\\n').encode())\n"
)


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    said: str  # on stderr, without the peak
    peak_bytes: int


def analyze(*words: str) -> Ended:
    """Run the command; the peak of its own resident memory."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "analyze", *words], capture_output=True, text=True, check=False
    )
    said, _, peak = done.stderr.rpartition("peak ")
    return Ended(done.returncode, said.strip(), int(peak) * 1024)


def repeated(path: Path, head: bytes, piece: bytes, n_bytes: int, tail: bytes = b"") -> None:
    """A gzip file that unpacks to `n_bytes` of one piece over and over, made of members."""
    member = piece * max(1, (32 << 20) // len(piece))
    packed = gzip.compress(member, 6)
    with path.open("wb") as out:
        out.write(gzip.compress(head))
        for _ in range(max(1, n_bytes // len(member))):
            out.write(packed)
        out.write(gzip.compress(tail))


def events(n: int) -> bytes:
    return b"".join((EVENT % i).encode() + b"," for i in range(n))


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("512MiB", 512 << 20),
        ("4GB", 4_000_000_000),
        ("1.5 g", 1_500_000_000),
        ("2000000", 2_000_000),
        ("3 TiB", 3 << 40),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, n_bytes: int) -> None:
    assert memory_limit(text) == n_bytes


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "4 GBit", "1e9", "٣GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--max-memory"):
        memory_limit(text)


def test_the_default_is_half_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    where = "loaderdoctor.commands.job_traces.memory_available_bytes"
    for available, limit in ((64 << 30, 32 << 30), (1 << 20, LEAST_BYTES)):
        monkeypatch.setattr(where, lambda n=available: n)
        assert memory_limit(None) == limit


def test_a_file_that_needs_more_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    repeated(path, b'{"traceEvents":[', events(300_000), 32 << 20, b"{}]}")
    ended = analyze("--max-memory", "200MB", str(path))
    assert ended.code == 2
    assert ended.said == (
        f"loaderdoctor: {path}: needs more than 0.2 GB of memory, the limit for one trace. "
        "Profile fewer steps, or allow more with --max-memory."
    )
    assert ended.peak_bytes < 200_000_000


def test_a_large_file_read_in_parts_is_refused_alike(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as out:
        out.write(b'{"traceEvents":[')
        piece = events(100_000)
        while out.tell() < 70 << 20:
            out.write(piece)
        out.write(b"{}]}")
    refused = analyze("--max-memory", "300MB", str(path))
    assert (refused.code, refused.peak_bytes < 300_000_000) == (2, True)
    assert "needs more than 0.3 GB" in refused.said
    read = analyze("--max-memory", "1GB", str(path))
    assert (read.code, read.said) == (0, "")
    assert read.peak_bytes < 1_000_000_000


def test_what_is_written_anew_counts_before_anything_is_written(tmp_path: Path) -> None:
    """Flows are passed over when a trace is read, and are held when it is written."""
    path, output = tmp_path / "run.json", tmp_path / "runs"
    flows = b'{"ph":"s"},' * 150_000
    path.write_bytes(b'{"traceEvents":[' + flows + (EVENT % 1).encode() + b"]}")
    read = analyze("--max-memory", "200MB", str(path))
    assert (read.code, read.said, read.peak_bytes < 200_000_000) == (0, "", True)
    targets = ("--output", str(output), "--tensorboard", str(output))
    refused = analyze("--max-memory", "200MB", *targets, str(path))
    assert refused.code == 2
    assert refused.said == (
        f"loaderdoctor: {path}: needs 204 MB of memory to be written again, the limit is 200 MB. "
        "Analyze it without --output and --tensorboard, or allow more with --max-memory."
    )
    assert refused.peak_bytes < 200_000_000
    assert not output.exists()
    done = analyze("--max-memory", "400MB", "--tensorboard", str(output), str(path))
    assert (done.code, done.peak_bytes < 400_000_000) == (0, True)
    assert list(output.rglob("*.pt.trace.json.gz"))


def test_a_huge_plain_file_is_refused_within_the_limit(tmp_path: Path) -> None:
    """Sparse: a hundred gigabytes of zeros behind the first events take no disk."""
    path = tmp_path / "run.json"
    path.write_bytes(b'{"traceEvents":[' + events(1000))
    os.truncate(path, 100 << 30)
    ended = analyze("--max-memory", "300MB", "--output", str(tmp_path / "runs"), str(path))
    assert (ended.code, ended.peak_bytes < 300_000_000) == (2, True), ended
    assert str(path) in ended.said
    assert "\n" not in ended.said


def test_a_huge_report_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b'{"schema":"loaderdoctor.report/1","command":"')
    os.truncate(path, 100 << 30)
    with pytest.raises(UsageError, match="it is over 64 MB"):
        read_report(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "piece", "says"),
    [
        (b"", b"\0", "is not UTF-8 text"),
        (b'{"traceEvents":[', b" ", "one piece of it is over"),
        (b"{", b" ", "one piece of it is over"),
        (b'{"a":"', b"0", "one piece of it is over"),
        (b"", b"[", "one piece of it is over"),
        (b"[", b"{},", "more than 1 million are malformed"),
        (b"[", b"[],", "more than 1 million are malformed"),
        (b'{"traceEvents":[{"ph":"X","ts":1,"name":"', b"n", "one piece of it is over"),
    ],
    ids=["zeros", "spaces", "head", "text", "brackets", "objects", "lists", "name"],
)
def test_ten_gigabytes_in_a_small_file_stay_within_the_limit(
    tmp_path: Path, head: bytes, piece: bytes, says: str
) -> None:
    path = tmp_path / "run.json.gz"
    repeated(path, head, piece, 10_000_000_000)
    ended = analyze("--max-memory", "1GB", str(path))
    assert ended.code == 2
    assert any(one in ended.said for one in says.split("|")), ended.said
    assert "\n" not in ended.said
    assert ended.peak_bytes < 1_000_000_000


@pytest.mark.slow
def test_gigabytes_of_events_are_read_in_part_within_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    repeated(path, b'{"traceEvents":[', events(200_000), 2_000_000_000, b"{}]}")
    ended = analyze("--max-memory", "1GB", "--verbose", str(path))
    assert (ended.code, ended.peak_bytes < 1_000_000_000) == (0, True), ended.said


def test_a_limit_of_the_kernel_ends_in_the_same_line(tmp_path: Path) -> None:
    """Where counting is wrong: an allocation of half a gigabyte beyond the limit and its slack."""
    code = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from loaderdoctor.commands.job_traces import SLACK_BYTES, enforced\n"
        "from loaderdoctor.errors import UsageError\n"
        "try:\n"
        "    with enforced(200_000_000, (Path('run.json'),)):\n"
        "        np.ones(SLACK_BYTES + 700_000_000, np.uint8)\n"
        "except UsageError as error: print(error)\n"
        "print(len(np.ones(SLACK_BYTES + 250_000_000, np.uint8)) > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    said, after = done.stdout.splitlines()
    assert said.startswith("run.json: needs more than 0.2 GB of memory, the limit.")
    assert after == "True"
