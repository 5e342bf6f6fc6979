"""Samples that another process hands out over a socket: python objects.py HOW [NUM_WORKERS].

latency: each request waits 12 ms, as many at once as there are; bandwidth: all requests share 16 MB
a second; pieces: a sample comes in 48 requests of 2 KiB, 1 ms each; local: none of it.
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

SAMPLE = 96 * 1024
PIECE = 2 * 1024
LATENCY_S, PIECE_S, BYTES_PER_S = 0.012, 0.001, 16e6
REQUEST = struct.Struct("<I")


class Objects(socketserver.BaseRequestHandler):
    how = "local"
    way = threading.Lock()  # what all share

    def handle(self) -> None:
        while asked := self.request.recv(REQUEST.size, socket.MSG_WAITALL):
            (n,) = REQUEST.unpack(asked)
            if self.how == "bandwidth":
                with self.way:
                    time.sleep(n / BYTES_PER_S)
            elif self.how != "local":
                time.sleep(LATENCY_S if self.how == "latency" else PIECE_S)
            self.request.sendall(bytes(n))


class Remote(Dataset[Tensor]):
    def __init__(self, port: int, how: str) -> None:
        self.port, self.piece = port, PIECE if how == "pieces" else SAMPLE
        self.pid, self.socket = -1, socket.socket()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        if self.pid != os.getpid():  # each process has a connection of its own
            self.pid, self.socket = os.getpid(), socket.create_connection(("127.0.0.1", self.port))
        data = bytearray()
        while len(data) < SAMPLE:
            self.socket.sendall(REQUEST.pack(self.piece))
            until = len(data) + self.piece
            while len(data) < until:
                data += os.read(self.socket.fileno(), until - len(data))
        return torch.frombuffer(data, dtype=torch.uint8).float()


def serve(how: str) -> None:
    Objects.how = how
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Objects) as server:
        print(server.server_address[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        server.serve_forever()


def main(how: str, num_workers: int) -> None:
    words = [sys.executable, __file__, "serve", how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        dataset = Remote(int(server.stdout.readline()), how)
        model = torch.nn.Linear(SAMPLE, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        for x in DataLoader(dataset, batch_size=4, num_workers=num_workers):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2)
