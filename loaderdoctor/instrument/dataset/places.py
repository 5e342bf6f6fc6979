"""Where a dataset's data lies, as its attributes, loaded modules and /proc/mounts tell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MAX_DEPTH = 4  # of datasets that wrap one another
MAX_PATHS = 16
# Modules that read from an object store or over HTTP, as "what it reads from".
CLIENTS: Mapping[str, str] = {
    "s3fs": "S3 (s3fs)",
    "boto3": "S3 (boto3)",
    "s3torchconnector": "S3 (s3torchconnector)",
    "gcsfs": "Google Cloud Storage (gcsfs)",
    "google.cloud.storage": "Google Cloud Storage",
    "adlfs": "Azure (adlfs)",
    "fsspec.implementations.http": "HTTP (fsspec)",
}
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


def file_systems(dataset: object) -> tuple[str, ...]:
    """Kinds of the file systems that paths in its attributes lie on: "ext4", "nfs4".

    Of a list of paths the first speaks for all.
    """
    kinds = (file_system(path) for path in _paths(dataset))
    return tuple(dict.fromkeys(kind for kind in kinds if kind is not None))


def clients() -> tuple[str, ...]:
    """What is loaded in this process that reads over the network; loaded need not be used."""
    return tuple(words for name, words in CLIENTS.items() if name in sys.modules)


def _paths(dataset: object) -> list[str]:
    found: dict[str, None] = {}
    holder: Any = dataset
    for _ in range(MAX_DEPTH):
        attributes = getattr(holder, "__dict__", None)
        if not isinstance(attributes, dict):
            break
        for value in list(attributes.values()):
            for text in _texts(value):
                if os.sep in text and len(found) < MAX_PATHS and Path(text).exists():
                    found[text] = None
        holder = attributes.get("dataset")
    return list(found)


def _texts(value: object) -> Iterator[str]:
    """A path as it stands, or of a list of paths, or of tuples with one, the first."""
    for _ in range(3):
        if isinstance(value, (str, os.PathLike)):
            text = os.fspath(value)
            if isinstance(text, str) and len(text) < 4096 and "\0" not in text:
                yield text
            return
        if not isinstance(value, (list, tuple)) or not value:
            return
        value = value[0]
