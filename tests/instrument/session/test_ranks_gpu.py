"""Two NCCL ranks, one GPU each: the rank with the slow dataset is named, its peer's wait is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
TRAIN = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Slow(Dataset):
    def __init__(self, sample_s):
        self.sample_s = sample_s
    def __len__(self):
        return 16000
    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return torch.randn(1024), index % 10

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
dataset = Slow((0.001, 0.004)[dist.get_rank()])
loader = DataLoader(
    dataset, batch_size=8, sampler=DistributedSampler(dataset), num_workers=2, pin_memory=True
)
layers = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 10))
model = DistributedDataParallel(layers.to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
"""
TWO = ("--nproc-per-node", "2")


def check(found: dict[str, Any]) -> None:
    slow = next(f for f in found["findings"] if f["kind"] == "slow-rank")
    assert slow["evidence"]["rank"] == 1
    assert slow["evidence"]["cause"] == "input"
    assert found["verdict"]["bound"] == "input"
    fast, late = found["ranks"]
    assert fast["peer_wait_ms"] > 0.4 * fast["step"]["wall_ms"]
    assert late["peer_wait_ms"] < 0.2 * fast["peer_wait_ms"]
    for rank in (fast, late):
        assert rank["shares"]["communication"] * rank["own_ms"] < 0.2 * fast["peer_wait_ms"]


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "loaderdoctor", "diagnose", *TWO),
        ("-m", "torch.distributed.run", *TWO, "-m", "loaderdoctor", "diagnose"),
    ],
    ids=["diagnose-starts-torchrun", "torchrun-starts-diagnose"],
)
def test_the_slow_rank_is_named_and_its_peers_wait_is_no_communication(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    script, report, run = tmp_path / "train.py", tmp_path / "report.json", tmp_path / "out"
    script.write_text(TRAIN)
    options = ("--budget", "20", "--json", str(report), "--output", str(run))
    done = subprocess.run(
        [sys.executable, *command, *options, str(script)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    check(json.loads(report.read_text()))
    assert len(sorted((run / "perfetto").glob("rank-*"))) == 2
