"""The plugin's figures beside ours, by the script that makes the table of docs/tensorboard.md."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import CASES, trace_path

ROOT = Path(__file__).parents[3]
# What its model can express is within this; docs/tensorboard.md says what it can't.
TOLERANCE = 0.05
QUICK = ("recreated_iterator", "one_slow_sample")


@pytest.fixture(scope="module")
def script() -> Any:
    path = ROOT / "benchmarks" / "plugin_figures.py"
    spec = importlib.util.spec_from_file_location("plugin_figures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_the_plugins_parser_agrees_and_lanes_change_nothing(
    case: str, script: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = script.write_dialect(trace_path(case), tmp_path / script.FILE, with_tracks=False)
    with caplog.at_level(logging.ERROR, "pytorch_profiler"):
        theirs = script.said_by_parser(tmp_path / script.FILE)
    # Added waits touch other spans at times where a double holds about a nanosecond.
    assert "should not intersect" not in caplog.text
    assert theirs.n_steps == ours.n_steps == 20
    assert theirs.input_share == pytest.approx(ours.input_share, abs=TOLERANCE)
    script.write_dialect(trace_path(case), tmp_path / script.FILE, with_tracks=True)
    assert script.said_by_parser(tmp_path / script.FILE) == theirs


@pytest.mark.slow
def test_one_tensorboard_serves_all_cases_with_our_figures(script: Any) -> None:
    """A real TensorBoard, asked over HTTP: ours, and what it makes of torch's own files."""
    seen = list(script.rows([trace_path(case) for case in CASES]))
    assert [name for name, *_ in seen] == list(CASES)
    for name, ours, parsed, api, untouched in seen:
        assert api.n_steps == parsed.n_steps == ours.n_steps == 20, name
        assert api.input_share == pytest.approx(parsed.input_share, abs=0.001), name
        assert api.input_share == pytest.approx(ours.input_share, abs=TOLERANCE), name
        assert untouched.n_steps >= 40, name
        assert untouched.input_share == 0.0, name


def test_the_page_tells_of_every_recorded_trace() -> None:
    page = (ROOT / "docs" / "tensorboard.md").read_text()
    rows = re.findall(r"\| `(\w+)` \| (\d+) / (\d+) \| ([\d.]+) / ([\d.]+) \|", page)
    assert [name for name, *_ in rows] == list(CASES)
    for _, n_ours, n_theirs, ours, theirs in rows:
        assert n_ours == n_theirs
        assert abs(float(ours) - float(theirs)) < 100 * TOLERANCE
