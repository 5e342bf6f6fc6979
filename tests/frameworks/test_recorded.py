"""`run` of trainers' scripts: every batch, loss and weight is that of the script alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.recorded import recorded, unwatched

pytestmark = pytest.mark.frameworks
SCRIPT = Path(__file__).parent / "scripts" / "hashed.py"
N_STEPS = 1200  # 10 s: a trial is paid for, and judged, before the end


def hash_in(stdout: str) -> str:
    (line,) = [x for x in stdout.splitlines() if x.startswith("hash ")]
    return line


@pytest.mark.parametrize("kind", ["lightning", "pytorch_lightning", "transformers", "accelerate"])
def test_a_trainers_training_is_the_same_recorded_and_tuned(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(kind)
    alone = unwatched(SCRIPT, kind, str(tmp_path / "out"), cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    for options in ([], ["--tune=exact"]):
        folder = tmp_path / "-".join(["with", *options])
        folder.mkdir()
        done = recorded(SCRIPT, kind, str(tmp_path / "out"), cwd=folder, options=options)
        assert done.code == 0, done.stderr
        assert hash_in(done.stdout) == hash_in(alone.stdout), done.run.tuning
        assert done.run.complete
        assert done.run.n_steps == N_STEPS
    tuning = done.run.tuning
    assert tuning is not None
    assert tuning.not_tuned or tuning.tried, tuning  # not tuned: it fetches a batch ahead itself
