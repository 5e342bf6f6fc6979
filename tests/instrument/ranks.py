"""A script that trains in two ranks, and what is left of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.descent import DESCENT

# In the environment of what a test starts, and so of all that comes of it.
MARK = "LOADERDOCTOR_TEST"
TRAIN = (
    """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
"""
    + DESCENT
    + """
class Averaged(torch.nn.Linear):
    # Gradients averaged by hand; torch's own class loads the compiler, see `Descent`.
    def average(self):
        for parameter in self.parameters():
            dist.all_reduce(parameter.grad)

class Slow(Dataset):
    def __init__(self, sample_s):
        self.sample_s = sample_s
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return torch.randn(64), index % 10

def train(sample_s=(0.001, 0.004), n_epochs=50, after_step=None, how="by hand"):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dataset = Slow(sample_s[rank])
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
    model = Averaged(64, 10)
    if how == "ddp":
        model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    else:
        optimizer = Descent(model.parameters())
    n = 0
    for _ in range(n_epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if how == "by hand":
                model.average()
            optimizer.step()
            n += 1
            if after_step:
                after_step(rank, n)
    dist.destroy_process_group()
"""
)


def children_of_test(folder: Path) -> list[int]:
    """Processes that still run and stem from a test in this folder, but for its own."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        mark = (process.info["environ"] or {}).get(MARK)
        if mark == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return [pid for pid in found if pid != os.getpid()]


def diagnosis_at_step_20(*words: str) -> subprocess.Popen[str]:
    """`loaderdoctor diagnose WORDS`, whose script says each step, once it has said the 20th."""
    command = subprocess.Popen(
        [sys.executable, "-m", "loaderdoctor", "diagnose", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert command.stdout is not None
    for line in command.stdout:
        if line.startswith("step 20"):
            break
    return command


def wait_until_gone(folder: Path, *, within_s: float) -> None:
    """Fails where a process of that test still runs so much later."""
    end = time.monotonic() + within_s
    while children_of_test(folder):
        assert time.monotonic() < end
        time.sleep(0.2)
