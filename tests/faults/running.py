"""Runs the real command on a small training script in which something goes wrong.

Every process is marked through its environment, so that a test can ask what is left of them; and
the command may run with a /dev/shm of its own, so that what it leaves there is seen too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from loaderdoctor.report.model import Report, Trial
from tests.descent import DESCENT
from tests.python_path import python_path

MARK = "LOADERDOCTOR_TEST"
TIMEOUT_S = 240.0
AT_MOMENT = "tests.faults.at_moment"

# A loop of some 6 ms a step that waits for its loader; `fault(where, n)` is each test's own.
SCRIPT = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
{descent}
{fault}

class Samples(Dataset):
    made = {{}}  # by process: a forked worker begins at 0

    def __len__(self):
        return 400

    def __getitem__(self, index):
        n = self.made[os.getpid()] = self.made.get(os.getpid(), 0) + 1
        fault("worker" if get_worker_info() else "sample", n)
        time.sleep(0.001)
        return torch.randn({width}), index % 10

if __name__ == "__main__":
    loader = DataLoader(Samples(), batch_size=4, num_workers={workers}, {options})
    model = torch.nn.Linear({width}, 10)
    optimizer = Descent(model.parameters())
    n = 0
    print("loaded", flush=True)
    fault("loaded", 0)
    for epoch in range(1000):
        for x, y in loader:
            fault("step", n)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            n += 1
            print("step", n, flush=True)
"""
NO_FAULT = "def fault(where, n): pass"


def script(
    folder: Path, fault: str = NO_FAULT, *, workers: int = 0, width: int = 64, options: str = ""
) -> Path:
    """Write the script into `folder`."""
    path = folder / "train.py"
    path.write_text(
        SCRIPT.format(descent=DESCENT, fault=fault, workers=workers, width=width, options=options)
    )
    return path


@dataclass(slots=True)
class Faulty:
    """One run of the command."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def report(self) -> Report | None:
        """What the run folder holds."""
        path = self.folder / "report.json"
        return msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else None

    @property
    def said(self) -> Report:
        """The report; fails with what the command printed where there is none."""
        report = self.report
        assert report is not None, f"exit {self.code}\n{self.stdout[-3000:]}\n{self.stderr}"
        return report

    @property
    def last_line(self) -> str:
        """What the command said last."""
        return (self.stderr.strip().splitlines() or [""])[-1]

    def check_one_trial_failed(self, axis: str, failed: int, *, words: str, sound: int) -> Trial:
        """The sweep ended well: of that axis one trial failed, with these words. The sound one."""
        assert self.code == 0, self.stderr
        self.check_clean()
        rows = {t.settings[axis]: t for t in self.said.trials[1:]}
        assert rows[failed].status == "failed"
        assert words in (rows[failed].reason or "")
        assert rows[sound].status == "ok"
        return rows[sound]

    def check_clean(self) -> None:
        """No traceback of ours, and nothing half-written in the run folder."""
        assert "loaderdoctor/commands" not in self.stderr, self.stderr
        if self.folder.is_dir():
            left = [p.name for p in self.folder.rglob(".*")]
            assert left == [], left


@dataclass(slots=True)
class Place:
    """Where commands run: a folder, marked processes, and perhaps mounts of their own."""

    path: Path
    holder: int | None = None  # process that holds the mount namespace
    more: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            MARK: str(self.path),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": python_path(),
            **self.more,
        }

    def start(self, *words: object, module: str = "loaderdoctor") -> subprocess.Popen[str]:
        """`python -m loaderdoctor WORDS`, started; its process is the command itself."""
        inside = []
        if self.holder is not None:
            # The folder is entered from within, where the mounts are.
            enter = f'cd "{self.path}" && exec "$@"'
            inside = ["nsenter", "-m", "-t", str(self.holder), "sh", "-c", enter, "sh"]
        return subprocess.Popen(
            [*inside, sys.executable, "-m", module, *map(str, words)],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, command: subprocess.Popen[str]) -> Faulty:
        """Its end; no process may be left then."""
        out, err = command.communicate(timeout=TIMEOUT_S)
        assert self.left_after(2.0) == []
        return Faulty(command.returncode, out, err, self.path / "out")

    def run(self, *words: object, module: str = "loaderdoctor") -> Faulty:
        """Start, and finish."""
        return self.finish(self.start(*words, module=module))

    def diagnose(self, script: Path, *options: str, budget_s: float = 6.0) -> Faulty:
        """`loaderdoctor diagnose` into the folder `out`."""
        return self.run("diagnose", "--budget", budget_s, "--output", "out", *options, script)

    def left_after(self, patience_s: float) -> list[str]:
        """Command lines of marked processes that still run so much later."""
        end = time.monotonic() + patience_s
        while (found := self._processes()) and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def _processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter(["environ", "status", "cmdline", "pid"]):
            info = process.info
            if (info["environ"] or {}).get(MARK) != str(self.path) or info["pid"] == os.getpid():
                continue
            if info["status"] != psutil.STATUS_ZOMBIE and info["pid"] != self.holder:
                found.append(" ".join(info["cmdline"] or [])[:200])
        return found

    def in_shm(self) -> list[str]:
        """What lies in the place's own /dev/shm."""
        assert self.holder is not None
        return sorted(p.name for p in Path(f"/proc/{self.holder}/root/dev/shm").iterdir())


def why_no_mounts() -> str | None:
    """Why mounts of one's own can't be had here; None where they can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs root on Linux, to mount"
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "needs unshare and nsenter"
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /mnt"], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"mounting is not allowed: {tried.stderr.strip()}"


@contextmanager
def mounted(path: Path, mounts: Sequence[tuple[str, str]]) -> Iterator[Place]:
    """A place with tmpfs mounts of its own: (options, where)."""
    commands = [f"mount -t tmpfs -o {options} tmpfs {where}" for options, where in mounts]
    holder = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", " && ".join([*commands, "echo ready", "exec sleep 1000"])],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        yield Place(path, holder.pid)
    finally:
        holder.kill()
        holder.wait()
