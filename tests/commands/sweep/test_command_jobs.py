"""The real command with `ddp`: jobs of two gloo processes on a CPU, and of one GPU each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

TRAIN = """
import os, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
model, sampler, size = torch.nn.Linear(64, 10), None, 64
if "LOCAL_RANK" in os.environ and "--alone" not in sys.argv:
    dist.init_process_group("gloo")
    size //= dist.get_world_size()
    sampler = DistributedSampler(data)
    model = torch.nn.parallel.DistributedDataParallel(model)
loader = DataLoader(data, batch_size=size, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100000):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def swept(folder: Path, *words: str, timeout: float = 500.0) -> dict[str, Any]:
    """The report of one sweep."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "loaderdoctor", "sweep", "--no-ablation"]
    outputs = ["--json", str(report), "--output", str(folder / "run")]
    done = subprocess.run(
        [*command, *outputs, *words], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def samples_per_step(trial: dict[str, Any]) -> float:
    return float(trial["samples_per_s"] * trial["step_ms"] / 1000)


@pytest.mark.slow
def test_a_script_that_trains_as_a_job_is_measured_as_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    grid = ("--grid", "ddp=data_parallel,ddp", "--nproc-per-node", "2", "--budget", "30")
    own, parallel, ddp = swept(tmp_path, *grid, str(script))["trials"]
    assert (ddp["status"], ddp["settings"]["ddp"]) == ("ok", "ddp")
    # The same global batch: 64 of one process, twice 32 of two.
    assert samples_per_step(own) == pytest.approx(64)
    assert samples_per_step(ddp) == pytest.approx(64)
    assert ddp["host_bytes"] > 1.4 * own["host_bytes"]
    assert (parallel["status"], parallel["reason"]) == (
        "skipped",
        "DataParallel needs two GPUs; there are 0",
    )


@pytest.mark.slow
def test_a_script_that_knows_no_ranks_is_skipped_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    grid = ("--grid", "ddp=ddp", "--nproc-per-node", "2", "--budget", "20")
    trial = swept(tmp_path, *grid, str(script), "--alone")["trials"][1]
    assert trial["status"] == "skipped"
    assert "they train each on its own" in trial["reason"]


@pytest.mark.slow
def test_each_rank_of_a_recipe_has_its_share_of_the_batch(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    grid = ("--grid", "ddp=none,ddp", "--nproc-per-node", "2", "--budget", "40")
    small = ("--", "--image-size", "16", "--samples", "512", "--device", "cpu")
    recipe = ("--recipe", "cifar10-mobilenetv2")
    own, ddp = swept(tmp_path, *recipe, *grid, *small)["trials"]
    assert ddp["status"] == "ok"
    assert [samples_per_step(one) for one in (own, ddp)] == pytest.approx([32, 32])
    assert ddp["epoch_s"] == pytest.approx(16 * ddp["step_ms"] / 1000, rel=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    ("recipe", "batch", "words"),
    [
        ("compute", 256, ("--case", "parallel")),
        ("cifar10-mobilenetv2", 128, ("--batch-size", "128", "--image-size", "64")),
    ],
)
def test_dataparallel_and_ddp_compute_the_same_batch_on_every_gpu(
    tmp_path: Path, recipe: str, batch: int, words: tuple[str, ...]
) -> None:
    grid = ("--grid", "ddp=data_parallel,ddp", "--budget", "150", "--rounds", "3")
    report = swept(tmp_path, "--recipe", recipe, *grid, "--", *words)
    own, parallel, ddp = report["trials"]
    for trial in (own, parallel, ddp):
        print(trial["label"], trial["step_ms"], trial["samples_per_s"], trial["status"])
        assert trial["status"] == "ok", trial["reason"]
        assert samples_per_step(trial) == pytest.approx(batch)
    assert parallel["gpu_peak_allocated_bytes"] > 0
    # Of one device: a replica, its gradients once more in buckets, and a share of the batch.
    assert 0 < ddp["gpu_peak_allocated_bytes"] < 2 * own["gpu_peak_allocated_bytes"]
