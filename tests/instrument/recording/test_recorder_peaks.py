"""The allocator's peaks are the script's own in a recorded run, and start anew in other windows."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.instrument import recording
from loaderdoctor.instrument.recording import Recorder
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.system import memory
from loaderdoctor.instrument.wire.protocol import WindowDone
from tests.instrument.watched import QueuedChannel, counting_loop, loader_of, request, watch


def test_a_recorded_run_starts_no_peak_of_the_scripts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resets: list[object] = []
    monkeypatch.setattr(memory, "reset_gpu_peaks", resets.append)
    monkeypatch.setattr(recording, "FIRST_STEPS", (8, 8))
    loop = counting_loop(loader_of(80), 2, [])
    session = Session(QueuedChannel(), run_dir=tmp_path, records_workers=False)
    trace = str(tmp_path / "trace.json")
    session.record_to_end(lambda session: Recorder(session, trace_path=trace))
    hooks = Hooks(session)
    hooks.watch()
    try:
        loop()
    finally:
        session.script_over("script-ended", 0)
        hooks.remove()
    sent = session.channel.sent  # type: ignore[attr-defined]  # of a QueuedChannel
    assert [m.mode for m in sent if isinstance(m, WindowDone)] == ["plain", "profiled", "plain"]
    assert resets == []
    watch(loop, request(1, "plain"))
    assert resets == [None]
