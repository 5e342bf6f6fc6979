"""Stated 95 % intervals hold about as often as they say, pooled over all series."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "coverage.py"


def loaded() -> ModuleType:
    """The benchmark, by its path: a package has its name."""
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    coverage = loaded()
    recorded, simulated = list(coverage.recorded(coverage.SERIES)), list(coverage.simulated(3))
    assert len(recorded) >= 10
    found = coverage.table([*recorded, *simulated], 120, seed=5)
    for n in coverage.N_ROUNDS:
        for which in (0, 1):
            cells = [found[one.name, n][which] for one in (*recorded, *simulated)]
            share, _ = coverage.pooled(cells)
            assert 0.92 <= share <= 0.985, (n, which, share)
