"""What kind of file system a path lies on, by /proc/mounts; nothing is known elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/mounts")
_ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}


def file_system(path: str, mounts: str | None = None) -> str | None:
    """`ext4`, `nfs4`, `fuse.sshfs`, `tmpfs`, … of the mount that `path` is below; None: unknown.

    `mounts` is the text of /proc/mounts.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text()
        except OSError:
            return None
    real = os.path.realpath(path)
    best, kind = "", None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1]
        for code, character in _ESCAPES.items():
            point = point.replace(code, character)
        below = real == point or real.startswith(point.rstrip("/") + "/")
        if below and len(point) >= len(best):  # of two on one place the later covers the other
            best, kind = point, fields[2]
            if kind == "fuse" and fields[0].replace("-", "").isalnum():
                kind = f"fuse.{fields[0]}"  # "mountpoint-s3": named by what is mounted alone
    return kind
