"""Arguments of a loader that torch takes although they are no plain int or bool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command import MessagePipe
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.wire.channel import encoded
from loaderdoctor.instrument.wire.protocol import FromRun, Progress
from loaderdoctor.instrument.wire.record_file import Kind, RecordWriter
from loaderdoctor.instrument.wire.records import LoaderRecord
from tests.instrument.watched import Numbers, QueuedChannel, Trainer, watch


class InFours(Sampler[list[int]]):
    """Batches of four, whose size is told in some way."""

    def __init__(self, batch_size: Any) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(4 * i, 4 * i + 4)) for i in range(8)])

    def __len__(self) -> int:
        return 8


def told(loader: DataLoader[Any]) -> LoaderRecord:
    """What the command gets to know of a loader that is trained on: of all messages the last."""

    def loop() -> None:
        trainer = Trainer()
        for _ in range(3):
            for x, _ in loader:
                trainer.step(x)

    sent: list[Any] = [msgspec.json.decode(encoded(m), type=FromRun) for m in watch(loop).sent]
    record: LoaderRecord = sent[-1].loaders[0]
    return record


def test_numbers_of_numpy_are_told_as_pythons_own() -> None:
    one: Any = np.int64(1)
    loader: Any = DataLoader(
        Numbers(32), 4, num_workers=one, prefetch_factor=one, persistent_workers=one
    )
    settings = told(loader).settings
    assert (settings.num_workers, settings.prefetch_factor) == (1, 1)
    assert settings.persistent_workers is True


@pytest.mark.parametrize(
    ("size", "known"), [(np.int64(4), 4), (torch.tensor(4), 4), ([4, 8], None), (4.0, None)]
)
def test_a_batch_samplers_size_is_a_number_or_not_known(size: Any, known: int | None) -> None:
    assert told(DataLoader(Numbers(32), batch_sampler=InFours(size))).batch_size == known


def test_what_a_loader_has_for_a_number_is_recorded(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "main")
    writer.add_json(Kind.ITERATOR, {"prefetch_factor": np.int64(2), "num_workers": 2.5})
    writer.add_json(Kind.ITERATOR, {"prefetch_factor": object()})
    writer.close()
    (path,) = tmp_path.iterdir()
    recorded = path.read_bytes()
    assert b'{"prefetch_factor":2,"num_workers":2.5}' in recorded
    assert recorded.endswith(b'{"prefetch_factor":null}')


def test_a_script_whose_end_can_not_be_told_ends_unwatched_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(QueuedChannel(), run_dir=tmp_path, records_workers=False)
    detached: list[bool] = []
    monkeypatch.setattr(session, "detach", lambda: detached.append(True))
    monkeypatch.setattr(session.registry, "records", lambda: 1 / 0)
    session.script_over("script-ended", 0)
    assert detached
    assert session.channel.sent[-1].kind == "internal-error"  # type: ignore[attr-defined]


def test_a_message_that_fits_no_form_is_told_as_an_error_of_ours() -> None:
    class Pipe:
        def poll(self, timeout_s: float) -> bool:
            return True

        def recv_bytes(self) -> bytes:
            return encoded(Progress(text="", n_steps=1)).replace(b"1", b"[1]")

    pipe: Any = Pipe()
    with pytest.raises(RunError, match="please report it"):
        MessagePipe(pipe).receive()
