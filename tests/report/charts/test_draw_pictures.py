"""PNG files of a sweep in the run folder: which ones there are, and that they are pictures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from loaderdoctor.report import RunFolder
from loaderdoctor.report.charts.draw import write_plots
from loaderdoctor.report.charts.plots import _whiskers
from loaderdoctor.report.charts.sheet import WIDE, labelled_rows
from loaderdoctor.report.model import Report, Trial
from tests.report import samples

PNG = b"\x89PNG\r\n\x1a\n"


def row(name: str, group: str, step_ms: float, *, resident: bool = False) -> Trial:
    settings = {"num_workers": int(name), "prefetch_factor": 2, "resident": resident}
    one = samples.trial(name, step_ms, settings=settings)
    return msgspec.structs.replace(
        one,
        row=name,
        group=group,
        epoch_s=step_ms / 10,
        gpu_peak_allocated_bytes=2**28,
        gpu_peak_reserved_bytes=2**29,
        host_bytes=2**30,
    )


def names(tmp_path: Path, report: Report) -> set[str]:
    folder = RunFolder.create("x", output=tmp_path / "run", at=0.0)
    write_plots(report, folder)
    files = list((folder.path / "plots").glob("*.png"))
    assert all(path.read_bytes().startswith(PNG) for path in files)
    return {path.stem for path in files}


def test_a_sweep_has_times_shares_memory_and_the_grid_of_workers_and_prefetch(
    tmp_path: Path,
) -> None:
    trials = tuple(
        msgspec.structs.replace(
            samples.trial(f"{n} workers, prefetch {p}", 10.0 / n + p / 10),
            settings={"num_workers": n, "prefetch_factor": p},
            gpu_peak_allocated_bytes=2**28,
            gpu_peak_reserved_bytes=2**29,
            host_bytes=2**30,
        )
        for n in (1, 2)
        for p in (2, 4)
    )
    report = msgspec.structs.replace(samples.sweep(), trials=trials)
    assert names(tmp_path, report) == {
        "times",
        "shares",
        "workers-prefetch",
        "gpu-memory",
        "host-memory",
    }


def test_groups_get_an_overview_and_a_picture_each_with_and_without_resident(
    tmp_path: Path,
) -> None:
    trials = tuple(
        row(str(n), group, 10.0 + n, resident=n == 2)
        for group in ("10 %", "40 %")
        for n in range(3)
    )
    found = names(tmp_path, msgspec.structs.replace(samples.sweep(), trials=trials))
    assert {"times-overview", "times-10", "times-40"} <= found
    assert {"gpu-memory-overview", "gpu-memory-10", "gpu-memory-40"} <= found
    assert {"gpu-memory-without-resident-overview", "gpu-memory-without-resident-10"} <= found
    assert {"host-memory-overview", "host-memory-10"} <= found


def test_an_interval_wider_than_its_value_ends_at_zero() -> None:
    rows = labelled_rows(WIDE, ["a", "b"])
    assert {x for start, end in _whiskers(rows, 0, (-3.0, 13.0)) for x, _ in (start, end)} == {
        0.0,
        13.0,
    }
    assert _whiskers(rows, 1, None) == ()


def test_names_of_the_user_are_no_formulas(tmp_path: Path) -> None:
    report = msgspec.structs.replace(
        samples.sweep(), trials=(samples.trial("$x_{$ \x1b[31m", 3.0), samples.trial("$$", 4.0))
    )
    assert "times" in names(tmp_path, report)


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create("x", output=tmp_path / "run", at=0.0)
    write_plots(samples.nothing_recorded(), folder)
    assert not (folder.path / "plots").exists()


def test_matplotlib_is_loaded_only_to_draw() -> None:
    code = "import sys, loaderdoctor.commands.sweep; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
