"""Storage that is slow for one reason each, told apart by `diagnose`: a mount of our own (FUSE).

    python benchmarks/slow_storage.py [--only NAME,…] [--budget 45] [--keep FOLDER] [--json FILE]

A file system in this process (package mfusepy; needs libfuse and /dev/fuse, as root or with
fusermount) serves 2,000 files from memory. Nothing of it is cached, as on a cold network mount.
The same training loop reads it five times:

    latency     each request waits 12 ms, as many at once as there are
    bandwidth   all requests share 16 MB a second
    pieces      the loop reads a file in pieces of 2 KiB, each request waits 1 ms
    decode      requests cost nothing, each sample is computed for 8 ms
    local       none of it, next to a step that takes longer than its batch

A row is right where the verdict is one of BOUNDS and what `diagnose` found is what the mount, or
the loop, was made to be, and no other cause of slow storage: a healthy twin that is silent, too.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

N_FILES = 2000
SAMPLE_BYTES = 96 * 1024
PIECE_BYTES = 2 * 1024
LATENCY_S, PIECE_S, BYTES_PER_S = 0.012, 0.001, 16e6
STORAGE = frozenset(
    {
        "latency-bound-storage",
        "bandwidth-bound-storage",
        "many-small-reads",
        "storage-bound-workers",
        "many-small-files",
        "cold-storage",
        "worker-memory-grows",
    }
)
# The bounds that are right; the step of `local` sleeps, longer than its batch takes.
BOUNDS = {
    "latency": ("input",),
    "bandwidth": ("input",),
    "pieces": ("input",),
    "decode": ("input",),
    "local": ("host", "outside", "compute"),
}
# name -> (one of these must be found, these may be as well)
SAYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    # Each file is opened for its sample, so "many small files" is as true of latency.
    "latency": (
        frozenset({"latency-bound-storage"}),
        frozenset({"storage-bound-workers", "many-small-files"}),
    ),
    "bandwidth": (
        frozenset({"bandwidth-bound-storage"}),
        frozenset({"storage-bound-workers", "many-small-files"}),
    ),
    "pieces": (
        frozenset({"many-small-reads"}),
        frozenset({"latency-bound-storage", "storage-bound-workers", "many-small-files"}),
    ),
    "decode": (
        frozenset({"cpu-saturated-workers", "too-few-workers", "workers-just-keep-up"}),
        frozenset(),
    ),
    "local": (frozenset(), frozenset()),
}
SCRIPT = '''"""Trains on the files of a folder: python train.py FOLDER HOW."""
import sys, time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
PIECE = {piece}


class Files(Dataset):
    def __init__(self):
        self.paths = [str(FOLDER / f"{{i}}.bin") for i in range({n_files})]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb", buffering=0) as file:
            if HOW == "pieces":
                data = bytearray()
                while part := file.read(PIECE):
                    data += part
            else:
                data = bytearray(file.read())
        if HOW == "decode":
            until = time.thread_time() + 0.008
            while time.thread_time() < until:
                np.sort(np.frombuffer(data, np.uint8)[:4096])
        return torch.frombuffer(data, dtype=torch.uint8).float()


model = torch.nn.Linear({sample_bytes}, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
loader = DataLoader(Files(), batch_size=4, num_workers=2, shuffle=True, persistent_workers=True)
for epoch in range(1000):
    for x in loader:
        if HOW == "local":
            time.sleep(0.04)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
'''


class SlowFiles:
    """The file system: what mfusepy asks for, and nothing that writes."""

    use_ns = True

    def __init__(self, how: str) -> None:
        self._how = how
        self._way = threading.Lock()  # what all requests share
        self._data = os.urandom(SAMPLE_BYTES)

    def init(self, path: str) -> None:
        pass

    def destroy(self, path: str) -> None:
        pass

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        name = path[1:].removesuffix(".bin")
        if not name.isdigit() or int(name) >= N_FILES:
            raise OSError(errno.ENOENT, path)
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": SAMPLE_BYTES}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(f"{i}.bin" for i in range(N_FILES))]

    def open(self, path: str, flags: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        data = self._data[offset : offset + size]
        if data and self._how == "latency":
            time.sleep(LATENCY_S)
        elif data and self._how == "pieces":
            time.sleep(PIECE_S)
        elif data and self._how == "bandwidth":
            with self._way:
                time.sleep(len(data) / BYTES_PER_S)
        return data


def serve(how: str, folder: str) -> None:
    """Be that file system until it is unmounted."""
    import mfusepy  # type: ignore[import-not-found,unused-ignore]

    class Served(SlowFiles, mfusepy.Operations):  # type: ignore[misc,unused-ignore]
        pass

    mfusepy.FUSE(Served(how), folder, foreground=True, ro=True, direct_io=True, attr_timeout=60)


@contextlib.contextmanager
def mounted(how: str, folder: Path) -> Iterator[None]:
    """The mount, served by a process of its own. Raises RuntimeError where there can be none."""
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", how, str(folder)], stderr=subprocess.PIPE, text=True
    )
    try:
        until = time.monotonic() + 20.0
        while not folder.is_mount():
            if server.poll() is not None or time.monotonic() > until:
                server.kill()
                said = server.communicate()[1].strip().splitlines()
                raise RuntimeError(f"no mount: {said[-1] if said else 'it does not answer'}")
            time.sleep(0.05)
        yield
    finally:
        for command in (["fusermount3", "-u"], ["fusermount", "-u"], ["umount"]):
            with contextlib.suppress(OSError):
                if not folder.is_mount():
                    break
                subprocess.run([*command, str(folder)], capture_output=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(5.0)
        server.kill()


def row_of(how: str, work: Path, budget_s: float) -> dict[str, Any]:
    folder, report = work / "mount", work / "report.json"
    folder.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    (work / "train.py").write_text(
        SCRIPT.format(piece=PIECE_BYTES, n_files=N_FILES, sample_bytes=SAMPLE_BYTES)
    )
    command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", str(budget_s)]
    command += ["--json", str(report), "--output", str(work / "run")]
    command += [str(work / "train.py"), str(folder), how]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.getenv("PYTHONPATH")]))
    with mounted(how, folder):
        done = subprocess.run(
            command,
            cwd=work,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300.0,
        )
    if not report.exists():
        raise RuntimeError(f"{how}: no report: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(report.read_text())
    kinds = [f["kind"] for f in found["findings"]]
    return {
        "name": how,
        "verdict": f"{found['verdict']['bound']} {found['verdict']['severity']}",
        "step_ms": found["step"]["wall_ms"],
        "input": (found["shares"] or {}).get("input"),
        "kinds": kinds,
        "says": [f["summary"] for f in found["findings"] if f["kind"] in SAYS[how][0]],
        "tried": [
            {
                k: t.get(k)
                for k in ("settings", "status", "step_ms", "step_ms_ci", "gain_ms", "gain_ms_ci")
            }
            for t in found["trials"]
        ],
        "right": is_right(how, found["verdict"]["bound"], kinds),
    }


def is_right(how: str, bound: str, kinds: Sequence[str]) -> bool:
    """Whether verdict and findings are what the mount, or the loop, was made to be."""
    named, may = SAYS[how]
    found = not named or bool(named.intersection(kinds))
    return bound in BOUNDS[how] and found and not STORAGE.intersection(kinds) - named - may


def line(row: dict[str, Any]) -> str:
    share = "–" if row.get("input") is None else f"{100 * row['input']:.0f}"
    said = row.get("error") or ", ".join(row["kinds"]) or "–"
    cells = [row["name"], row.get("verdict", "–"), share, said, "yes" if row["right"] else "**no**"]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SAYS))
    parser.add_argument("--budget", type=float, default=45.0)
    parser.add_argument("--keep", type=Path, help="keep run folders here")
    parser.add_argument("--json", type=Path, help="a line for each")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return 0
    rows = []
    print("| storage | verdict | input % | findings | right |\n|---|---|---:|---|---|")
    with tempfile.TemporaryDirectory(prefix="slow-storage-") as scratch:
        for how in args.only.split(","):
            try:
                rows.append(row_of(how, (args.keep or Path(scratch)) / how, args.budget))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                rows.append({"name": how, "error": str(error)[-200:], "right": False})
            print(line(rows[-1]), flush=True)
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    for row in rows:
        for said in row.get("says", ()):
            print(f"{row['name']}: {said}")
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
