"""Samples that come over HTTP, by urllib3: python refused.py HOW.

refused: the server refuses each object twice (503) before it hands it out, and the client pauses
for 40 ms before the third try; waits: it waits for these 40 ms itself, and refuses nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import urllib3
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

SAMPLE = 4096
PAUSE_S = 0.04
RETRIES = urllib3.Retry(total=5, backoff_factor=PAUSE_S / 2, status_forcelist=[503])


class Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    how = "waits"
    tries: dict[str, int] = {}  # noqa: RUF012  # of all requests
    wbufsize = -1  # an answer in one piece

    def do_GET(self) -> None:
        n = self.tries[self.path] = self.tries.get(self.path, 0) + 1
        refused = self.how == "refused" and n % 3 != 0
        if self.how == "waits":
            time.sleep(PAUSE_S)
        body = b"" if refused else bytes(SAMPLE)
        self.send_response(503 if refused else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name
        pass


class Remote(Dataset[Tensor]):
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.client: urllib3.PoolManager | None = None

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        if self.client is None:  # each worker has its own
            self.client = urllib3.PoolManager(retries=RETRIES)
        answer = self.client.request("GET", f"{self.url}/{index}")
        return torch.frombuffer(bytearray(answer.data), dtype=torch.uint8).float()


def serve(how: str) -> None:
    Objects.how = how
    with ThreadingHTTPServer(("127.0.0.1", 0), Objects) as server:
        print(server.server_address[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        server.serve_forever()


def main(how: str) -> None:
    words = [sys.executable, __file__, "serve", how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        dataset = Remote(int(server.stdout.readline()))
        model = torch.nn.Linear(SAMPLE, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        for x in DataLoader(dataset, batch_size=2, num_workers=2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        main(sys.argv[1])
