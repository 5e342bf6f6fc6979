"""A whole dataset kept where the loop computes: the loader's own batches, in its order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches.h2d import ToDevice
from loaderdoctor.instrument.trial import resident as module
from loaderdoctor.instrument.trial.open_trial import measure_boundary
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.axis_cases import digests, plainly
from tests.instrument.opening import ids, opened, reason
from tests.instrument.trial_cases import Squares, Unsharded

pytestmark = pytest.mark.usefixtures("nothing_is_left")

CPU = torch.device("cpu")


def test_only_what_the_loop_moves_is_moved() -> None:
    meta = torch.device("meta")
    batch: Any = {"x": torch.zeros(4, 3), "n": torch.zeros(4, dtype=torch.int64), "name": "a"}
    by_place = ToDevice(meta, (cases.moved("['x']", (4, 3), "float32"),), non_blocking=False)
    out, new = by_place.move(batch)
    assert (out["x"].device.type, out["n"].device.type, out["name"]) == ("meta", "cpu", "a")
    assert new == [out["x"]] or new[0] is out["x"]
    assert batch["x"].device.type == "cpu"
    record = cases.moved("", (64, 3), "float32")
    by_kind = ToDevice(
        meta, (type(record)(**{**_fields(record), "path": None}),), non_blocking=False
    )
    assert by_kind.moves("anywhere", torch.zeros(2, 3))
    assert not by_kind.moves("anywhere", torch.zeros(2, 4))
    assert not by_kind.moves("anywhere", torch.zeros(2, 3, dtype=torch.float64))


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


RESIDENT = Settings(resident=True)
# As if the loop moved these to the accelerator, which is the CPU here.
ON_CPU: dict[str, Any] = {
    "device": CPU,
    "transfers": (cases.moved("[0]", (4, 3), "float32"), cases.moved("[1]", (4,), "int64")),
}


def resident(loader: DataLoader[Any], **settings: Any) -> Any:
    return opened(loader, RESIDENT.over(Settings(**settings)), **ON_CPU)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True])
def test_batches_are_the_loaders_own_in_its_order(workers: int, own: bool) -> None:
    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5) if own else None
        return DataLoader(
            Squares(30), batch_size=4, shuffle=True, num_workers=workers, generator=generator
        )

    torch.manual_seed(1)
    one = loader()
    expected = [digest for _ in range(3) for digest in plainly(one, 8)]
    torch.manual_seed(1)
    others = cases.children()
    source = resident(loader(), num_workers=0)
    assert cases.children() <= others  # what made the samples is gone
    assert digests(source.next_batch() for _ in range(24)) == expected
    assert measure_boundary(source) >= 0
    source.close()
    with pytest.raises(StopIteration):
        source.next_batch()


class NotToCopy(Squares):
    """Holds what no copy can be made of; a worker that is forked has it all the same."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("not to be copied")


def test_a_dataset_that_its_own_workers_read_is_not_copied() -> None:
    loader = DataLoader(NotToCopy(16), batch_size=4, num_workers=1)
    source = resident(loader, num_workers=0)
    assert ids(source, 4) == [*range(16)]
    source.close()


def test_samplers_of_the_scripts_own_are_asked() -> None:
    batches = [[3, 1], [2], [0, 1, 2, 3]]
    loader = DataLoader(Squares(4), batch_sampler=batches)
    source = resident(loader)
    assert [source.next_batch()[1].tolist() for _ in range(4)] == [*batches, batches[0]]
    source.close()
    drops = BatchSampler(RandomSampler(range(10)), 4, drop_last=True)
    source = resident(DataLoader(Squares(10), batch_sampler=drops))
    assert len(set(ids(source, 2))) == 8
    source.close()


def test_a_portion_takes_the_memory_of_a_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 20 * 20 * 2)
    loader = DataLoader(Squares(64), batch_size=4)
    assert "may be used" in reason(loader, RESIDENT, **ON_CPU)
    source = resident(loader, portion=0.4)
    assert ids(source, 14) == [*range(26), *range(26)]
    source.close()


def test_a_loop_that_changes_its_batch_does_not_change_the_resident_dataset() -> None:
    source = resident(DataLoader(Squares(32), batch_size=4))
    for _ in range(40):
        squares, index = source.next_batch()
        assert torch.equal(squares[:, 0], index.double().square().float())
        squares.add_(1)
        index.sub_(1)
    source.close()


class Whole(Dataset[Tensor]):
    """Its samples are batches, of several lengths."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((index + 1, 3), float(index))


def test_batches_that_the_dataset_makes_come_as_the_sampler_says() -> None:
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(Whole(), batch_size=None, shuffle=True, generator=generator)
    expected = plainly(loader, 6)
    generator.manual_seed(0)
    moved = (cases.moved("", (1, 3), "float32"),)
    source = opened(loader, RESIDENT, device=CPU, transfers=moved)
    first = source.next_batch()
    assert digests([first]) == expected[:1]
    first.zero_()
    assert digests(source.next_batch() for _ in range(5)) == expected[1:]
    source.close()


def test_what_is_no_row_of_its_own_is_refused() -> None:
    loader = DataLoader(Whole(), batch_size=2, collate_fn=lambda samples: torch.cat(samples))
    assert "a row for each sample" in reason(loader, RESIDENT, **ON_CPU)
    mixed = DataLoader(Squares(16), batch_size=4, collate_fn=lambda x: [torch.ones(4, len(x)), "a"])
    assert not_compared(mixed) == []
    named = DataLoader(Squares(16), batch_size=4, collate_fn=lambda x: [torch.ones(4), str(x[0])])
    assert "more than tensors" in reason(named, RESIDENT, **ON_CPU)


def test_what_is_drawn_once_is_said() -> None:
    class Drawn(Squares):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(3), index

    before = torch.get_rng_state()
    assert not_compared(DataLoader(Drawn(16), batch_size=4)) == ["resident-frozen"]
    assert torch.equal(torch.get_rng_state(), before)
    assert not_compared(DataLoader(Squares(16), batch_size=4)) == []
    # A diagnosis, which would recommend it, tries no such thing.
    limited = {**ON_CPU, "cache_limit_s": 2.0}
    drawn = DataLoader(Drawn(16), batch_size=4)
    assert "made again came out differently" in reason(drawn, RESIDENT, **limited)
    opened(DataLoader(Squares(16), batch_size=4), RESIDENT, **limited).close()


def not_compared(loader: DataLoader[Any]) -> list[str]:
    """What the report must say of the batches of this loader."""
    said: list[str] = []
    opened(loader, RESIDENT, note=lambda kind, _: said.append(kind), **ON_CPU).close()
    return said


def test_a_stream_keeps_its_batches() -> None:
    loader: DataLoader[Any] = DataLoader(Unsharded(), batch_size=4)
    with pytest.raises(TrialRefused, match="no length"):
        resident(loader)

    class Sized(Unsharded):
        def __len__(self) -> int:
            return 16

    loader = DataLoader(Sized(), batch_size=4, num_workers=1)
    moved = (cases.moved("", (4,), "int64"),)
    source = opened(loader, RESIDENT.over(Settings(num_workers=0)), device=CPU, transfers=moved)
    assert [source.next_batch()[0].item() for _ in range(5)] == [0, 4, 8, 12, 0]
    source.close()


def test_a_dataset_that_does_not_fit_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 500)
    assert "may be used" in reason(DataLoader(Squares(64), batch_size=4), RESIDENT, **ON_CPU)


def test_filling_that_would_take_too_long_is_given_up_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FILL_LIMIT_S", 0.5)
    loader = DataLoader(Squares(4000, sleep_s=0.002), batch_size=4)
    assert "would take about" in reason(loader, RESIDENT, **ON_CPU)
