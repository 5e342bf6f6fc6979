"""With Python stacks, work in the loop is named by its own line, not by the loop's `for`."""

from __future__ import annotations

import gc
import json
import runpy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loaderdoctor.facts.trace import HostHotspot, TraceFacts
from loaderdoctor.instrument.session.profiling import KEY, EventProbe, WindowProfiler
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule
from loaderdoctor.trace import line_stack_samples, read_trace
from tests.trace_facts import trace_facts

# Each begins with what starts the profiler and ends with what stops it, as our hooks do.
IN_MODULE = """\
import time, torch
from torch.utils.data import DataLoader
a = torch.randn(16, 16)
for i, x in enumerate(DataLoader(list(range(14)))):
    boundary(i)
    torch.mm(a, a)
    time.sleep(0.03)  # WORK
    b = a
finish()
"""
IN_FUNCTION = """\
import time, torch
from torch.utils.data import DataLoader

def train(a):
    for i, x in enumerate(DataLoader(list(range(14)))):
        boundary(i)
        torch.mm(a, a)
        time.sleep(0.002)
        time.sleep(0.03)  # WORK
    finish()

def main():
    train(torch.randn(16, 16))

main()
"""
BEHIND_THE_INNER_LOOP = """\
import time, torch
from torch.utils.data import DataLoader
a = torch.randn(16, 16)
i = 0
for epoch in range(7):
    for x in DataLoader(list(range(2))):
        boundary(i)
        i += 1
        torch.mm(a, a)
    time.sleep(0.06)  # WORK
finish()
"""
PURE_PYTHON = """\
import torch
from torch.utils.data import DataLoader
a = torch.randn(16, 16)
for i, x in enumerate(DataLoader(list(range(14)))):
    boundary(i)
    torch.mm(a, a)
    total = 0
    for n in range(400000):
        total += n  # WORK
finish()
"""
SHAPES = {
    "module": IN_MODULE,
    "function": IN_FUNCTION,
    "behind": BEHIND_THE_INNER_LOOP,
    "pure": PURE_PYTHON,
}


def profiled(script: Path, trace: Path) -> TraceFacts:
    """Runs the script with a profiler that begins within its loop, at a fetch."""
    profiler = WindowProfiler(trace, ProfilerSchedule(warmup=1, with_stack=True), device=None)

    def boundary(i: int) -> None:
        if i == 1:
            profiler.start()
        elif i > 1:
            profiler.boundary(begins=True)

    calls: dict[str, Callable[..., Any]] = {"boundary": boundary, "finish": profiler.finish}
    runpy.run_path(str(script), init_globals=calls)
    return trace_facts(read_trace(trace))


def costliest(facts: TraceFacts) -> HostHotspot:
    return max(facts.host.hotspots, key=lambda hotspot: hotspot.ms_per_step)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_line_that_works_is_named_wherever_the_loop_stands(shape: str, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SHAPES[shape])
    work = next(n for n, text in enumerate(SHAPES[shape].splitlines(), 1) if "# WORK" in text)
    hotspot = costliest(profiled(script, tmp_path / "trace.json"))
    lines = (work, work - 1) if shape == "pure" else (work,)  # the inner `for` takes its part
    assert hotspot.line in lines, hotspot
    assert hotspot.file is not None
    assert Path(hotspot.file).name == "mine.py"
    assert f"({hotspot.line})" in hotspot.name


def test_without_looks_no_line_is_claimed_for_a_frame_that_was_running_already(
    tmp_path: Path,
) -> None:
    """A trace from elsewhere: the profiler names the line it found the frame at, the `for`."""
    script, trace = tmp_path / "mine.py", tmp_path / "trace.json"
    script.write_text(IN_MODULE)
    profiled(script, trace)
    document = json.loads(trace.read_text())
    assert document.pop(KEY)["looks"]
    trace.write_text(json.dumps(document))
    hotspot = costliest(trace_facts(read_trace(trace)))
    assert hotspot.line is None
    assert "mine.py: <module>" in hotspot.name
    assert "sleep" in hotspot.name


@pytest.mark.parametrize(
    "written",
    [
        None,
        7,
        {"marks": [], "places": [], "looks": [[0, 1, 0]]},
        {"marks": ["a"], "places": [["f", "x", "g"]], "looks": []},
        {"marks": ["a"], "places": [["f", 1, "g"]], "looks": [[0, -5, 0], [3, 5, 0], [0, 5, 9]]},
    ],
)
def test_looks_that_make_no_sense_are_none(written: object) -> None:
    assert line_stack_samples(written) == ()


def test_what_was_recorded_is_freed_without_a_collection() -> None:
    probe = EventProbe(None)
    gc.collect()
    gc.disable()
    try:
        probe.start()
        torch.ones(3).sum()
        recorded = weakref.ref(probe._profile.profiler)
        assert recorded() is not None
        assert probe.finish() > 0
        assert recorded() is None
    finally:
        gc.enable()
