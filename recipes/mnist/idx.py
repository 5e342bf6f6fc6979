"""Reads MNIST's IDX files: images and labels as uint8 arrays, gzip-compressed or not.

IDX (http://yann.lecun.com/exdb/mnist): two zero bytes, a type byte (8 = unsigned byte), the number
of dimensions, each dimension as a big-endian 32-bit integer, then the data in row-major order.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

UNSIGNED_BYTE = 8
MAX_DIMENSIONS = 4  # images have three; a file can claim 255
MAX_BYTES = 1 << 30  # MNIST's largest file holds 47 MB
# Where a data set may lie under the folder given: the files themselves, or torchvision's layout.
SUBFOLDERS = (".", "raw", "MNIST/raw")


class DataError(Exception):
    """The folder or a file in it is not MNIST; the message says what was looked for."""


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in one IDX file, in the shape its header states. Raises DataError."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with cast(BinaryIO, gzip.open(raw)) if packed else raw as file:
                shape = _shape(path, file)
                # No further than the header says: a small file can unpack to any size.
                content = file.read(math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: can't be read ({error}). Copy or download it again.") from error
    if len(content) != math.prod(shape):
        found = "more" if len(content) > math.prod(shape) else f"{len(content):,}"
        raise DataError(
            f"{path}: {found} bytes of data where its header says {math.prod(shape):,}. "
            "Copy or download it again."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _shape(path: Path, file: BinaryIO) -> tuple[int, ...]:
    """Read the header. Raises DataError."""
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] != UNSIGNED_BYTE:
        raise DataError(f"{path}: not an IDX file of unsigned bytes (starts {start.hex()}).")
    n_dimensions = start[3]
    if not 1 <= n_dimensions <= MAX_DIMENSIONS:
        raise DataError(f"{path}: not MNIST ({n_dimensions} dimensions where 1 or 3 belong).")
    sizes = file.read(4 * n_dimensions)
    if len(sizes) < 4 * n_dimensions:
        raise DataError(f"{path}: ends inside its header. Copy or download it again.")
    shape = struct.unpack(f">{n_dimensions}I", sizes)
    if not 1 <= math.prod(shape) <= MAX_BYTES:  # exact: in 64 bits 65536**4 is 0
        raise DataError(f"{path}: not MNIST (its header says {math.prod(shape):,} bytes).")
    return shape


def load_mnist(data_dir: Path, *, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 28, 28) and labels (n,) of one half of the data set. Raises DataError."""
    half = "train" if train else "t10k"
    images = read_idx(_find(data_dir, f"{half}-images-idx3-ubyte"))
    labels = read_idx(_find(data_dir, f"{half}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(
            f"{data_dir}: images {images.shape} and labels {labels.shape} do not belong together."
        )
    return images, labels


def _find(data_dir: Path, name: str) -> Path:
    for subfolder in SUBFOLDERS:
        for suffix in ("", ".gz"):
            path = data_dir / subfolder / f"{name}{suffix}"
            if path.is_file():
                return path
    raise DataError(
        f"{data_dir}: no {name} or {name}.gz here, in raw/ or in MNIST/raw/. Give --data-dir a "
        "folder with the four IDX files of MNIST."
    )
