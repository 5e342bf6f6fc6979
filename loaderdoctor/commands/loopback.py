"""Runs a module that serves HTTP so that only this machine reaches it: `python -m … MODULE ARGS`.

For servers of others that listen on every network interface and give whatever page is open in the
browser leave to read them (vizviewer does both). Their own options can't change it, so the standard
library below them is told to: a socket server binds to the loopback address whatever it asks for,
no answer allows other origins, and a request by another name than this machine's (DNS rebinding)
is refused. For this process only, before the module is imported.
"""

from __future__ import annotations

import runpy
import socket
import socketserver
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

LOOPBACK: dict[int, str] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_NAMES = ("127.0.0.1", "localhost", "[::1]")


def keep_local() -> None:
    """From now on HTTP servers of this process are reached from this machine only."""
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
