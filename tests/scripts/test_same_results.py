"""Ten shapes of scripts print the same losses and weights, hash by hash, with and without `run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.recorded import recorded, unwatched
from tests.scripts.running import SHAPES

pytestmark = pytest.mark.scripts

KINDS = (
    "plain",
    "shuffle",
    "weighted",
    "iterable",
    "two-loaders",
    "resume",
    "persistent",
    "generator",
    "accumulation",
    "break",
)


@pytest.mark.slow  # one shape is in the quick tests of test_recorded.py
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_the_unwatched_script(kind: str, tmp_path: Path) -> None:
    alone = unwatched(SHAPES / "hashes.py", kind, cwd=tmp_path)
    done = recorded(SHAPES / "hashes.py", kind, cwd=tmp_path)
    assert alone.returncode == done.code == 0, done.stderr
    assert len(alone.stdout.splitlines()) == 3
    assert done.stdout.splitlines()[:3] == alone.stdout.splitlines()
    assert done.run.n_steps > 100
