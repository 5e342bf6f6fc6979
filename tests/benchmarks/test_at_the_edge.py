"""When a row of at_the_edge.py is right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def edge() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("at_the_edge", FOLDER / "at_the_edge.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


def judged(
    edge: ModuleType, *, supply: float, waits: float = 0.0, said: float = 0.0, **of: Any
) -> dict[str, Any]:
    """A row of a step of 20 ms without its loader, whose report says `said` ms of input."""
    found = {"full": [20.0 + waits], "cached": [20.0], "alone": [20.0 * supply]}
    report = {
        "ablation": {
            "plain_ms": 20.0 + said,
            "input_ms": said,
            "ci_ms": {"input_ms": [said, said]},
        },
        "step": {"wall_ms": 20.0 + said},
        "shares": {"input": None},
        "verdict": {"bound": "compute", "severity": "none", "summary": "…"} | of.get("verdict", {}),
        "findings": [{"kind": kind} for kind in of.get("findings", ())],
        "environment": {"usable_cpus": 4.0, "torch": "2"},
    }
    row: dict[str, Any] = edge.compared([found, found], report, ratio=supply, workers=3)
    return row


def test_the_edge_must_be_said_where_it_is_and_not_far_from_it(edge: ModuleType) -> None:
    said = ("workers-just-keep-up",)
    assert judged(edge, supply=0.96, findings=said)["right"]
    assert not judged(edge, supply=0.96)["right"]
    assert judged(edge, supply=0.7)["right"]
    assert not judged(edge, supply=0.7, findings=said)["right"]
    for either in ((), said):
        assert judged(edge, supply=0.86, findings=either)["right"]


def test_a_share_far_off_and_a_verdict_on_nothing_are_wrong(edge: ModuleType) -> None:
    called = {"bound": "input", "severity": "moderate"}
    assert judged(edge, supply=1.2, waits=4.0, said=4.0, verdict=called)["right"]
    assert not judged(edge, supply=1.2, waits=4.0, said=0.0)["right"]
    assert not judged(edge, supply=1.0, said=0.8, verdict=called)["right"]
    host = {"bound": "host", "severity": "high"}
    assert judged(edge, supply=0.98, waits=1.6, said=1.6, verdict=host)["right"]
