"""How the other files that are read are judged: report.json, records, samples, run folders, IDX."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from loaderdoctor.attribution.workers import worker_facts
from loaderdoctor.commands.sweep.plan import SweepOptions
from loaderdoctor.commands.view import perfetto_traces, tensorboard_folder
from loaderdoctor.errors import LoaderdoctorError, UsageError
from loaderdoctor.instrument.wire import worker_records
from loaderdoctor.report import read_report
from loaderdoctor.report.comparison import compare, render_comparison
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import timings_file
from loaderdoctor.tryout import Trial
from loaderdoctor.tryout.ranking import rank
from tests.fuzz.subject import check_line, check_text, refused

RECIPE = Path(__file__).parents[2] / "recipes" / "mnist" / "idx.py"
SEPARATOR = b"\n\0next file\0\n"  # of inputs that are several files


def compared(path: Path, other: Path) -> str | None:
    """Compare a report.json with a sound one: the refusal, or None where it was compared."""
    try:
        report = read_report(path)
    except LoaderdoctorError as error:
        return refused(path, error)
    for pair in ((report, read_report(other)), (read_report(other), report)):
        console_of(render_comparison(compare(*pair), ("a", "b")))
    return None


def records(folder: Path) -> str | None:
    """Merge worker records: the refusal, or None where they were read and facts made of them."""
    try:
        log = worker_records.read(folder)
    except LoaderdoctorError as error:
        return refused(folder, error, None)
    # The whole of what was recorded, and a window of the sound records' own times.
    for start_ns, end_ns in ((-1, 1 << 62), (50, 450)):
        facts = worker_facts(log, start_ns, end_ns, n_steps=4)
        if facts is None:
            continue
        for field in fields(facts):
            value = getattr(facts, field.name)
            assert not isinstance(value, float) or math.isfinite(value), (field.name, value)
    return None


def resumed(folder: Path) -> str | None:
    """Go on with an interrupted sweep up to where its script starts; then rank what was measured.

    Returns the refusal, or None where there would be trials to go on with.
    """
    try:
        description, measurements = timings_file.read(folder)
        options = SweepOptions(resume=folder).resumed(description.options)
    except UsageError as error:
        return refused(folder, error)
    assert options.rounds is None or options.rounds >= 1, options.rounds
    assert options.budget_s is None or options.budget_s > 0, options.budget_s
    trials = [Trial(index=i, settings=Settings(num_workers=i)) for i in (0, 1)]
    try:
        timings_file.restore(trials, description, measurements)
    except UsageError as error:
        check_line(str(error))
        return str(error)
    ranking = rank(trials, own=Settings(num_workers=0), steps_per_epoch=100)
    for result in ranking.results:
        for name in ("wall_ms", "within_ms", "cost_ms"):
            if (found := getattr(result, name)) is not None:
                assert math.isfinite(found.value), (name, found)
                assert found.value > 0, (name, found)
        resources = result.resources
        for name, number in (
            ("samples_per_s", result.samples_per_s),
            ("epoch_s", result.epoch_s),
            ("startup_s", resources.startup_s),
            ("boundary_ms", result.boundary_ms),
            ("host_bytes", resources.host_bytes),
        ):
            if number is not None:
                assert math.isfinite(number), (name, number)
                assert number >= 0, (name, number)
    return None


def viewed(folder: Path, data: bytes) -> str | None:
    """What `view` would serve of a run folder that holds the entries that `data` lists."""
    _lay_out(folder, data)
    said = [_refusal(find, folder) for find in (tensorboard_folder, perfetto_traces)]
    return next((text for text in said if text is not None), None)


def idx(path: Path) -> str | None:
    """Read one IDX file of the MNIST recipe: the refusal, or None where it was read."""
    module = _recipe()
    try:
        found = module.read_idx(path)
    except module.DataError as error:
        text = str(error)
        assert str(path) in text, text[:300]
        check_line(text)
        return text
    assert found.nbytes <= max(1 << 26, path.stat().st_size), found.shape
    return None


def console_of(renderable: Any) -> str:
    """Text of something for the console, at 100 columns."""
    out = StringIO()
    Console(file=out, width=100, color_system=None).print(renderable)
    check_text(out.getvalue())
    return out.getvalue()


def _refusal(find: Callable[[Path], object], folder: Path) -> str | None:
    try:
        find(folder)
    except UsageError as error:
        check_line(str(error))
        return str(error)
    return None


@cache
def _recipe() -> Any:
    spec = importlib.util.spec_from_file_location("mnist_idx", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lay_out(folder: Path, data: bytes) -> None:
    """Make files, folders and links in `folder` as a JSON list of [kind, name, target] says."""
    folder.mkdir()
    for kind, name, target in json.loads(data):
        path = folder / name.replace("..", "_").lstrip("/").replace("\0", "_")[:200]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                path.mkdir(exist_ok=True)
            elif kind == "link":
                path.symlink_to(target.replace("\0", "_")[:200])
            else:
                path.write_bytes(target.encode(errors="replace"))
        except (OSError, ValueError):  # no name for this file system
            continue
