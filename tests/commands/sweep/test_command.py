"""The real command over a real script in real processes; what its JSON says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.descent import DESCENT

alone = pytest.mark.alone
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# Samples that wait, as from storage: workers overlap the waiting, whatever the machine is doing.
SLOW_LOADER = (
    """\
import time
import torch
from torch.utils.data import DataLoader, Dataset
"""
    + DESCENT
    + """

class Waiting(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((8,), float(index)), index % 2


def main():
    model = torch.nn.Linear(8, 2)
    optimizer = Descent(model.parameters())
    loader = DataLoader(Waiting(), batch_size=4, shuffle=True)
    for epoch in range(100_000):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print("epoch", epoch)


if __name__ == "__main__":
    main()
"""
)


def loaderdoctor(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loaderdoctor", *args],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """(report, stderr, run folder) of one sweep over the script above."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "train.py").write_text(SLOW_LOADER)
    done = loaderdoctor(
        "sweep",
        *("--grid", "num_workers=0,4", "persistent_workers=true"),
        *("--budget", "9", "--output", "run", "--json", "-"),
        "train.py",
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr, folder / "run"


@alone
@pytest.mark.scripts
def test_the_loops_own_settings_are_trial_0_and_the_top_level(
    run: tuple[dict[str, Any], str, Path],
) -> None:
    report, stderr, _ = run
    assert report["schema"] == "loaderdoctor.report/1"
    assert report["command"] == "sweep"
    own = report["trials"][0]
    assert not any(own["settings"].values())
    assert report["step"]["wall_ms"] == own["step_ms"]
    assert report["loaders"][0]["settings"]["num_workers"] == 0
    assert "not valid" in stderr.splitlines()[0]
    # What the loader costs was measured, by windows with ready batches beside plain ones.
    assert report["ablation"]["n_rounds"] >= 1
    assert report["ablation"]["no_input_ms"] < 0.5 * report["ablation"]["plain_ms"]


@alone
@pytest.mark.scripts
def test_workers_are_found_to_help_a_loader_that_waits(
    run: tuple[dict[str, Any], str, Path],
) -> None:
    report, _, _ = run
    assert [t["settings"]["num_workers"] for t in report["trials"]] == [None, 4]
    assert {t["status"] for t in report["trials"]} == {"ok"}
    own, four = (t["within_epoch_ms"] for t in report["trials"])
    assert own > 40  # four samples that wait 10 ms each
    assert four < own
    changed = {r["setting"]: r for r in report["recommendations"]}
    assert changed["num_workers"]["from"] == 0
    assert changed["num_workers"]["to"] == 4
    assert "num_workers=4" in changed["num_workers"]["code"]
    assert report["best"]["trial"] == 1
    assert report["verdict"]["bound"] == "input"


@alone
@pytest.mark.scripts
def test_the_run_folder_holds_report_and_traces(run: tuple[dict[str, Any], str, Path]) -> None:
    report, _, folder = run
    assert json.loads((folder / "report.json").read_text()) == report
    assert "settings" in (folder / "console.txt").read_text()
    assert (folder / "perfetto" / "baseline.json.gz").is_file()
    assert (folder / report["trials"][0]["trace"]).is_file()
    assert not list(folder.glob(".traces*"))


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "nothing to sweep"),
        (("gone.py",), 2, "gone.py: no such file"),
        (("--recipe", "mnits"), 2, "mnist"),
        (("--recipe", "mnist", "empty.py"), 2, "exclude each other"),
        (("--grid", "num_workers=x", "empty.py"), 2, "not a whole number"),
        (("--json", "no/such/folder/x.json", "empty.py"), 2, "--json"),
        (("empty.py",), 1, "no torch DataLoader"),
    ],
)
def test_what_cannot_be_swept_is_said_in_one_line(
    tmp_path: Path, args: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "empty.py").write_text("print('no loader here')\n")
    done = loaderdoctor("sweep", *args, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.scripts
def test_a_script_that_fails_first_passes_its_traceback_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import sys\nprint('no data', file=sys.stderr)\nsys.exit(7)\n"
    )
    done = loaderdoctor("sweep", "fails.py", cwd=tmp_path)
    assert done.returncode == 7
    assert "no data" in done.stderr
    assert "loaderdoctor: fails.py:" in done.stderr
