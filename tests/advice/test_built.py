"""The call that builds a loader: what its arguments are, and what may be added to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loaderdoctor.advice.fit_code import fitted
from loaderdoctor.advice.writing import written
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Kind
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.settings import Settings
from tests.advice.printed import applied, blocks, facts_of, finding

SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from helpers import get_loader, BucketLoader
data = [0.0] * 32
{}
for x in loader:  # train loop
    pass
"""


def changed(body: str, settings: Settings) -> str:
    """The script with what is printed; empty where nothing is."""
    text = SCRIPT.format(body).lstrip("\n")
    code = written(facts_of(Path("train.py"), text=text), settings).code
    return applied(text, blocks(code)) if code else ""


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("loader = get_loader('root')  # train loader", ""),
        ("loader = get_loader('root', num_workers=2)  # train loader",
         "get_loader('root', num_workers=4)"),
        ("loader = BucketLoader(data)  # train loader", "BucketLoader(data, num_workers=4)"),
        ("def my_loader(part, **given):\n    return DataLoader(part, **given)\n"
         "loader = my_loader(data, batch_size=2)  # train loader",
         "my_loader(data, batch_size=2, num_workers=4)"),
        ("def my_loader(part, size):\n    return DataLoader(part, batch_size=size)\n"
         "loader = my_loader(data, 2)  # train loader", ""),
        ("class Mine(DataLoader):\n    def __init__(self, data):\n"
         "        super().__init__(data, 8, False, None, None, 2)  # train loader\n"
         "loader = Mine(data)", "super().__init__(data, 8, False, None, None, 4)"),
        ("class Mine(DataLoader):\n    def __init__(self, data):\n"
         "        DataLoader.__init__(self, data, batch_size=8)  # train loader\n"
         "loader = Mine(data)", "DataLoader.__init__(self, data, batch_size=8, num_workers=4)"),
    ],
)  # fmt: skip
def test_an_argument_goes_where_it_is_taken(body: str, after: str) -> None:
    written_ = changed(body, Settings(num_workers=4))
    assert after in written_ if after else written_ == ""


BUILDER = """def my_loader(dataset{}):
    return DataLoader(dataset, batch_size=8{})
loader = my_loader(dataset=data)  # train loader"""


@pytest.mark.parametrize("takes", ["", "num_workers=0", "**given"])
def test_a_function_is_given_no_argument_that_it_takes_not(takes: str) -> None:
    """What it is given would end the script before its first step."""
    passed = takes.replace("=0", "=num_workers")
    given = (f", {takes}", f", {passed}") if takes else ("", "")
    body = BUILDER.format(*given)
    text = SCRIPT.format(f'device = "cuda"\n{body}').lstrip("\n")
    facts = facts_of(Path("train.py"), text=text.replace("    pass\n", "    x = x.to(device)\n"))
    for settings in (
        Settings(worker_cpus="all"),
        Settings(worker_gc="frozen"),
        Settings(packed=True),
        Settings(cache=True, batched=True),
    ):
        assert bool(written(facts, settings).code) is takes.startswith("**"), settings
    told = finding(Kind.WORKERS_SHARE_A_CORE, "", "train.py")
    assert (fitted(facts, told) is not None) is takes.startswith("**")


def test_what_is_no_dataset_is_wrapped_in_nothing() -> None:
    assert "Cached(data)" in changed("loader = DataLoader(data)  # train loader", KEEP)
    for call in ("get_loader('root')", "BucketLoader(data)"):
        assert changed(f"loader = {call}  # train loader", KEEP) == ""
    base = (
        "class Mine(DataLoader):\n    def __init__(self, data):\n"
        "        DataLoader.__init__(self, data)  # train loader\nloader = Mine(data)"
    )
    assert changed(base, KEEP) == ""


KEEP = Settings(cache=True)


def test_a_collate_function_is_given_once() -> None:
    rows = "data = TensorDataset(torch.zeros(32, 4), torch.zeros(32, 4))\nloader = "
    by_name = f"{rows}DataLoader(data, 8, True)  # train loader"
    by_place = f"{rows}DataLoader(data, 8, True, None, None, 0, None)  # train loader"
    whole = Settings(batched=True, num_workers=0)
    assert "collate_fn=as_it_is" in changed(by_name, whole)
    assert "DataLoader(WholeBatches(data), 8, True, None, None, 0, as_it_is)" in changed(
        by_place, whole
    )
    of_its_own = by_place.replace("0, None)", "0, pad)")
    assert changed(of_its_own, Settings(cache=True, batched=True, num_workers=0)) == ""


PACKED = """
import torch
from torch.utils.data import DataLoader
data = [(torch.zeros(4), torch.zeros(4))] * 32
def pad(samples):
    return samples
options = {{"collate_fn": pad}}
loader = DataLoader({})  # train loader
for x, y in loader:  # train loop
    x = x.to("cuda")
    y = y.to("cuda")
"""


@pytest.mark.parametrize(
    ("given", "collate", "packed"),
    [
        ("data, 8", "default_collate", "Packing(torch.utils.data.default_collate)"),
        ("data, 8, collate_fn=pad", "pad", "Packing(pad)"),
        ("data, 8, True, None, None, 0, pad", "pad", "Packing(pad)"),
        ("data, 8, **options", "pad", None),
        ("data, 8, True, None, None, 0, None", "default_collate",
         "Packing(torch.utils.data.default_collate)"),
    ],
)  # fmt: skip
def test_a_collate_function_is_packed_wherever_it_is_given(
    given: str, collate: str, packed: str | None
) -> None:
    text = PACKED.format(given).lstrip("\n")
    facts = facts_of(Path("train.py"), text=text, loader={"collate": collate})
    assert facts.main_loader is not None
    moved = tuple(
        msgspec.structs.replace(x, path=tensor.path)
        for x, tensor in zip(facts.transfers, facts.main_loader.batch, strict=True)
    )
    code = written(replace(facts, transfers=moved), Settings(packed=True, pin_memory=True)).code
    assert packed in code if packed is not None else "Packing(" not in code


@pytest.mark.parametrize(
    ("made", "fused"),
    [
        ("opt = torch.optim.Adam([])", True),
        ("from torch.optim import AdamW\nopt = AdamW([])", True),
        ("import torch.optim as optim\nopt = optim.SGD([])", True),
        ("opt = torch.optim.Adadelta([])", False),
        ("opt = torch.optim.Adam([], foreach=True)", False),
        ("from transformers import AdamW\nopt = AdamW([])", False),
        ("import torch_optimizer as optim\nopt = optim.Adam([])", False),
    ],
)
def test_only_optimizers_that_have_a_fused_form_are_told_to_use_it(made: str, fused: bool) -> None:
    after = changed(f"{made}\nloader = DataLoader(data)  # train loader", FUSED)
    assert ("fused=True" in after) is fused


FUSED = Settings(fused_optimizer=True)


OF_TWO = """
import torch
from torch.utils.data import DataLoader, TensorDataset
class Data:
    def __init__(self):
        self.device = None
    def made(self):
        data = TensorDataset(torch.zeros(32, 4), torch.zeros(32, 4))
        loader = DataLoader(data, batch_size=8)  # train loader
        return loader
class Trainer:
    def __init__(self, loader):
        self.device, self.loader = "cuda", loader
    def fit(self):
        for x, y in self.loader:  # train loop
            x, y = x.to(self.device), y.to(self.device)
Trainer(Data().made()).fit()
"""


def test_what_one_object_calls_its_device_is_not_another_s() -> None:
    settings = Settings(resident=True)
    facts = facts_of(Path("train.py"), text=OF_TWO.lstrip("\n"))
    assert "self.device)" not in written(facts, settings).code
    shared = OF_TWO.replace("self.device", "device").replace("class Data", "device = 0\nclass Data")
    shared = shared.replace('device, self.loader = "cuda", loader', "self.loader = loader")
    facts = facts_of(Path("train.py"), text=shared.lstrip("\n"))
    assert ", device)" in written(facts, settings).code


TWO = """
import torch
from torch.utils.data import DataLoader
a, b = [0.0] * 32, [1.0] * 32
first = DataLoader(a, batch_size=8)
second = DataLoader(b, batch_size=8)  # train loader
for x, y in zip(first, second):
    pass
"""


def of_two(**other: Any) -> Facts:
    """Both feed the step; the second is the main one."""
    facts = facts_of(Path("train.py"), text=TWO.lstrip("\n"))
    assert facts.main_loader is not None
    first = msgspec.structs.replace(facts.main_loader, id="train.py:4", **other)
    return replace(facts, loaders=(facts.main_loader, first))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(cache=True), "class Cached"),
        (Settings(worker_gc="frozen", num_workers=2), "class Frozen"),
        (Settings(threads=2, num_workers=0), "class Threads"),
    ],
)
def test_a_class_stands_above_the_first_loader_that_reads_it(settings: Settings, name: str) -> None:
    after = applied(TWO.lstrip("\n"), blocks(written(of_two(), settings).code))
    assert after.count(name) == 1
    assert after.index(name) < after.index("first =") < after.index("second =")


def test_loaders_of_unlike_batches_get_no_class_of_one_name() -> None:
    tensors = (TensorRecord(path="['x']", shape=(8, 4), dtype="float32", n_bytes=128),)
    whole = Settings(cache=True, batched=True, num_workers=0)
    assert "Sliced(a)" in written(of_two(), whole).code
    assert written(of_two(batch=tensors, batch_type="dict"), whole).code == ""
