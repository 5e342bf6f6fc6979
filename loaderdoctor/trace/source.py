"""A trace file's text, decompressed, a block at a time, with every failure told as one line."""

from __future__ import annotations

import gzip
import queue
import threading
import zlib
from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path

from loaderdoctor.errors import TraceError

BLOCK_BYTES = 1 << 20
# Blocks decompressed ahead of the decoder; zlib works without the GIL meanwhile.
_N_BLOCKS_AHEAD = 4
_GZIP_MAGIC = b"\x1f\x8b"

# 8 GiB of text are about 35 million events of torch.profiler (230 bytes each), some 2 GB as
# columns; a gzip file can claim a thousand times its size.
DEFAULT_MAX_BYTES = 8 << 30

EXPORT_AGAIN = "Export the trace again, or copy it again."


def blocks(path: Path, max_bytes: int) -> Generator[bytes]:
    """Blocks of the file's text; gzip is recognised by its first bytes, whatever the name.

    Raises TraceError: missing, a folder, unreadable, empty, damaged gzip, or over `max_bytes`.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file. Check the path.") from None
    except IsADirectoryError:
        raise TraceError(f"{path}: is a folder, not a trace. Name a .json or .json.gz.") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    stream = _unpacked(path) if packed else _plain(path)
    n_bytes = 0
    with closing(stream):
        for block in stream:
            n_bytes += len(block)
            if n_bytes > max_bytes:
                raise TraceError(
                    f"{path}: holds more than {megabytes(max_bytes)} of text, the limit for one "
                    "trace. Profile fewer steps, or raise the limit."
                )
            yield block
    if n_bytes == 0:
        raise TraceError(f"{path}: is empty. {EXPORT_AGAIN}")


def megabytes(n_bytes: int) -> str:
    """A file size or position for a message."""
    if n_bytes < 100_000:
        return f"{n_bytes} bytes"
    return f"{n_bytes / 1e6:.1f} MB"


def _unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(f"{path}: can't be read ({error.strerror or error}). Check the file.")


def _plain(path: Path) -> Generator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block
    except OSError as error:
        raise _unreadable(path, error) from None


def _unpacked(path: Path) -> Generator[bytes]:
    """Blocks decompressed by a thread of their own, a few ahead of the reader."""
    ready: queue.Queue[bytes | TraceError | None] = queue.Queue(_N_BLOCKS_AHEAD)
    stop = threading.Event()

    def decompress() -> None:
        try:
            for block in _gunzipped(path):
                ready.put(block)
                if stop.is_set():
                    return
            ready.put(None)
        except TraceError as error:
            ready.put(error)
        except MemoryError:
            ready.put(TraceError(f"{path}: needs more memory than there is to be unpacked."))

    thread = threading.Thread(target=decompress, name="loaderdoctor-gunzip", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, TraceError):
                raise item
            yield item
    finally:
        stop.set()
        while thread.is_alive():  # it may be waiting to put one more block
            with suppress(queue.Empty):
                ready.get(timeout=0.05)


def _gunzipped(path: Path) -> Generator[bytes]:
    n_bytes = 0
    try:
        with gzip.open(path, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                n_bytes += len(block)
                yield block
    except EOFError:
        raise TraceError(
            f"{path}: the compressed data stops early (truncated after {megabytes(n_bytes)} "
            f"unpacked). {EXPORT_AGAIN}"
        ) from None
    except (zlib.error, gzip.BadGzipFile):
        raise TraceError(
            f"{path}: the compressed data is damaged (after {megabytes(n_bytes)} unpacked). "
            f"{EXPORT_AGAIN}"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
