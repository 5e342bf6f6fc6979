"""`run --tune=exact`: batches, losses and weights are those of the script alone."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scripts.recorded import environment, recorded, unwatched
from tests.scripts.running import SHAPES

pytestmark = [pytest.mark.scripts, pytest.mark.slow]

N_EPOCHS = "4"  # 1,200 steps, 10 s: what trying may cost pays for two workers
OTHERS = {"distributed": "8"}  # its epochs are half as long
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "train.py"
TRIED = (
    "plain", "shuffle", "weighted", "distributed", "persistent", "generator", "two-loaders",
    "resumed", "batch-sampler", "no-workers",
)  # fmt: skip


@pytest.mark.parametrize("shape", TRIED)
def test_a_tuned_training_is_the_training_alone(shape: str, tmp_path: Path) -> None:
    script = SHAPES / "tuned.py"
    n_epochs = OTHERS.get(shape, N_EPOCHS)
    alone = unwatched(script, shape, n_epochs, cwd=tmp_path)
    done = recorded(script, shape, n_epochs, cwd=tmp_path, options=["--tune=exact"])
    assert done.code == alone.returncode == 0, done.stderr
    assert done.stdout.startswith(alone.stdout)
    tuning = done.run.tuning
    assert tuning is not None
    assert tuning.not_tuned is None
    # Where no more than it draws ahead can be asked for, or nothing is gained, none need be kept.
    assert tuning.tried, tuning
    assert "Tuning" in done.stderr or "goes on with" in done.stderr


def test_an_iterable_dataset_is_left_alone_and_the_reason_is_said(tmp_path: Path) -> None:
    script = SHAPES / "tuned.py"
    alone = unwatched(script, "iterable", "2", cwd=tmp_path)
    done = recorded(script, "iterable", "2", cwd=tmp_path, options=["--tune"])
    assert done.stdout.startswith(alone.stdout)
    assert done.run.tuning is not None
    assert "keeps its place" in (done.run.tuning.not_tuned or "")
    assert "is not tuned" in done.stderr


def test_ranks_are_recorded_and_none_is_tuned_which_is_said_once(tmp_path: Path) -> None:
    script = SHAPES / "ranks_wait.py"
    done = recorded(
        script, "200", "0.01", cwd=tmp_path, options=["--tune", "--nproc-per-node", "2"]
    )
    assert done.code == 0, done.stderr
    assert done.stderr.count("The loader is not tuned: the training has several processes") == 1
    assert done.run.tuning is not None
    assert not done.run.tuning.tried
    assert [r.n_steps for r in done.run.ranks] == [200, 200]


def by_epoch(words: list[str], cwd: Path) -> tuple[list[str], list[float]]:
    """The losses that the tutorial's script prints, and seconds between one and the next."""
    process = subprocess.Popen(
        [sys.executable, *words, str(TUTORIAL), "--epochs", "3"],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2]),
    )
    assert process.stdout is not None
    lines, at = [], []
    for line in process.stdout:
        if line.startswith("epoch"):
            lines.append(line)
            at.append(time.monotonic())
    assert process.wait() == 0
    return lines, [after - before for before, after in itertools.pairwise(at)]


@pytest.mark.alone
def test_the_tutorials_script_has_the_same_losses_and_is_faster_by_its_second_epoch(
    tmp_path: Path,
) -> None:
    alone, before = by_epoch([], tmp_path)
    tuned, during = by_epoch(["-m", "loaderdoctor", "run", "--tune"], tmp_path)
    again, after = by_epoch([], tmp_path)
    assert alone == tuned == again
    assert len(alone) == 3
    # Less than 0.85 of it in six runs, each on two CPUs of its own.
    assert during[0] < 0.92 * (before[0] + after[0]) / 2, (before, during, after)
