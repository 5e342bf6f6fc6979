"""Runs a recipe's script as a user would: a plain script in a process of its own, on the CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
    script = str(RECIPES / name / "train.py")
    return _started(script, "--device", "cpu", *args, cwd=cwd, **environment)


def _started(*args: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *args],
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


# One interpreter for several scripts, each as the main program with what it imports anew: torch and
# torchvision take longer to import than all of their steps.
_ONE_BY_ONE = """
import json, runpy, sys
from pathlib import Path

for script, *arguments in json.loads(sys.argv.pop()):
    folder = str(Path(script).parent)
    sys.argv, sys.path[0] = [script, *arguments], folder
    print("script", script, flush=True)
    runpy.run_path(script, run_name="__main__")
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(folder):
            del sys.modules[name]
"""


def run_all(all_args: Mapping[str, Sequence[str]], *, cwd: Path) -> dict[str, str]:
    """What each script printed, by name; one after the other in a process of their own."""
    scripts = {name: str(RECIPES / name / "train.py") for name in all_args}
    commands = [[scripts[name], "--device", "cpu", *args] for name, args in all_args.items()]
    out = finish(_started("-c", _ONE_BY_ONE, json.dumps(commands), cwd=cwd))
    said = dict(part.split("\n", 1) for part in out.split("script ")[1:])
    return {name: said[script] for name, script in scripts.items()}


def fail(name: str, *args: str, cwd: Path) -> str:
    """What it said on stderr, once it has failed; a traceback is no message."""
    process = start(name, *args, cwd=cwd)
    _, err = process.communicate()
    assert process.returncode != 0
    assert "Traceback" not in err
    return err


def losses(out: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss (\S+),", out)]
