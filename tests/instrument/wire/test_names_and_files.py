"""What is written that others read: names that are no text, and a file that two threads share."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.wire.channel import (
    LaunchConfig,
    decode_launch_config,
    encode_launch_config,
    encoded,
)
from loaderdoctor.instrument.wire.protocol import Ended, FromRun
from loaderdoctor.instrument.wire.record_file import Kind, RecordWriter
from loaderdoctor.instrument.wire.records import PassRecord

ODD = os.fsdecode(b"b\xfcr")  # Latin-1, as old disks have it


def config(*args: str) -> LaunchConfig:
    return LaunchConfig(address="", authkey="", run_dir="", kind="script", target="a.py", args=args)


def test_what_is_no_text_in_a_message_has_a_question_mark_in_its_place() -> None:
    read = PassRecord(loader=f"{ODD}/train.py:4", site="bür", n_batches=3)
    ended = Ended(
        how="script-failed", exit_code=1, n_steps=9, reason=f"{ODD}: lost", before_training=(read,)
    )
    came = msgspec.json.decode(encoded(ended), type=FromRun)
    assert came == msgspec.structs.replace(
        ended,
        reason="b?r: lost",
        before_training=(msgspec.structs.replace(read, loader="b?r/train.py:4"),),
    )


def test_a_launch_with_an_argument_that_is_no_text_is_refused() -> None:
    told = config("--data", "bür")
    assert decode_launch_config(encode_launch_config(told)) == told
    with pytest.raises(UsageError, match=r"b\\udcfcr: names and arguments must be UTF-8"):
        encode_launch_config(config("--data", ODD))


def test_a_file_that_is_closed_meanwhile_is_written_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that the system takes in two parts: what follows it may be another file's."""
    writer = RecordWriter(tmp_path, "worker")
    writer.add(Kind.LINES, b"x" * 100)
    write, half, failed = os.write, threading.Event(), []

    def in_parts(fd: int, data: memoryview) -> int:
        n = write(fd, data[: max(1, len(data) // 2)])
        half.set()
        return n

    def flush() -> None:
        try:
            writer.flush()
        except OSError as error:
            failed.append(error)

    monkeypatch.setattr("os.write", in_parts)
    other = threading.Thread(target=flush)
    other.start()
    half.wait()
    writer.close()
    other.join()
    assert failed == []
    assert writer.path.read_bytes().endswith(b"x" * 100)
