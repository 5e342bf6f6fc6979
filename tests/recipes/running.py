"""Runs a recipe's script as a user would: a plain script in a process of its own, on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "recipes"
# What makes each stop after three steps of few, small samples.
THREE_STEPS: dict[str, tuple[str, ...]] = {
    "cifar10-mobilenetv2": ("--samples", "12", "--batch-size", "4", "--epochs", "1"),
    "imagefolder": ("--images", "12", "--batch-size", "4", "--image-size", "32", "--epochs", "1"),
    "tokens": ("--samples", "12", "--batch-size", "4", "--max-length", "16", "--epochs", "1"),
    "tensors": ("--samples", "12", "--batch-size", "4", "--epochs", "1"),
    "multimodal": ("--samples", "12", "--batch-size", "4", "--epochs", "1"),
}


def start(name: str, *args: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """The script on its way; its temporary folder is `cwd`, so nothing lands outside a test's."""
    return subprocess.Popen(
        [sys.executable, str(RECIPES / name / "train.py"), "--device", "cpu", *args],
        cwd=cwd,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TMPDIR": str(cwd),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed, once it has ended well."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def run(name: str, *args: str, cwd: Path, **environment: str) -> str:
    return finish(start(name, *args, cwd=cwd, **environment))


def fail(name: str, *args: str, cwd: Path) -> str:
    """What it said on stderr, once it has failed; a traceback is no message."""
    process = start(name, *args, cwd=cwd)
    _, err = process.communicate()
    assert process.returncode != 0
    assert "Traceback" not in err
    return err


def losses(out: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss (\S+),", out)]
