"""Disks that are full, small or read-only, and two runs in one place."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.running import Place, mounted, script, why_no_mounts

slow = pytest.mark.slow


@pytest.fixture
def mountable(tmp_path: Path) -> Path:
    reason = why_no_mounts()
    if reason is not None:
        pytest.skip(reason)
    return tmp_path


@pytest.mark.parametrize(
    "size",
    [
        pytest.param("16k", marks=slow),
        pytest.param("200k", marks=slow),
        pytest.param("64k", marks=slow),
    ],
)
def test_on_a_full_disk_the_report_comes_on_the_terminal(size: str, mountable: Path) -> None:
    (mountable / "small").mkdir()
    path = script(mountable)
    with mounted(mountable, [(f"size={size}", str(mountable / "small"))]) as place:
        done = place.run("diagnose", "--budget", "6", "--no-verify", "--output", "small/run", path)
        kept = [p.name for p in Path(f"/proc/{place.holder}/root{mountable}/small").rglob(".*")]
    assert done.code == 1, done.stderr
    assert "loaderdoctor/commands" not in done.stderr
    assert "Input-bound" in done.stdout
    assert "No space left on device" in done.last_line
    assert "--output" in done.last_line
    assert kept == []


def test_workers_of_a_run_outlive_a_full_disk_for_temporary_files(mountable: Path) -> None:
    (mountable / "small").mkdir()
    ends = 'def fault(where, n):\n    if where == "step" and n == 60: sys.exit(7)'
    path = script(mountable, ends, workers=2)
    with mounted(mountable, [("size=4k", str(mountable / "small"))]) as place:
        place.more["TMPDIR"] = str(mountable / "small")
        done = place.run("run", "--output", "out", path)
    assert done.code == 7, done.stderr
    assert "step 60" in done.stdout


@slow
def test_a_sweep_measures_on_when_the_disk_is_full(mountable: Path) -> None:
    (mountable / "small").mkdir()
    path = script(mountable)
    with mounted(mountable, [("size=32k", str(mountable / "small"))]) as place:
        done = place.run(
            "sweep", "--grid", "num_workers=0,1", "--budget", "15", "--output", "small/run", path
        )
    assert done.code == 1, done.stderr
    assert "loaderdoctor/commands" not in done.stderr
    assert "No space left on device" in done.last_line
    assert "num_workers=1" in done.stdout, done.stdout[-3000:]


def test_a_read_only_folder_fails_before_anything_runs(mountable: Path) -> None:
    path = script(mountable)
    (mountable / "fixed").mkdir()
    with mounted(mountable, [("ro,size=16k", str(mountable / "fixed"))]) as place:
        done = place.run("diagnose", "--output", "fixed/run", path)
        assert done.code == 1
        assert done.stderr.startswith("loaderdoctor: ")
        assert len(done.stderr.splitlines()) == 1
        assert "Read-only file system" in done.stderr
        assert "--output DIR" in done.stderr
        assert done.stdout == ""


@slow
def test_a_read_only_current_folder_asks_for_another(mountable: Path) -> None:
    (mountable / "fixed").mkdir()
    path = script(mountable)
    with mounted(mountable, [("ro,size=16k", str(mountable / "fixed"))]) as place:
        inner = Place(mountable / "fixed", place.holder)
        for command in ("diagnose", "sweep"):
            done = inner.run(command, path)
            assert done.code == 1
            assert "Read-only file system" in done.last_line
            assert "--output DIR" in done.last_line
        done = inner.run(
            "diagnose", "--budget", "4", "--no-verify", "--output", mountable / "out", path
        )
        assert done.code == 0, done.stderr
        assert (mountable / "out" / "report.json").exists()


def test_a_folder_of_someone_else_is_asked_about_in_one_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; see the read-only mounts")
    (tmp_path / "fixed").mkdir()
    (tmp_path / "fixed").chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = Place(tmp_path).run("diagnose", "--output", "fixed/run", script(tmp_path))
    assert done.code == 1
    assert "Permission denied" in done.last_line
    assert "--output DIR" in done.last_line


@slow
def test_two_runs_at_once_get_a_folder_each(place: Place) -> None:
    path = script(place.path)
    words = ("diagnose", "--budget", "4", "--no-verify", "--no-ablation", path)
    both = [place.start(*words) for _ in range(2)]
    for command in both:
        _, err = command.communicate(timeout=120)
        assert command.returncode == 0, err
    runs = sorted((place.path / "loaderdoctor-runs").glob("*-*"))
    assert len(runs) == 2
    for run in runs:
        assert (run / "report.json").exists()
        assert list(run.glob("perfetto/*.json.gz"))
    assert place.left_after(2.0) == []


@pytest.fixture
def tiny_shm(mountable: Path) -> Iterator[Place]:
    with mounted(mountable, [("size=1m", "/dev/shm")]) as found:
        yield found


# Four samples of 2 MB do not fit into 1 MB.
WIDE = 1 << 19


@slow
def test_a_trial_for_which_shared_memory_is_too_small_is_not_run_and_says_what_to_do(
    tiny_shm: Place,
) -> None:
    done = tiny_shm.diagnose(script(tiny_shm.path, width=WIDE), budget_s=8)
    assert done.code == 0, done.stderr
    done.check_clean()
    told = [*(t.reason or "" for t in done.said.trials), *(w.text for w in done.said.warnings)]
    told += [w.reason for w in done.said.not_advised]
    assert any("/dev/shm" in text for text in told), told
    assert any("--shm-size" in text for text in told), told


@slow
def test_a_loop_that_dies_of_a_small_shared_memory_is_told_what_to_do(tiny_shm: Place) -> None:
    done = tiny_shm.diagnose(script(tiny_shm.path, width=WIDE, workers=1))
    assert done.code == 1
    done.check_clean()
    assert "Bus error" in done.stderr or "shared memory" in done.stderr
    assert "--shm-size" in done.last_line
    assert "1.0 MB" in done.last_line or "1 MB" in done.last_line
