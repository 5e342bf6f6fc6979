"""With fixed draws, what the model is given does not depend on how the loader is set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_path import python_path

LOOP = """
import hashlib, json, random, sys
from pathlib import Path
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

KEEPS = False


class Augmented(Dataset):
    kept = {}
    plain = False

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if self.plain:
            return torch.tensor([float(i), 0.0, 0.0])
        if KEEPS and i in self.kept:
            return self.kept[i]
        row = torch.tensor([i + torch.rand(()).item(), random.random(), np.random.rand()])
        self.kept[i] = row
        return row


def noted(worker):
    print("worker", worker, file=sys.stderr)


if __name__ == "__main__":
    from loaderdoctor.instrument.entry.checked_samples import FixedDraws
    from loaderdoctor.instrument.session.hooks import ImportWatch

    settings = json.loads(sys.argv[1])
    KEEPS, shuffle = settings.pop("keeps", False), settings.pop("shuffle", True)
    size = settings.pop("size", 4)
    data = Augmented()
    data.plain = settings.pop("plain", False)
    drawn = Path(__file__).with_name("drawn")
    fixed = FixedDraws(0, by_sample=drawn if settings.pop("by_sample", False) else None)
    if settings.pop("fixed"):
        ImportWatch(fixed.hooks()).install()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    settings |= {"shuffle": shuffle, "worker_init_fn": noted}
    loader = DataLoader(data, batch_size=size, **settings)
    found = []
    for epoch in range(2):
        for batch in loader:
            dropout = torch.rand(2)  # of the model
            found.append([batch.tolist(), dropout.tolist()])
    print(json.dumps(found))
    print("seen", fixed.repeated, fixed.epoch_ended, file=sys.stderr)
"""


def batches(folder: Path, **settings: object) -> tuple[list[object], str]:
    script = folder / "loop.py"
    script.write_text(LOOP)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(settings)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": python_path(), "PATH": "", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_settings_of_the_loader_change_nothing_when_draws_are_fixed(tmp_path: Path) -> None:
    own, _ = batches(tmp_path, fixed=True)
    assert len(own) == 6
    assert own[0] != own[3]  # the second epoch is shuffled anew
    for settings in (
        {"num_workers": 2},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
    ):
        found, said = batches(tmp_path, fixed=True, **settings)
        assert found == own, settings
        assert "worker 0" in said  # the script's own function ran
    plain, _ = batches(tmp_path, fixed=False)
    with_workers, _ = batches(tmp_path, fixed=False, num_workers=2)
    assert plain != with_workers  # which is what is fixed


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_that_come_again_are_known_to_have_drawn_the_same(
    tmp_path: Path, workers: int
) -> None:
    anew, said = batches(tmp_path, fixed=True, shuffle=False, num_workers=workers)
    kept, _ = batches(tmp_path, fixed=True, shuffle=False, keeps=True)
    assert [row[0] for row in anew] == [row[0] for row in kept]  # type: ignore[index]
    assert "seen True True" in said
    _, shuffled = batches(tmp_path, fixed=True, num_workers=workers)
    assert "seen False True" in shuffled


@pytest.mark.slow
def test_draws_by_sample_are_the_same_in_other_batches(tmp_path: Path) -> None:
    def rows(**settings: object) -> list[object]:
        found, _ = batches(tmp_path, fixed=True, by_sample=True, **settings)
        return sorted(row for step in found for row in step[0])  # type: ignore[index]

    assert rows() == rows(size=3, num_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_whether_samples_draw_is_told_from_any_process(tmp_path: Path, method: str | None) -> None:
    settings = {"num_workers": int(method is not None), "multiprocessing_context": method}
    batches(tmp_path, fixed=True, by_sample=True, plain=True, **settings)
    assert not (tmp_path / "drawn").exists()
    batches(tmp_path, fixed=True, by_sample=True, **settings)
    assert (tmp_path / "drawn").exists()
