"""How reports of slow mounts are judged (benchmarks/slow_storage.py)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
slow_storage = importlib.import_module("slow_storage")
sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("how", "bound", "kinds", "right"),
    [
        ("latency", "input", ["latency-bound-storage", "many-small-files"], True),
        ("latency", "compute", ["latency-bound-storage"], False),
        ("latency", "input", ["too-few-workers"], False),
        ("bandwidth", "input", ["bandwidth-bound-storage", "latency-bound-storage"], False),
        ("decode", "input", ["too-few-workers"], True),
        ("decode", "host", ["too-few-workers"], False),
        ("local", "host", [], True),
        ("local", "input", [], False),
        ("local", "host", ["many-small-files"], False),
    ],
)
def test_a_row_is_right_by_its_verdict_and_its_findings(
    how: str, bound: str, kinds: list[str], right: bool
) -> None:
    assert slow_storage.is_right(how, bound, kinds) is right


def test_every_mount_has_bounds_that_are_right() -> None:
    assert slow_storage.BOUNDS.keys() == slow_storage.SAYS.keys()
