"""What is written of copies to the device: of what the loop moves, to where it moves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loaderdoctor.advice.writing import written
from loaderdoctor.facts import Facts
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.settings import Settings
from tests.advice.printed import applied, blocks, facts_of
from tests.advice.test_pairs import HEAD, ROWS, TAIL, losses_of, no_streams

__all__ = ["no_streams"]

AHEAD, RESIDENT, PACKED = Settings(side_stream=True), Settings(resident=True), Settings(packed=True)
NAMED = """\
class Named(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return {"x": torch.arange(4.0) + i, "y": torch.ones(1), "name": f"sample {i}", "n": None}


def collate(samples):
    batch = {k: torch.stack([s[k] for s in samples]) for k in "xy"}
    return {**batch, "names": [s["name"] for s in samples], "n": len(samples)}


loader = DataLoader(Named(), batch_size=8, collate_fn=collate)  # train loader
"""
OF_NAMED = """\
    for batch in loader:  # train loop
        x, y = batch["x"].to(device), batch["y"].to(device)
        assert batch["n"] == len(batch["names"]) == len(x)
"""
MOVE = "        x, y = x.to(device), y.to(device)\n"


def facts_for(text: str, *moved: str, **recorded: Any) -> Facts:
    """The script, whose loop moves these tensors of a batch."""
    facts = facts_of(Path("train.py"), text=text, loader=recorded)
    moves = [msgspec.structs.replace(facts.transfers[0], path=path) for path in moved]
    return replace(facts, transfers=tuple(moves))


def tensors(*paths: str) -> tuple[TensorRecord, ...]:
    return tuple(TensorRecord(path=p, shape=(8, 4), dtype="float32", n_bytes=128) for p in paths)


@pytest.mark.usefixtures("no_streams")
def test_what_is_no_tensor_comes_with_the_batch_as_it_was() -> None:
    head = (HEAD + NAMED).replace("DEVICE", "'cpu'")
    body = TAIL.replace(f"    for x, y in loader:  # train loop\n{MOVE}", OF_NAMED)
    assert body != TAIL
    paths = ("['x']", "['y']")
    facts = facts_for(
        head + body, *paths, batch=tensors(*paths), batch_type="dict", holds_others=True
    )
    after = applied(head + body, blocks(written(facts, AHEAD).code))
    assert "in copied_ahead(loader, device)" in after
    assert losses_of(after) == losses_of(head + body)


@pytest.mark.parametrize("settings", [AHEAD, RESIDENT, PACKED])
def test_what_the_loop_leaves_in_host_memory_stays_there(settings: Settings) -> None:
    text = (HEAD + ROWS + TAIL).replace("DEVICE", "'cuda'")
    paths = ("[0]", "[1]", "[2]")  # images, their lengths, labels
    for moved in (paths, ("[0]", "[2]"), ()):
        facts = facts_for(text, *moved, batch=tensors(*paths))
        assert bool(written(facts, settings).code) is (moved == paths)


def test_a_dataset_of_more_than_tensors_is_not_kept_on_the_device() -> None:
    text = (HEAD + ROWS + TAIL).replace("DEVICE", "'cuda'")
    assert written(facts_for(text, "[0]", "[1]"), RESIDENT).code
    assert not written(facts_for(text, "[0]", "[1]", holds_others=True), RESIDENT).code


@pytest.mark.parametrize(
    ("move", "device"),
    [
        ("x, y = x.to(device).to(torch.float32), y.to(device)", "device"),
        ("x, y = x.to(device, torch.float32), y.to(device, non_blocking=True)", "device"),
        ("x, y = x.to(device=device).to(dtype=model.weight.dtype), y.to(device)", "device"),
        ("x, y = x.to(device).to(model.weight.dtype), y.to(device)", "device"),
        ("x, y = x.to(device).float(), y.to(device).to('cpu').to(device, True)", "device"),
        ("x, y = x.to(torch.device('cuda:0')), y.to(torch.device('cuda:0'))",
         "torch.device('cuda:0')"),
        ("x, y = x.to(device).to(half), y.to(device)", None),
        ("x, y = x.to('cuda:0'), y.to('cuda:1')", None),
        ("x, y = x.to(torch.float32), y.to(torch.float32)", None),
    ],
)  # fmt: skip
def test_a_dtype_is_no_device(move: str, device: str | None) -> None:
    half = "half = torch.float16\nmodel ="
    text = (HEAD + ROWS + TAIL).replace("DEVICE", "'cuda'").replace("model =", half, 1)
    text = text.replace(MOVE, f"        {move}\n")
    for settings, name in ((AHEAD, "copied_ahead"), (RESIDENT, "OnDevice"), (PACKED, "OneCopy")):
        facts = facts_for(text, "[0]", "[1]", batch=tensors("[0]", "[1]"))
        code = written(facts, settings).code
        given = f", {device})" if device is not None else ""
        assert (given in code and f"{name}(" in code) if given else not code, code
