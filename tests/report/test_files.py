"""The run folder: nothing overwritten, nothing followed, nothing left half-written."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.report import (
    RunFolder,
    atomic_writer,
    decode_report,
    encode_report,
    plain_name,
    read_report,
    trial_run,
    write_bytes,
)
from loaderdoctor.report.console import console_text
from tests.report import samples

AT = 1_770_000_000.0


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_while_writing(path: Path, error: Exception) -> None:
    with atomic_writer(path) as out:
        out.write(b"half")
        raise error


def test_layout_is_what_other_programs_expect(tmp_path: Path) -> None:
    run = RunFolder.create("src/train.py", parent=tmp_path, at=AT)
    report = samples.sweep()
    run.write_report(report, console_text(report))
    assert run.path.parent.name == "loaderdoctor-runs"
    assert run.path.name.endswith("-train")
    assert names(run.path) == ["console.txt", "perfetto", "report.json", "tensorboard"]
    assert read_report(run.path).verdict == report.verdict
    trace = run.plugin_trace(trial_run(3), worker="node.local_0", at_ns=17)
    assert trace.relative_to(run.path) == Path(
        "tensorboard/trial-03/node-local_0.17.pt.trace.json.gz"
    )
    assert run.perfetto_trace("baseline").name == "baseline.json.gz"


def test_a_run_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    RunFolder.create("train.py", parent=tmp_path, at=AT).discard_if_empty()
    RunFolder.create("train.py", output=tmp_path / "new" / "run", at=AT).discard_if_empty()
    assert names(tmp_path) == []


def test_what_was_there_or_was_written_stays(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    RunFolder.create("train.py", output=mine, at=AT).discard_if_empty()
    assert names(tmp_path) == ["mine"]
    assert names(mine) == []
    first = RunFolder.create("train.py", parent=tmp_path, at=AT)
    second = RunFolder.create("train.py", parent=tmp_path, at=AT)
    first.discard_if_empty()
    assert not first.path.exists()
    assert second.path.exists()  # another run's
    report = samples.sweep()
    second.write_report(report, console_text(report))
    before = names(second.path)
    second.discard_if_empty()
    assert names(second.path) == before


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    first = RunFolder.create("train.py", parent=tmp_path, at=AT)
    second = RunFolder.create("train.py", parent=tmp_path, at=AT)
    assert first.path != second.path


def test_a_folder_with_something_in_it_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        RunFolder.create("train.py", output=tmp_path, at=AT)
    assert names(tmp_path) == ["mine.txt"]
    with pytest.raises(UsageError, match="is a file"):
        RunFolder.create("train.py", output=tmp_path / "mine.txt", at=AT)


def test_an_empty_or_missing_output_folder_is_used(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert RunFolder.create("t", output=empty, at=AT).path == empty
    deep = tmp_path / "a" / "b"
    assert RunFolder.create("t", output=deep, at=AT).path == deep


def test_files_have_the_mode_of_any_file_the_user_makes(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run = RunFolder.create("train.py", parent=tmp_path, at=AT)
        run.write_report(samples.healthy(), "x")
        assert stat.S_IMODE(run.report.stat().st_mode) == 0o640
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o750
    finally:
        os.umask(before)


def test_planted_links_are_replaced_never_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run = RunFolder.create("train.py", output=tmp_path / "run", at=AT)
    run.report.symlink_to(victim)
    (run.path / f".report.json.{os.getpid()}.part").symlink_to(victim)
    run.write_report(samples.healthy(), "x")
    assert victim.read_text() == "precious"
    assert not run.report.is_symlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run.tensorboard / "trial-01").symlink_to(elsewhere)
    with pytest.raises(RunError, match="trial-01"):
        run.plugin_trace("trial-01", worker="w", at_ns=1)
    with pytest.raises(RunError):
        write_bytes(run.tensorboard / "trial-01" / "x", b"x")
    assert names(elsewhere) == []


def test_a_failed_write_keeps_the_earlier_file_and_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_bytes(path, b"first")
    with pytest.raises(ZeroDivisionError):
        fail_while_writing(path, ZeroDivisionError())
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["report.json"]


def test_a_full_disk_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RunError, match=r"report\.json: can't be written .* --output") as caught:
        fail_while_writing(tmp_path / "report.json", full)
    assert "Free some space" in str(caught.value)
    assert names(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
def test_a_write_the_kernel_refuses_is_reported(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for a full disk: the kernel refuses the write."""
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from loaderdoctor.errors import RunError\n"
        "from loaderdoctor.report import write_bytes\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    write_bytes(Path(sys.argv[1]), b'x' * 5000)\n"
        "except RunError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "can't be written" in done.stdout
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_written_fails_at_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunError, match="can't be written"):
        RunFolder.create("train.py", parent=blocked, at=AT)


@pytest.mark.parametrize(
    ("text", "name"),
    [("../../etc/passwd", "etc-passwd"), ("größe ü", "gr-e"), ("", "run"), ("a" * 99, "a" * 40)],
)
def test_names_are_plain(text: str, name: str) -> None:
    assert plain_name(text) == name


def test_git_leaves_runs_out_whatever_the_repository_ignores(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    run = RunFolder.create("train.py", parent=tmp_path, at=AT)
    run.write_report(samples.healthy(), "x")
    status = ["git", "-C", str(tmp_path), "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(status, check=True, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize("text", ["!*\n", ""])
def test_a_gitignore_of_the_users_is_kept(tmp_path: Path, text: str) -> None:
    runs = tmp_path / "loaderdoctor-runs"
    runs.mkdir()
    (runs / ".gitignore").write_text(text)
    run = RunFolder.create("train.py", parent=tmp_path, at=AT)
    run.discard_if_empty()
    assert (runs / ".gitignore").read_text() == text


def test_a_gitignore_deleted_by_the_user_does_not_come_back(tmp_path: Path) -> None:
    RunFolder.create("train.py", parent=tmp_path, at=AT)
    (tmp_path / "loaderdoctor-runs" / ".gitignore").unlink()
    RunFolder.create("train.py", parent=tmp_path, at=AT)
    assert not (tmp_path / "loaderdoctor-runs" / ".gitignore").exists()


def test_a_gitignore_edited_meanwhile_stays_with_its_folder(tmp_path: Path) -> None:
    run = RunFolder.create("train.py", parent=tmp_path, at=AT)
    ignore = run.path.parent / ".gitignore"
    ignore.write_text("*.gz\n")
    run.discard_if_empty()
    assert ignore.read_text() == "*.gz\n"


def test_a_path_that_is_no_utf8_costs_no_report(tmp_path: Path) -> None:
    report = msgspec.structs.replace(samples.input_bound(), target="caf\udce9/train.py")
    read = decode_report(encode_report(report), source=tmp_path)
    assert read == msgspec.structs.replace(report, target="caf?/train.py")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("environment", "usable_cpus"), "x"),
        (("trials", 1, "settings", "worker_cpus"), ["all"]),
        (("loaders", 0, "settings", "num_workers"), {}),
        (("findings", 0, "evidence", "batch_ms"), {"a": 1}),
        (("findings", 0, "evidence", "batch_ms"), [1.0, "x"]),
        (("workers", "lines"), [{"share": "x"}]),
        (("claims", 0), {}),
    ],
)
def test_a_report_that_others_wrote_is_shown_or_refused(
    path: tuple[str | int, ...], value: object, tmp_path: Path
) -> None:
    cpu = msgspec.to_builtins(samples.cpu_only())
    found = {**msgspec.to_builtins(samples.sweep()), "workers": cpu["workers"]}
    whole = msgspec.json.decode(msgspec.json.encode(found))
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    try:
        report = decode_report(msgspec.json.encode(whole), source=tmp_path)
    except UsageError:
        return
    assert console_text(report)
    assert console_text(report, brief=True)
