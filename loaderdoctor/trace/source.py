"""A trace file's text, decompressed, a block at a time, with every failure told as one line."""

from __future__ import annotations

import os
import queue
import threading
import zlib
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from loaderdoctor.errors import TraceError

BLOCK_BYTES = 256 << 10
# gzip is unpacked by a thread, so that it costs no time of the decoder's where there is a second
# CPU. To go on, that thread must get the GIL from the decoder, which takes the interpreter's switch
# interval (5 ms), some six times a call while zlib's buffer grows: few, large calls.
_UNPACKED_BYTES = 8 << 20
_N_UNPACKED_AHEAD = 1
_GZIP_FORMAT = 31  # zlib's wbits for a gzip header and checksum, largest window
_GZIP_MAGIC = b"\x1f\x8b"

# 8 GiB of text are about 35 million events of torch.profiler (230 bytes each), some 2 GB as
# columns; a gzip file can claim a thousand times its size.
DEFAULT_MAX_BYTES = 8 << 30
# Where only a part is kept, memory does not grow with the text: an hour of reading.
PART_MAX_BYTES = 256 << 30

EXPORT_AGAIN = "Export the trace again, or copy it again."
EXPORTED = "Name a trace exported by torch.profiler."


OnShare = Callable[[float], None]  # told how much is done, 0…1


def blocks(
    path: Path,
    max_bytes: int,
    *,
    on_share: OnShare | None = None,
    of_bytes: int | None = None,
) -> Generator[bytes]:
    """Blocks of the file's text; gzip is recognised by its first bytes, whatever the name.

    `on_share` is told before each block how much of the file has been read (of its first
    `of_bytes`, where given); of a pipe nobody knows, and it is told nothing.
    Raises TraceError: missing, a folder, unreadable, empty, damaged gzip, or over `max_bytes`.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file. Check the path.") from None
    except OSError as error:
        if path.is_dir():
            raise TraceError(f"{path}: is a folder. Name a .json or .json.gz in it.") from None
        raise _unreadable(path, error) from None
    n_bytes = 0
    # Opened once and never sought in, so that a pipe will do.
    with file, closing(_unpacked(path, file) if is_gzip(path, file) else _plain(path, file)) as it:
        size = (of_bytes or os.fstat(file.fileno()).st_size) if on_share is not None else 0
        for block in it:
            n_bytes += len(block)
            if size and on_share is not None:
                on_share(min(1.0, file.tell() / size))
            if n_bytes > max_bytes:
                raise TraceError(
                    f"{path}: holds more than {megabytes(max_bytes)} of text, the limit for one "
                    "trace. Profile fewer steps."
                )
            yield block
    if n_bytes == 0:
        raise TraceError(f"{path}: is empty. {EXPORT_AGAIN}")


def not_a_trace(path: Path, why: str) -> TraceError:
    """What to raise for a file that is something else."""
    return TraceError(f"{path}: is not a torch.profiler trace: {why}. {EXPORTED}")


def megabytes(n_bytes: int) -> str:
    """A file size or position for a message."""
    if n_bytes < 100_000:
        return f"{n_bytes} bytes"
    return f"{n_bytes / 1e6:.1f} MB"


def _unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(f"{path}: can't be read ({error.strerror or error}). Check the file.")


def is_gzip(path: Path, file: BufferedReader) -> bool:
    try:
        return file.peek(2)[:2] == _GZIP_MAGIC
    except OSError as error:
        raise _unreadable(path, error) from None


def _plain(path: Path, file: BufferedReader) -> Generator[bytes]:
    try:
        while block := file.read(BLOCK_BYTES):
            yield block
    except OSError as error:
        raise _unreadable(path, error) from None


def _unpacked(path: Path, file: BufferedReader) -> Generator[bytes]:
    """Blocks decompressed by a thread of their own, ahead of the reader."""
    ready: queue.Queue[bytes | TraceError | None] = queue.Queue(_N_UNPACKED_AHEAD)
    stop = threading.Event()

    def decompress() -> None:
        try:
            for block in _gunzipped(path, file):
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
            for start in range(0, len(item), BLOCK_BYTES):
                yield item[start : start + BLOCK_BYTES]
    finally:
        stop.set()
        while thread.is_alive():  # it may be waiting to put one more block
            with suppress(queue.Empty):
                ready.get(timeout=0.05)


def _gunzipped(path: Path, file: BufferedReader) -> Generator[bytes]:
    """Text of the members of a gzip file, their checksums verified, in large pieces.

    Not by `gzip.open`, which (Python 3.11) unpacks 8 kB a call.
    """
    n_bytes = 0
    try:
        member = zlib.decompressobj(_GZIP_FORMAT)
        packed = file.read(BLOCK_BYTES)
        while packed:
            block = member.decompress(packed, _UNPACKED_BYTES)
            n_bytes += len(block)
            if block:
                yield block
            if not member.eof:
                packed = member.unconsumed_tail or file.read(BLOCK_BYTES)
                continue
            # At a member's end its `unconsumed_tail` is not to be used: where output was limited it
            # repeats what is in `unused_data`, for ever. Members may be padded with zeros.
            packed = member.unused_data.lstrip(b"\0")
            while not packed and (padded := file.read(BLOCK_BYTES)):
                packed = padded.lstrip(b"\0")
            if packed:
                member = zlib.decompressobj(_GZIP_FORMAT)
    except zlib.error:
        raise TraceError(
            f"{path}: the compressed data is damaged (after {megabytes(n_bytes)} unpacked). "
            f"{EXPORT_AGAIN}"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not member.eof:
        raise TraceError(
            f"{path}: the compressed data stops early (truncated after {megabytes(n_bytes)} "
            f"unpacked). {EXPORT_AGAIN}"
        )


# How much memory a trace may take, counted while it is read.
#
# Text comes in pieces and is thrown away, so what grows is rows, and the distinct names and threads
# they refer to. The limit is on an estimate of the peak of the whole analysis, whose own arrays
# come and go, because an allocation that fails can't be relied on: Linux grants memory that it
# hasn't got.

# Peak resident memory of `analyze` over that of an empty trace, a row: 177 to 460 bytes over twenty
# shapes of trace (nested ops, Python frames, kernels with launches, copies on as many streams),
# of which reading takes 135 to 190. The rest of a row is its name and its thread.
BYTES_PER_ROW = 500
BYTES_PER_ROW_HELD = 190  # of it by the trace itself, once read and divided
# A name that no other row has took 320 bytes more with 10 characters; an entry of ours for one,
# with its place in a dict, a tuple and the flags by name.
BYTES_PER_NAME = 300
# Python, numpy, ourselves (43 MB before the first event), blocks of text, one batch's objects.
BYTES_AT_LEAST = 150 << 20
# Text of nothing but brackets takes 35 times its length while they are looked through; as objects
# twenty times, held as bytes and as text too.
PER_PIECE_BYTE = 64
# One event, or what surrounds the list, larger than this is no torch.profiler trace: real events
# are kilobytes, with stacks and shapes tens of kilobytes.
MAX_PIECE_BYTES = 256 << 20
MIN_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The bytes that reading and analysing one trace may take; None: as many as there are."""

    n_bytes: int | None = None

    @property
    def piece_bytes(self) -> int:
        """The longest piece of text that is decoded at once."""
        if self.n_bytes is None:
            return MAX_PIECE_BYTES
        return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, self.n_bytes // PER_PIECE_BYTE))

    def holds(self, n_rows: int, other_bytes: int) -> bool:
        """Whether a trace of so many rows, and names and threads of so many bytes, is within it."""
        if self.n_bytes is None:
            return True
        return BYTES_AT_LEAST + n_rows * BYTES_PER_ROW + other_bytes <= self.n_bytes

    @property
    def n_rows(self) -> int:
        """How many rows it holds, names and threads aside."""
        assert self.n_bytes is not None
        return max(0, self.n_bytes - BYTES_AT_LEAST) // BYTES_PER_ROW

    def share_of(self, n_parts: int) -> MemoryLimit:
        """The limit of each of several readers at a time."""
        return MemoryLimit(None if self.n_bytes is None else self.n_bytes // n_parts)

    def __str__(self) -> str:
        return "unlimited" if self.n_bytes is None else f"{self.n_bytes / 1e9:.1f} GB"


UNLIMITED = MemoryLimit()
