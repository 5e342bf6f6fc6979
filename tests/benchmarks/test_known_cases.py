"""How reports of known scripts are judged (benchmarks/known_cases.py)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.findings.rules import RULES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def cases() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("known_cases")
    sys.path.remove(str(BENCHMARKS))


def report_of(bound: str, *kinds: str, **more: Any) -> dict[str, Any]:
    return {
        "verdict": {"bound": bound, "severity": "high"},
        "step": {"wall_ms": 20.0},
        "wall": {"total_ms": 55.0},
        "shares": {"input": 0.3},
        "findings": [{"kind": kind} for kind in kinds],
        "recommendations": [],
        "trials": [],
    } | more


@pytest.mark.parametrize(
    ("given", "report", "wrong"),
    [
        ({"bounds": ("input",)}, report_of("input"), []),
        ({"bounds": ("input",)}, report_of("compute"), ["bound"]),
        ({"bounds": ("input",)}, {}, ["no report"]),
        ({"bounds": ("input",), "kinds": ("a",), "never": ("b",)}, report_of("input", "a"), []),
        (
            {"bounds": ("input",), "kinds": ("a",), "never": ("b",)},
            report_of("input", "b"),
            ["no a", "false b"],
        ),
        ({"bounds": ("input",), "wall_ms": (50.0, 60.0)}, report_of("input"), []),
        ({"bounds": ("input",), "wall_ms": (50.0, 60.0)}, report_of("input", wall=None), ["wall"]),
        ({"bounds": ("input",), "input_share": (0.0, 0.1)}, report_of("input"), ["input share"]),
        ({"bounds": ("compute", "input"), "making_ms": 6.0}, report_of("input"), []),
        ({"bounds": ("compute", "input"), "making_ms": 6.0}, report_of("compute"), ["bound"]),
        ({"bounds": ("compute", "input"), "making_ms": 4.0}, report_of("input"), ["input share"]),
        (
            {"bounds": ("compute", "input"), "making_ms": 1.8},
            report_of("compute", shares={"input": 0.06}),
            [],
        ),
        (
            {"bounds": ("input",), "making_ms": 6.0},
            report_of("input", step={"wall_ms": None}),
            ["input share"],
        ),
        ({"bounds": ("input",), "says": "words"}, report_of("input"), ["nothing of 'words'"]),
        ({"bounds": ("input",), "tries": True}, report_of("input"), ["nothing was tried"]),
        ({"bounds": ("input",), "tries": True}, report_of("input", trials=[{}]), []),
    ],
)
def test_a_report_of_a_known_script_is_judged(
    cases: Any, given: dict[str, Any], report: dict[str, Any], wrong: list[str]
) -> None:
    assert cases.why_wrong(cases.Case(**given), report) == wrong


def test_every_finding_that_is_asked_about_exists(cases: Any) -> None:
    known = {rule.__name__.replace("_", "-") for rule in RULES}
    asked = {kind for case in cases.CASES.values() for kind in (*case.kinds, *case.never)}
    assert asked <= known, asked - known
