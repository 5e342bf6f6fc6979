"""Two real scripts in turns: what they leave, and what is said where one of them fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import time, torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        {work}
        return torch.full((8,), float(i)), torch.tensor([float(i % 7)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr={lr})
    open("checkpoint.txt", "w").write("overwritten")
    for epoch in range(1000):
        for x, y in DataLoader(Numbers(), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = (model(x * 1e-3) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
"""


def prove(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "loaderdoctor", "prove"]
    how = ["--turns", "2", "--max-turns", "2", "--seconds", "2"]
    return subprocess.run(
        [*words, *how, *options], cwd=folder, capture_output=True, text=True, timeout=200
    )


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    slow, fast = TRAIN.format(work="time.sleep(0.003)", lr=0.01), TRAIN.format(work="pass", lr=0.01)
    (tmp_path / "train.py").write_text(slow)
    (tmp_path / "fast.py").write_text(fast)
    (tmp_path / "other.py").write_text(TRAIN.format(work="pass", lr=0.5))
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such thing')\n")
    (tmp_path / "empty.py").write_text("print('trains nothing')\n")
    (tmp_path / "checkpoint.txt").write_text("the user's")
    return tmp_path


@pytest.mark.slow
def test_a_faster_script_with_the_same_batches_is_proven(scripts: Path) -> None:
    done = prove(
        scripts, "--changed", "fast.py", "--json", "p.json", "--markdown", "p.md", "train.py"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((scripts / "p.json").read_text())
    assert found["speed_up"]["value"] > 2  # 24 ms of sleep a batch
    assert found["numerics"] == "same"
    assert found["same_batches"] is True
    assert "same batches, same losses" in done.stdout
    assert "train.py → fast.py" in (scripts / "p.md").read_text()
    assert (scripts / "checkpoint.txt").read_text() == "the user's"  # the runs had copies


@pytest.mark.slow
def test_a_script_that_trains_something_else_fails_the_proof(scripts: Path) -> None:
    done = prove(scripts, "--changed", "other.py", "train.py")
    assert done.returncode == 3, done.stderr
    assert "changes numerics" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("batch_size=8", "batch_size=10", "same samples in the same order"),
        ("shuffle=True", "num_workers=1", "same samples in another order"),
        (
            "DataLoader(Numbers()",
            "DataLoader(torch.utils.data.Subset(Numbers(), range(380))",
            "samples lost: 20 of 400",
        ),
    ],
)
def test_samples_of_other_batches_are_compared(
    scripts: Path, old: str, new: str, words: str
) -> None:
    text = (scripts / "fast.py").read_text()
    (scripts / "other.py").write_text(text.replace(old, new))
    done = prove(scripts, "--changed", "other.py", "--json", "p.json", "fast.py")
    assert words in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert json.loads((scripts / "p.json").read_text())["samples"]["n"] == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "words"),
    [("broken.py", "no such thing"), ("empty.py", "without a training step")],
)
def test_a_run_that_fails_is_told_without_our_traceback(
    scripts: Path, changed: str, words: str
) -> None:
    done = prove(scripts, "--changed", changed, "train.py")
    assert done.returncode == 1
    assert words in done.stderr
    assert "loaderdoctor/" not in done.stderr.split("The changed script")[0].replace(
        "loaderdoctor-", ""
    )


def test_scripts_that_are_not_there_or_apart_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.py").write_text("")
    (tmp_path / "fast.py").write_text("")
    missing = prove(tmp_path, "--changed", "nowhere.py", "a/train.py")
    assert missing.returncode == 2
    assert "nowhere.py: no such script" in missing.stderr
    apart = prove(tmp_path / "a", "--changed", "../fast.py", "train.py")
    assert apart.returncode == 2
    assert "put it there" in apart.stderr


def test_a_changed_script_in_a_shared_folder_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("train", "fast"):
        (tmp_path / "src" / f"{name}.py").write_text(f"# {name}\n")
    done = prove(tmp_path, "--share", "src", "--changed", "src/fast.py", "src/train.py")
    assert done.returncode == 2, done.stderr
    assert "the change is in a shared folder" in " ".join(done.stderr.split())
    assert (tmp_path / "src" / "train.py").read_text() == "# train\n"
