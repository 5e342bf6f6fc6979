"""Links that someone planted where we write are never followed; what we make is the user's own."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.commands.analyze import report_of_facts
from loaderdoctor.commands.output import deliver
from loaderdoctor.commands.run_folder import write_files
from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command import ConnectionListener
from loaderdoctor.instrument.wire.record_file import RecordWriter
from loaderdoctor.report import RunFolder, write_bytes
from loaderdoctor.report.charts.draw import write_plots
from loaderdoctor.report.traces.scalars import write_scalars
from loaderdoctor.sweep import timings_file as sweep_samples
from loaderdoctor.trace import read_trace
from tests.fuzz import seeds
from tests.report import samples

AT = 1_790_000_000.0


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("links") / "run.json"
    path.write_bytes(seeds.cut(seeds.TRACES / "pageable_big_copy.pt.trace.json.gz", 20_000))
    return path


def write_everything(trace: Path, output: Path) -> None:
    """Every kind of file that a command writes into a run folder."""
    attributed = attribute(read_trace(trace))
    report = report_of_facts(str(trace), facts_of(attributed), ())
    write_files(trace, attributed, report, output=output, tensorboard=None)
    run = RunFolder(output)
    write_scalars(samples.sweep(), run.tensorboard, console_text="x", at=AT)
    sweep_samples.write(output, [], options={}, spent_s=0.0)
    write_plots(samples.sweep(), run)


def files(folder: Path) -> Iterator[Path]:
    return (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.fixture
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names hold the time: the second run's are those of the first."""
    monkeypatch.setattr("loaderdoctor.commands.run_folder.time.time", lambda: AT)


@pytest.mark.usefixtures("fixed_time")
def test_no_file_of_a_run_is_written_through_a_link(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_everything(trace, tmp_path / "first")
    names = list(files(tmp_path / "first"))
    kinds = {name.suffix for name in names}
    assert {".json", ".txt", ".html", ".gz", ".npz", ".png", ".loaderdoctor"} <= kinds
    victim = tmp_path / "victim"
    victim.write_text("precious")
    create = RunFolder.create

    def planted(target: str, *, output: Path, at: float) -> RunFolder:
        run = create(target, output=output, at=at)
        for name in names:
            link = output / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(victim)
            part = link.with_name(f".{link.name}.{os.getpid()}.part")
            part.symlink_to(victim)
        return run

    monkeypatch.setattr(RunFolder, "create", staticmethod(planted))
    write_everything(trace, tmp_path / "second")
    assert victim.read_text() == "precious"
    assert victim.stat().st_nlink == 1
    for name in names:
        assert not (tmp_path / "second" / name).is_symlink(), name
    assert list(files(tmp_path / "second")) == names


@pytest.mark.parametrize("name", ["perfetto", "tensorboard", "plots", "tensorboard/baseline"])
def test_no_folder_of_a_run_is_entered_through_a_link(
    trace: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    create = RunFolder.create

    def planted(target: str, *, output: Path, at: float) -> RunFolder:
        run = create(target, output=output, at=at)
        if (output / name).is_dir():
            (output / name).rmdir()
        (output / name).symlink_to(elsewhere)
        return run

    monkeypatch.setattr(RunFolder, "create", staticmethod(planted))
    with pytest.raises(RunError, match="can't be written"):
        write_everything(trace, tmp_path / "run")
    assert list(elsewhere.rglob("*")) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user")
def test_the_folder_of_runs_may_be_no_other_users_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "loaderdoctor-runs").symlink_to(elsewhere)
    os.chown(tmp_path / "loaderdoctor-runs", 65534, 65534, follow_symlinks=False)
    with pytest.raises(RunError, match="another user's link"):
        RunFolder.create("train.py", parent=tmp_path, at=AT)
    assert list(elsewhere.iterdir()) == []


def test_the_file_of_json_replaces_a_link_in_a_folder_that_may_be_one(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "report.json").symlink_to(victim)
    deliver(samples.healthy(), json_target=str(tmp_path / "folder" / "report.json"), folder=None)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "real" / "report.json").is_symlink()


def test_the_file_of_json_may_be_a_pipe_which_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    deliver(samples.healthy(), json_target=str(pipe), folder=None)
    assert msgspec.json.decode(os.read(reading, 1 << 16))["schema"] == "loaderdoctor.report/1"
    os.close(reading)
    assert pipe.is_fifo()


def test_a_hard_link_keeps_the_other_name_as_it_is(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.link(victim, tmp_path / "report.json")
    write_bytes(tmp_path / "report.json", b"ours")
    assert victim.read_text() == "precious"


@pytest.mark.usefixtures("fixed_time")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_nothing_is_writable_by_others(trace: Path, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_everything(trace, tmp_path / "run")
    finally:
        os.umask(before)
    for path in (tmp_path / "run", *(tmp_path / "run").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & umask == 0, path


def test_sockets_and_records_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        listener = ConnectionListener()
        folder = Path(str(listener.address)).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        listener.close()
        assert not folder.exists()
        writer = RecordWriter(tmp_path, "worker")
        assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600
        writer.close()
    finally:
        os.umask(before)


def test_callers_that_do_not_know_the_key_keep_nobody_waiting() -> None:
    listener = ConnectionListener("127.0.0.1")
    assert isinstance(listener.address, tuple)
    silent, other = (socket.create_connection(listener.address) for _ in range(2))
    other.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with suppress(ConnectionResetError):
        while other.recv(1 << 10):
            pass  # until it is hung up on
    with pytest.raises(AuthenticationError):
        Client(listener.address, authkey=b"another")
    with Client(listener.address, authkey=listener.authkey):
        assert listener.wait(10.0) is not None
        listener.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(listener.address)
    silent.close()
    other.close()


def test_a_long_name_of_the_folder_for_temporary_files_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    listener = ConnectionListener()
    with Client(listener.address, authkey=listener.authkey):
        assert listener.wait(10.0) is not None
        listener.close()
    assert not Path(str(listener.address)).parent.exists()
    assert list(folder.iterdir()) == []


def test_a_record_file_is_never_an_existing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaderdoctor.instrument.wire.record_file.time.perf_counter_ns", lambda: 5)
    (tmp_path / f"worker-{os.getpid()}-5.rec").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        RecordWriter(tmp_path, "worker")
    assert not (tmp_path / "victim").exists()
