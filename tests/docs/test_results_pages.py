"""docs/make_results.py: tables without empty columns, pictures small enough to keep."""

from __future__ import annotations

import argparse
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

REPORT = {
    "environment": {"device_name": None, "usable_cpus": 2, "python": "3.11", "torch": "2.14"},
    "verdict": {"summary": "Nothing worth changing."},
    "trials": [], "claims": [], "warnings": [], "method": [],
}  # fmt: skip
SCRIPT = Path(__file__).parents[2] / "docs" / "make_results.py"


@pytest.fixture(scope="module")
def make_results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_results", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_names_its_command_machine_and_revision(make_results: ModuleType) -> None:
    args = argparse.Namespace(machine="2 cores", revision="1a2b3c4", state="Nothing ran beside.")
    written = "\n".join(
        make_results.page(REPORT, "reuse", "loaderdoctor sweep --preset reuse", "", args)
    )
    pages = [page.read_text(encoding="utf-8") for page in make_results.RESULTS.rglob("*.md")]
    for page in (written, *pages):
        assert "\n    loaderdoctor sweep " in page
        assert re.search(r"\d+ usable CPUs, .*, revision [0-9a-f]{7}\.", page)


def test_columns_that_say_nothing_are_left_out_and_bars_escaped(make_results: ModuleType) -> None:
    lines = make_results.table(["row", "GPU", "ms"], [["a|b", "–", "1.0"], ["c", "–", "–"]])
    assert lines == ["| row | ms |", "|---|---|", "| a\\|b | 1.0 |", "| c | – |"]


def test_a_picture_of_any_size_becomes_a_small_one(
    make_results: ModuleType, tmp_path: Path
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (700, 1100, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    assert (tmp_path / "noise.png").stat().st_size > 10 * make_results.MAX_PLOT_BYTES
    made = make_results.small_png(tmp_path / "noise.png")
    assert made.startswith(b"\x89PNG") and len(made) <= make_results.MAX_PLOT_BYTES


def test_a_folder_that_is_no_run_is_refused_in_a_line(
    make_results: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="no sweep's run folder"):
        make_results.write(tmp_path, None)
