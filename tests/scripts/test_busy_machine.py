"""Real runs beside real programs that keep every CPU busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.python_path import python_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.scripts,
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

# Few operations, each shared by the threads there are: where these find no CPU, each operation
# takes some time slices of other programs, tens of milliseconds.
SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main():
    data = TensorDataset(torch.randn(6400, 1, 28, 28), torch.randint(10, (6400,)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in DataLoader(data, batch_size=64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

main()
"""


# One worker that has its batches ready at once, or that waits 6 ms for each of 16 samples. What
# making them takes of the CPUs it takes from the loop next to a neighbour: next to nothing.
FED = """\
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

IMAGE = torch.rand(3, 32, 32)

class Images(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return IMAGE, index % 10

if __name__ == "__main__":
    loader = DataLoader(Images(), batch_size=16, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
"""


@pytest.fixture
def neighbour() -> Iterator[None]:
    """One program that is always busy."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


@pytest.fixture
def full_cpus() -> Iterator[None]:
    """As many programs as there are CPUs, none of the run's own."""
    n_cpus = len(os.sched_getaffinity(0))
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_cpus)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def report(
    folder: Path, *arguments: str, script: str = SCRIPT, given: str = "", n_threads: str = ""
) -> dict[str, Any]:
    (folder / "train.py").write_text(script)
    n_threads = n_threads or str(len(os.sched_getaffinity(0)))
    environment = {**os.environ, "OMP_NUM_THREADS": n_threads, "MKL_NUM_THREADS": n_threads}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "loaderdoctor",
            *arguments,
            "--json",
            "-",
            "train.py",
            *given.split(),
        ],
        cwd=folder,
        env={**environment, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def check_busy(told: dict[str, Any]) -> None:
    said = {warning["kind"]: warning["text"] for warning in told["warnings"]}
    assert "of the" in said["busy-machine"], said
    assert told["cpu"]["others"] >= 0.2 * told["cpu"]["usable"]


def test_threads_that_fight_with_other_programs_are_named_and_fewer_measured_faster(
    tmp_path: Path, full_cpus: None
) -> None:
    told = report(tmp_path, "diagnose", "--budget", "90")
    check_busy(told)
    finding = next(f for f in told["findings"] if f["kind"] == "thread-oversubscription")
    assert finding["evidence"]["num_workers"] == 0
    assert finding["evidence"]["threads_of"] == "loop"
    fewer = [t for t in told["trials"] if t["settings"]["num_threads"]]
    assert fewer and all(t["changes_numerics"] for t in fewer)
    # Beside a program on each CPU it takes several times as long with all threads.
    assert min(t["step_ms"] for t in fewer) < 0.7 * told["step"]["wall_ms"]
    advice = next(r for r in told["recommendations"] if r["setting"] == "num_threads")
    assert advice["to"] < advice["from"]
    assert f"torch.set_num_threads({advice['to']})" in advice["code"]
    assert "last bits" in advice["caution"]


def test_a_sweep_says_that_the_machine_is_busy(tmp_path: Path, full_cpus: None) -> None:
    told = report(tmp_path, "sweep", "--grid", "num_workers=0,1", "--budget", "20")
    check_busy(told)


def test_a_neighbour_makes_no_loader_of_a_loop_that_computes(
    tmp_path: Path, neighbour: None
) -> None:
    told = report(
        tmp_path, "diagnose", "--no-verify", "--budget", "25", script=FED, given="0", n_threads="1"
    )
    verdict = told["verdict"]
    assert verdict["bound"] != "input" or verdict["severity"] == "uncertain", verdict


def test_a_loop_that_waits_for_its_loader_is_found_next_to_a_neighbour(
    tmp_path: Path, neighbour: None
) -> None:
    told = report(
        tmp_path, "diagnose", "--no-verify", "--budget", "25", script=FED, given="0.006",
        n_threads="1",
    )  # fmt: skip
    assert told["verdict"]["bound"] == "input", told["verdict"]
    claim, claim_ci = told["ablation"]["claims"]["input_ms"]
    assert 0.0 <= claim_ci[0] <= claim <= claim_ci[1] <= told["ablation"]["plain_ms"]
