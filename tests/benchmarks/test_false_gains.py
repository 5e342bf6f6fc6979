"""Diagnoses of loops where no setting helps say so; where one does by a good part, they find it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def false_gains(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, which imports its neighbour `coverage` (the name of a package, too)."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("coverage", "false_gains"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("false_gains")
    monkeypatch.delitem(sys.modules, "coverage")  # pytest's own may be wanted later
    return module


def test_noise_alone_makes_hardly_any_diagnosis_recommend_a_setting(
    false_gains: ModuleType,
) -> None:
    every = [*false_gains.recorded(false_gains.SERIES), *false_gains.simulated(1)]
    found = [
        false_gains.false_and_found(false_gains.diagnosed(one, gain=0.0, seed=i), gain=0.0)
        for one in every
        for i in range(4)
    ]
    assert len(found) >= 90
    assert sum(wrong for wrong, _ in found) <= 0.05 * len(found)


def test_a_change_that_halves_a_steady_step_is_found(false_gains: ModuleType) -> None:
    steady = [x for x in false_gains.simulated(1) if "10 %" in x.name]
    assert len(steady) == 2
    found = [
        false_gains.false_and_found(false_gains.diagnosed(one, gain=0.5, seed=i), gain=0.5)
        for one in steady
        for i in range(5)
    ]
    assert all(hit for _, hit in found)
    assert sum(wrong for wrong, _ in found) <= 1  # how often noise passes is the test above
