"""A report's change is proven with the script started as it was: -m, arguments, launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.report import encode_report
from loaderdoctor.report.model import Recommendation, Report
from loaderdoctor.report.run_model import Script, text_hash
from tests.python_path import python_path

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "report" / "golden" / "input_bound.json"
DATA = """import time
import torch
from torch.utils.data import Dataset

COST_S = 0.003


class Numbers(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        time.sleep(COST_S)
        return torch.full((8,), float(i) + torch.rand(()).item()), torch.tensor([float(i % 7)])
"""
TRAIN = """import argparse, os, sys
import torch
from torch.utils.data import DataLoader
from {data} import Numbers

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("where")
    parser.add_argument("--size", type=int, required=True)
    opts = parser.parse_args()
    assert open(opts.where).read() == "here", "its data is read from the working folder"
    assert {launched} or os.environ["RANK"] == "0"
    torch.set_num_threads(1)
    loader = DataLoader(Numbers(), batch_size=opts.size, shuffle=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        for x, y in loader:
            optimizer.zero_grad()
            (model(x * 1e-3) - y).pow(2).mean().backward()
            optimizer.step()
"""


@dataclass(frozen=True)
class Started:
    """How a script was started: folders below the project, and by what."""

    script: str
    module: str | None
    cwd: str
    change: str  # the printed change
    command: str | None = None
    launched: bool = False


FASTER = "data.py:5\n- COST_S = 0.003\n+ COST_S = 0.0"
WORKERS = (
    "train.py:14\n-     loader = DataLoader(Numbers(), batch_size=opts.size, shuffle=True)\n"
    "+     loader = DataLoader(Numbers(), batch_size=opts.size, shuffle=True, num_workers=2)"
)
STARTED = {
    "as a module": Started("pkg/train.py", "pkg.train", ".", FASTER),
    "by the launcher": Started("pkg/train.py", "pkg.train", ".", FASTER, launched=True),
    "from a folder apart": Started("code/train.py", None, "work", FASTER),
    "with workers, which draw otherwise": Started("train.py", None, ".", WORKERS),
}


@pytest.mark.parametrize("name", STARTED)
def test_a_reported_change_is_proven_as_the_script_was_started(name: str, tmp_path: Path) -> None:
    how = STARTED[name]
    project, script = tmp_path / "project", tmp_path / "project" / how.script
    script.parent.mkdir(parents=True)
    cwd = project / how.cwd
    cwd.mkdir(exist_ok=True)
    (cwd / "note.txt").write_text("here")
    data = f"{how.module.partition('.')[0]}.data" if how.module else "data"
    script.write_text(TRAIN.format(data=data, launched=not how.launched))
    (script.parent / "data.py").write_text(DATA)
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.json").write_bytes(encode_report(reported(how, script, cwd)))
    short = ["--turns", "2", "--max-turns", "2", "--seconds", "1.5"]
    words = ["prove", *short, "--json", str(tmp_path / "p.json")]
    done = subprocess.run(
        [sys.executable, "-m", "loaderdoctor", *words, str(run)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (tmp_path / "p.json").exists(), done.stderr[-2000:]
    found = json.loads((tmp_path / "p.json").read_text())
    assert found["numerics"] == ("redrawn" if how.change == WORKERS else "same"), done.stdout
    if how.change == FASTER:
        assert found["speed_up"]["value"] > 2  # 24 ms of sleep a batch
        assert done.returncode == 0
    assert json.loads((run / "proofs.json").read_text())[0]["changes"] == "Another line"


def reported(how: Started, script: Path, cwd: Path) -> Report:
    files = (script, script.parent / "data.py")
    known = Script(
        given=None if how.module else os.path.relpath(script, cwd),
        module=how.module,
        args=("note.txt", "--size", "8"),
        cwd=str(cwd),
        n_ranks=1,
        sources={str(file): text_hash(file.read_text()) for file in files},
        launched=how.launched,
    )
    row = Recommendation(
        setting="Another line",
        from_=None,
        to=None,
        code=how.change,
        predicted_step_ms=5.0,
        measured_step_ms=None,
        measured_ci_ms=None,
    )
    golden = msgspec.json.decode(GOLDEN.read_bytes(), type=Report)
    return msgspec.structs.replace(golden, script=known, recommendations=(row,))
